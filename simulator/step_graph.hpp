#pragma once
/// What must happen in a step, and what must happen before it: compact, built once, priced often
/// (docs/step.md).
///
/// A *lane* is one pipeline stage. Its ranks with different work are the columns of its prices,
/// never op lists of their own: between two exchanges only the slowest of them matters to the
/// others. Data-parallel replicas are folded into the lane, their traffic is not.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/units.hpp"
#include "model/check.hpp"
#include "profiler/profile.hpp"
#include "simulator/collective.hpp"
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

/// Counts of rows, two bytes each where none needs more: a step has tens of millions of them.
class RoutedRows {
  public:
    RoutedRows() = default;
    explicit RoutedRows(std::vector<std::uint32_t> counts);
    std::size_t size() const { return wide_.empty() ? narrow_.size() : wide_.size(); }
    std::uint32_t operator[](std::size_t i) const { return wide_.empty() ? narrow_[i] : wide_[i]; }

  private:
    std::vector<std::uint16_t> narrow_;
    std::vector<std::uint32_t> wide_;  // else
};

/// What each rank of a lane got in one MoE layer of one micro-batch.
struct ExpertLoads {
    int experts_per_rank = 0;
    std::vector<std::uint32_t>
        rows;  ///< [width, experts_per_rank] of the rank's experts, from all its sources
    RoutedRows traffic;  ///< [width, expert_parallel_size] rows that a source sends to each place
    /// [width, expert_parallel_size], [width, domains] units that a source sends to a place, to a
    /// domain (`StepGraph::place_domain`), at least once; empty: not known, to be estimated.
    std::vector<std::uint32_t> copies, domain_copies;
    std::int64_t units = 0;  ///< routed units (sub-tokens) of one source
    int top_k = 1;
};

enum class Group : std::uint8_t {
    tensor,
    context,
    expert,
    expert_tensor,
    data_context,
    expert_data,
    next_stage,
    previous_stage,
    embedding,
    mirror  ///< DualPipe: the stage across, which holds copies of the same layers
};
/// A demand on the network by key. All groups of the stage exchange at once (replicas are not
/// folded here).
struct ExchangeDemand {
    Collective kind = Collective::all_reduce;
    Group group = Group::tensor;
    std::uint16_t stage = 0;
    Bytes payload;  ///< all_reduce, all_gather, reduce_scatter: the whole buffer; send_recv: one
                    ///< message; all_to_all: one row
    std::int32_t loads = -1;  ///< all_to_all: whose rows
    bool to_experts = true;   ///< all_to_all: dispatch's direction, else the way back
    bool operator==(const ExchangeDemand&) const = default;
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
    /// Where overlap is not walked exactly: demand of the exchange that takes SMs while this job runs.
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

/// Of a GPU's SMs, while an exchange lasts. Messages between stages go by copy engines and few
/// channels: none.
double sm_share(const StepGraph&, const ExchangeDemand&);

/// @throws InputError for a trace that does not fit the model. The layout must have passed
/// `step_findings`.
StepGraph build_step_graph(const StepCase&);

/// Ranks of every group of this demand in its stage, as the network sees them. [groups] of ranks,
/// in group order. send_recv: [pairs] of {source, destination}.
std::vector<std::vector<int>> exchange_groups(const StepGraph&, const ParallelLayout&,
                                              const ExchangeDemand&);
/// Domains of these ranks, counted from 0 in their order.
/// @param domain_of  of each GPU
std::vector<int> domains_in_order(const std::vector<int>& ranks,
                                  const std::function<int(int)>& domain_of);
/// Units that one source of a group sends to a domain at least once: counted where the loads know,
/// else estimated as 1 − (1−q)^k of them, q the share of its choices that goes there.
/// @param rows  of all its choices there
double units_to_domain(const ExpertLoads&, std::size_t source, int domain, int num_domains,
                       bool counted, double rows);
/// x to a whole power, by multiplications alone.
constexpr double power(double x, int n) {
    double out = 1;
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1) out *= x;
    return out;
}
/// Bytes of an all_to_all among one group's members, [size, size], row = source. Local rows stay on
/// the diagonal as zero.
std::vector<double> all_to_all_bytes(const StepGraph&, const ParallelLayout&, const ExchangeDemand&,
                                     Dispatcher, int group);

// ----------------------------------------------------------------------------------------------
// prices of the jobs

/// Time of a job on the slowest rank of its lane: its kernels as one max-plus matrix over (host
/// time H, device time D), simulator/two_queues.hpp.
struct JobPrice {
    double device = 0, host = 0, mixed = 0;
    double sync_first = 0;   ///< > 0: the host waits for what came before, and this long more
    double sync = 0;         ///< > 0: then the host waits for the device, and this long more
    double mean_device = 0;  ///< over the ranks of the lane
    double undisturbed = 1;  ///< share of `device` without what disturbed kernels in their measured
                             ///< medians (simulator/rank_waits.hpp)
    double streamed = 0;     ///< share of `device` in kernels that memory bandwidth bounds, else SMs do
    std::array<double, 4> by_basis{};  ///< seconds of `device` by Basis
    std::int32_t by_rank = -1;         ///< row of JobPrices::ranks; −1: every rank alike
};
struct JobPrices {
    std::vector<JobPrice> jobs;
    std::vector<std::vector<double>> ranks;     ///< [rows][width] device seconds
    std::vector<std::vector<double>> slowdown;  ///< [lanes][width] stragglers; empty: none
    std::vector<double> waits;  ///< [ops] seconds that an exchange waits for the slowest of ranks
                                ///< whose work is the same (simulator/rank_waits.hpp); empty: none
};
JobPrices price_jobs(const StepGraph&, const StepCase&);

}  // namespace moeplan
