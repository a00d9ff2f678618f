#pragma once
/// A real training run: alone, or on the ranks of a communicator, with data, expert, tensor and
/// pipeline parallelism.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/seed.hpp"
#include "core/units.hpp"
#include "kernels/communicator.hpp"
#include "kernels/graphed_calls.hpp"
#include "model/model_spec.hpp"
#include "model/optimizer.hpp"
#include "model/parallel_layout.hpp"
#include "model/step_schedule.hpp"
#include "model/text/token_data.hpp"

namespace moeplan {

struct TrainOptions {
    ModelSpec model;
    ParallelLayout layout;  ///< tp · pp · dp ranks; no context parallelism
    StepSchedule schedule = {.sharding = Sharding::none};  ///< lengths and batch sizes, the
                                                           ///< pipeline and its stages, zero1
    OptimizerOptions optimizer;
    std::shared_ptr<const PackedTokens>
        data;  ///< the same on every rank; its sequence length is the schedule's
    std::shared_ptr<const PackedTokens> held_out;  ///< may be null
    std::string data_digest;
    int steps = 100;
    int evaluate_every = 0;  ///< held-out loss after so many steps; 0: after the last one alone, if
                             ///< there is held_out
    int evaluate_sequences = 16;
    std::optional<bool> renormalise_gates;  ///< replaces the model's
    Seed seed;
    Device device = Device::cpu;
    int device_ordinal = 0;
    NumberFormat format = NumberFormat::f32;  ///< f32; bf16: activations and what layers multiply,
                                              ///< with f32 sums, routers, masters and moments; f64:
                                              ///< as a reference

    std::filesystem::path trace;           ///< routing is recorded there; empty: not
    int trace_first = 0, trace_every = 1;  ///< from this step on, every so many
    bool trace_gates = true;

    std::filesystem::path checkpoint;  ///< folder; empty: none
    int checkpoint_every = 0;          ///< steps; 0: after the last one alone
    bool resume = false;               ///< go on from the newest checkpoint there
};

/// Seconds of one step on its slowest rank's clock (rank 0's for the parts), by part. They sum to
/// `total`, up to what is in `other`.
struct StepTimes {
    Seconds total, forward, backward;  ///< without the exchanges inside them
    Seconds dispatch, combine;         ///< rows to experts and back, forward and backward together
    Seconds tensor;                    ///< sums over tensor parallel ranks
    Seconds pipeline;   ///< exchanges with the neighbouring stages: mostly waiting (the bubble)
    Seconds gradients;  ///< sums of gradients; the global balance loss's counts; zero1's gathering
    Seconds optimizer;  ///< norm, clipping, AdamW
    Seconds other;      ///< reading text, losses, recording
};

struct StepRecord {
    int step = 0;
    double loss = 0;                      ///< nats a token, mean over the global batch
    double balance_loss = 0, z_loss = 0;  ///< mean over MoE layers, unscaled
    double gradient_norm = 0, learning_rate = 0;
    std::int64_t tokens = 0;  ///< of the global batch
    double tokens_per_second = 0;
    StepTimes times;
    std::vector<double> gate_sum;  ///< [MoE layers] mean Σ of a routed unit's chosen gates
    std::vector<double>
        expert_imbalance;                ///< [MoE layers] busiest expert over the mean, whole step
    std::vector<double> rank_imbalance;  ///< [MoE layers] busiest expert rank over the mean
    double dropped_choices = 0,
           dropped_tokens = 0;  ///< shares of all MoE layers: choices dropped by capacity; tokens
                                ///< of which nothing was kept
    std::optional<double> held_out_loss;
    std::optional<Seconds> machine_pace;  ///< of the machine around the step, where it was asked for
};
Json to_json(const StepRecord&);

struct TrainResult {
    std::vector<StepRecord> steps;
    int first_step = 0;  ///< > 0 if it went on from a checkpoint
    int world_size = 1;
    std::int64_t parameters = 0;  ///< of the whole model
    std::vector<Bytes>
        peak_memory;  ///< [world_size] most bytes of tensors in use, by our allocator
    std::vector<Bytes> modelled_memory;  ///< [world_size] what `memory_by_stage` says of them, at
                                         ///< the expert loads of the run
    std::vector<Seconds>
        busy_by_rank;  ///< [world_size] mean of a step: forward + backward + optimizer
    std::optional<double> held_out_loss;
    std::vector<double>
        held_out_by_domain;  ///< [domains] NaN where a domain has no held-out tokens
    std::string exchange;    ///< how ranks on GPUs reach each other: "nccl", or why through host
                           ///< memory; else empty
    /// This rank's device: stretches of work launched as CUDA graphs, and what it chose by measuring
    /// (which way experts' products are launched).
    GraphedCalls::Counts stretches;
    std::vector<std::string> choices;
    bool stopped = false;  ///< a caller or a signal asked to
};

struct TrainCallbacks {
    /// How fast the machine is (kernels/machine_pace.hpp), asked on every rank around each step and
    /// not counted in it; empty: not asked.
    std::function<Seconds()> machine_pace;
    std::function<void(const StepRecord&)> on_step;  ///< rank 0 alone
    std::function<bool()>
        stop;  ///< asked once a step on every rank; true on any rank ends the run after that step
};

/// The loss was not a number. `what()` names the step and the first layer whose output is not
/// finite.
class Diverged : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// The model with the gates that a run asks for instead of its own.
ModelSpec with_gates(ModelSpec, std::optional<bool> renormalise);

/// @throws InputError: options that do not fit each other or the number of ranks; EnvironmentError:
/// device; Diverged
TrainResult train(const TrainOptions&, Communicator& world, const TrainCallbacks& = {});

/// Loss of a checkpoint on held-out text. @param kept  [MoE layers][num_experts] 1 = may be chosen;
/// empty: all
struct Evaluation {
    double loss = 0;
    std::vector<double> by_domain;
    std::int64_t tokens = 0;
};
Evaluation evaluate(const TrainOptions&, const std::filesystem::path& checkpoint,
                    Communicator& world, const std::vector<std::vector<std::uint8_t>>& kept = {});

/// Text of a few invented domains, each with its own Markov chain over the vocabulary: for tests
/// and machines without a corpus. Learnable: a model gets well below ln(vocab_size).
TokenData synthetic_tokens(int vocab_size, std::int64_t num_tokens, int num_domains, Seed);

}  // namespace moeplan
