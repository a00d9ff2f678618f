#pragma once
/// Every field of a step report with its key, once: JSON, tables and comparisons walk it. (The
/// timeline is a picture and no field.)

#include <type_traits>

#include "simulator/step.hpp"

namespace moeplan {

template <class Report, class Visit>
void for_each_field(Report& report, Visit&& visit) {
    static_assert(std::is_same_v<std::remove_const_t<Report>, StepReport>);
    visit("fidelity", report.fidelity);
    visit("step_time_s", report.step_time);
    visit("interval_s", report.interval);
    visit("routing_interval_s", report.routing_interval);
    visit("relative_spread", report.relative_spread);
    visit("machine_pace_s", report.machine_pace);
    visit("exposed", report.exposed);
    visit("busy", report.busy);
    visit("tokens_per_second", report.tokens_per_second);
    visit("mfu", report.mfu);
    visit("peak_memory_bytes", report.peak_memory);
    visit("busy_by_rank_s", report.busy_by_rank);
    visit("memory_by_rank", report.memory_by_rank);
    visit("link_use", report.link_use);
    visit("losses", report.losses);
    visit("load_imbalance", report.load_imbalance);
    visit("basis", report.basis);
    visit("assumptions", report.assumptions);
    visit("folded", report.folded);
    visit("made", report.made);
}

/// The parts of a breakdown with their keys.
template <class Breakdown, class Visit>
void for_each_part(Breakdown& parts, Visit&& visit) {
    visit("compute_s", parts.compute);
    visit("host_s", parts.host);
    visit("tensor_comm_s", parts.tensor_comm);
    visit("context_comm_s", parts.context_comm);
    visit("dispatch_s", parts.dispatch);
    visit("combine_s", parts.combine);
    visit("pipeline_comm_s", parts.pipeline_comm);
    visit("data_comm_s", parts.data_comm);
    visit("bubble_s", parts.bubble);
    visit("optimizer_s", parts.optimizer);
}

template <class Share, class Visit>
void for_each_basis(Share& basis, Visit&& visit) {
    visit("measured", basis.measured);
    visit("interpolated", basis.interpolated);
    visit("published", basis.published);
    visit("roofline", basis.roofline);
}

}  // namespace moeplan
