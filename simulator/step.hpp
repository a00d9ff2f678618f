#pragma once
/// The one door between answering and asking: a case in, a report out, at either fidelity.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/enum_names.hpp"
#include "core/json.hpp"
#include "core/units.hpp"
#include "model/check.hpp"
#include "model/model_spec.hpp"
#include "model/parallel_layout.hpp"
#include "model/step_schedule.hpp"
#include "profiler/profile.hpp"
#include "simulator/cluster_spec.hpp"
#include "simulator/expert_placement.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {

/// Where no recorded trace fits the model; every answer that rests on it says so.
struct SyntheticRouting {
    std::string kind =
        "balanced";       ///< balanced, multinomial, zipf, hot, document_pools, token_drop
    double exponent = 0;  ///< zipf
    double document_concentration =
        0;  ///< E·ρ (docs/routing.md): over-dispersion of a document's choices
    bool operator==(const SyntheticRouting&) const = default;
};
const std::vector<std::string>& synthetic_routing_kinds();  ///< the words of `kind`

/// Things that go wrong on purpose.
struct Disturbances {
    std::vector<std::pair<int, double>> stragglers;  ///< rank, compute slows by this factor
    std::vector<std::pair<std::string, double>>
        link_faults;  ///< link name, its bandwidth is multiplied by this
};

struct StepCase {
    ModelSpec model;
    ClusterSpec cluster;
    ParallelLayout layout;
    StepSchedule schedule;
    std::shared_ptr<const Profile> profile;  ///< shared by thousands of cases, never changed
    std::variant<SyntheticRouting, std::shared_ptr<const TraceReader>> routing;
    /// Where experts and their copies lie; absent: equal blocks in order.
    std::shared_ptr<const ExpertPlacement> placement;
    std::uint64_t seed = 0;
    /// How many micro-batches have a routing of their own; the others take theirs in turn. 0: all.
    /// A sample for where thousands of draws would only be averaged.
    int distinct_micro_batches = 0;
    Disturbances disturbances;
    bool keep_timeline = false;  ///< fill StepReport::timeline; changes no figure
};

enum class Fidelity : std::uint8_t {
    closed_form,
    flow,
    real_run
};  ///< spelled closed-form, flow, real-run in answers

/// Parts of a step; in StepReport::exposed they sum to step_time along the critical path.
struct TimeBreakdown {
    Seconds compute, host, tensor_comm, context_comm, dispatch, combine, pipeline_comm, data_comm,
        bubble, optimizer;
    Seconds total() const {
        return compute + host + tensor_comm + context_comm + dispatch + combine + pipeline_comm +
               data_comm + bubble + optimizer;
    }
};
struct BasisShare {
    double measured = 0, interpolated = 0, published = 0, roofline = 0;
};  ///< of the step's kernel time
struct Provenance {
    std::string version, case_digest;
    std::uint64_t seed = 0;
};
struct LinkUse {
    std::string link;
    double busy = 0;
    Bytes carried;
};
struct Loss {
    std::string what, remedy;
    Seconds time;
};

/// Bytes that the fullest rank of a stage holds from this time on.
struct MemoryPoint {
    Seconds time;
    Bytes bytes;
};
struct RankMemory {
    int rank = 0;
    std::vector<MemoryPoint> points;
};

/// One bar of the picture: what a stream of a rank did. Filled when asked for (timeline), else
/// empty.
struct TimelineBar {
    int rank = 0;
    std::string stream, what;
    Seconds begin, end;
};

/// How busy a link is from this time on: 1 is its whole bandwidth. Each exchange counts as if it sent
/// evenly from its begin to its end.
struct LinkPoint {
    Seconds time;
    double busy = 0;
};
struct LinkHistory {
    std::string link;
    std::vector<LinkPoint> points;
};

struct StepReport {
    Fidelity fidelity = Fidelity::closed_form;
    Seconds step_time;
    std::optional<std::array<Seconds, 2>> interval;  ///< 80 %
    std::optional<std::array<Seconds, 2>>
        routing_interval;         ///< spread over routing alone, part of `interval`
    TimeBreakdown exposed, busy;  ///< what the step waits for; the same parts, waited for or hidden
    double tokens_per_second = 0, mfu = 0;
    std::vector<Bytes> peak_memory;          ///< [world_size]
    std::vector<Seconds> busy_by_rank;       ///< [world_size]
    std::vector<RankMemory> memory_by_rank;  ///< over time, one rank of each stage
    std::vector<LinkUse> link_use;           ///< the busiest first
    std::vector<Loss> losses;                ///< the largest, in words, with what would reduce them
    std::vector<double> load_imbalance;      ///< [num_moe_layers], max over mean of tokens per rank
    std::vector<std::string> assumptions,
        folded;  ///< what was taken for granted; what was simulated once for many
    std::optional<double> relative_spread;  ///< of step_time; measured runs only
    std::optional<double> machine_pace;  ///< seconds of a reference piece (kernels/machine_pace.hpp)
                                         ///< around the steps; measured runs on a CPU only
    BasisShare basis;
    Provenance made;
    std::vector<TimelineBar> timeline;
    std::vector<LinkHistory> link_history;  ///< of the busiest links; filled with the timeline
};

/// Walks every field with its JSON key: JSON, CSV, the table for people and the comparison all use
/// it, so a new field appears in all or none. `visit(key, value)` with Seconds, double, Bytes,
/// optional, vector and the small structs above.
template <class Report, class Visit>
void for_each_field(Report& report, Visit&& visit);  // simulator/step_fields.hpp

using StepRunner = std::function<StepReport(const StepCase&)>;

/// What forbids a step (Severity::broken: rules of the layout, memory, what is not simulated yet),
/// and warnings.
std::vector<Finding> step_findings(const StepCase&);

/// Experts that the fullest rank of any layer holds, over its equal part: 1 without a placement.
double expert_copies(const StepCase&);

Seconds lower_bound(const StepCase&);  ///< a bound from per-stage sums, microseconds to compute
StepReport estimate_step(const StepCase&);  ///< closed form: milliseconds
StepReport simulate_step(const StepCase&);  ///< flows: contention, stragglers, overlap
// measure_step, a real run, lives in planner/real_run.hpp

std::string digest_of(const StepCase&);

/// A whole case as one file: what another process needs to simulate it.
/// @param trace  where the recorded routing lies, if the case has one
Json to_json(const StepCase&, const std::string& trace = "");
StepCase step_case_from_json(const JsonReader&);  ///< @throws InputError

Json to_json(const StepReport&);
StepReport report_from_json(const JsonReader&);  ///< @throws InputError

/// The report with the spread of `samples` seeds (routing drawn anew, or other windows of the
/// trace): an 80 % interval.
StepReport with_samples(const StepCase&, const StepRunner&, int samples);

/// Chrome-trace JSON of a report with a timeline; Perfetto opens it. Ranks are processes, streams
/// threads; the busiest links are counters of a process of their own.
std::string chrome_trace(const StepReport&);

/// Two reports field by field: key, both values, and their ratio where they are numbers.
struct FieldPair {
    std::string field;
    std::string a, b;
    std::optional<double> ratio;  ///< b / a
};
std::vector<FieldPair> compare_reports(const StepReport& a, const StepReport& b);

template <>
const EnumNames<Fidelity>& enum_names<Fidelity>();

}  // namespace moeplan
