#pragma once
/// What must happen in a step, and what must happen before it: compact, built once, priced often
/// (docs/step.md).
///
/// A *lane* is one pipeline stage. Its ranks with different work are the columns of its prices,
/// never op lists of their own: between two exchanges only the slowest of them matters to the
/// others. Data-parallel replicas are folded into the lane, their traffic is not.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.hpp"
#include "profiler/profile.hpp"
#include "simulator/exchange_demand.hpp"
#include "simulator/expert_loads.hpp"
#include "simulator/step.hpp"

namespace moeplan {

enum class Phase : std::uint8_t { forward, recompute, backward, optimizer };
/// FIFO queues of a rank: its kernels, and one for each communicator.
enum class Stream : std::uint8_t {
    compute,
    tensor,
    context,
    expert,
    forward_send,
    backward_send,
    data,
    parameters  ///< gathered on a communicator of their own, so that they can be fetched ahead
};
inline constexpr int kNumStreams = 8;
/// The part of TimeBreakdown an op belongs to.
enum class Part : std::uint8_t {
    compute,
    host,
    tensor_comm,
    context_comm,
    dispatch,
    combine,
    pipeline_comm,
    data_comm,
    bubble,
    optimizer
};
inline constexpr int kNumParts = 10;
Seconds& part_of(TimeBreakdown&, Part);

/// A kernel to price. Rows of experts are not known here: `per_row` calls take them from the loads.
struct KernelCall {
    std::string_view
        kernel;  ///< a name of model/kernel_work.hpp, "gemm", "grouped_gemm", "attention_…"
    KernelShape shape;  ///< grouped_gemm: n, k only; per_row streamed: bytes of one row
    double times =
        1;  ///< so many of them; a share of one where ranks split it (context parallelism)
    bool narrow = false;  ///< runs in the recipe's precision (fp8 …), else in that of activations
    bool per_row = false;  ///< work is proportional to the rows that a rank's experts received
    bool fp32 = false;     ///< optimizer state
    double rate = 1;       ///< of this recipe's products over the best recipe's
    double launches = 1;   ///< by the framework's host thread, of this kernel and the small ones
                           ///< around it
    double bare_launches = 0;  ///< from a compiled loop
    double small_kernels = 0;  ///< beside it, of no work worth pricing: the device's own overhead
};
/// Kernels between two exchanges, in order.
struct Work {
    std::string what;  ///< "attention", "experts", …: the bar in the timeline
    std::vector<KernelCall> calls;
    int syncs = 0;            ///< times the host waits for the device at its end (token counts)
    bool sync_first = false;  ///< the host waits for what came before, then launches
    Seconds host;             ///< host time at its end, beyond launches
    Part part = Part::compute;
};
/// Work with the loads it works on (−1: the same on every rank).
struct Job {
    std::uint32_t work = 0;
    std::int32_t loads = -1;
};

struct Op {
    std::uint16_t lane = 0, layer = 0, micro_batch = 0;
    Phase phase = Phase::forward;
    Stream stream = Stream::compute;
    Part part = Part::compute;
    bool exchange = false;
    bool awaited = false;  ///< the host waits until this kernel could begin, then launches it
    bool beside = false;  ///< a job that an exchange may run beside, and such an exchange: it takes
                          ///< SMs and memory bandwidth from the job for as long as both last
    std::uint32_t demand = 0;  ///< index of a job, or of an exchange's demand
    /// Where overlap is not walked exactly: demand of the exchange that takes SMs while this job
    /// runs.
    std::int32_t under = -1;
};
struct Edge {
    std::uint32_t before = 0, after = 0;
};

struct StepGraph {
    std::vector<Op> ops;
    std::vector<Edge> edges;
    std::vector<Work> works;
    std::vector<Job> jobs;
    std::vector<ExchangeDemand> exchanges;
    std::vector<ExpertLoads> loads;
    std::vector<std::vector<std::uint32_t>>
        slots;  ///< [lanes] first op of each slot of the lane's order, then the end of the last:
                ///< a lane's ops lie side by side
    int num_lanes = 1, width = 1,
        replicas = 1;  ///< ranks of a stage = width · replicas; stages are contiguous
    /// Jobs and exchanges that run at the same time are timed against each other; else a job loses
    /// SMs to the one exchange that begins with it, for as long as that lasts alone.
    bool exact_overlap = false;
    bool takes_turns = false;  ///< micro-batches do on every lane (model/stage_layers.hpp)
    std::vector<double>
        load_imbalance;  ///< [num_moe_layers] mean over micro-batches of max / mean rows by rank
    std::vector<int> place_domain;  ///< [expert_parallel_size] NVLink domain of each place of an
                                    ///< expert group, counted from 0 in the group's order
    std::vector<std::string> assumptions, folded;
    /// Of the SMs, that an exchange among experts and any other collective hold while they last.
    double expert_sm_share = 0, collective_sm_share = 0;
};

/// @throws InputError for a trace that does not fit the model. The layout must have passed
/// `step_findings`.
StepGraph build_step_graph(const StepCase&);

}  // namespace moeplan
