#pragma once
/// What an op asks of the network: a collective of a group of ranks, by key, and who they are and
/// what each sends.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/units.hpp"
#include "model/parallel_layout.hpp"
#include "model/step_schedule.hpp"
#include "simulator/collective.hpp"

namespace moeplan {

struct ExpertLoads;
struct StepGraph;

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

/// Ranks of every group of this demand in its stage, as the network sees them. [groups] of ranks,
/// in group order. send_recv: [pairs] of {source, destination}.
std::vector<std::vector<int>> exchange_groups(const StepGraph&, const ParallelLayout&,
                                              const ExchangeDemand&);

/// Domains of these ranks, counted from 0 in their order.
/// @param domain_of  of each GPU
std::vector<int> domains_in_order(const std::vector<int>& ranks,
                                  const std::function<int(int)>& domain_of);

/// Bytes of an all_to_all among one group's members, [size, size], row = source. Local rows stay on
/// the diagonal as zero.
std::vector<double> all_to_all_bytes(const StepGraph&, const ParallelLayout&, const ExchangeDemand&,
                                     Dispatcher, int group);

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

/// Of a GPU's SMs, while an exchange lasts. Messages between stages go by copy engines and few
/// channels: none.
double sm_share(const StepGraph&, const ExchangeDemand&);

}  // namespace moeplan
