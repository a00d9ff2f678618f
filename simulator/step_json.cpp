/// Step reports as JSON and back, the Chrome trace, and two reports side by side.

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/quantity_text.hpp"
#include "core/text.hpp"
#include "simulator/step_fields.hpp"

namespace moeplan {
namespace {

Json json_of(Fidelity value) { return std::string(name_of(value)); }
Json json_of(double value) { return value; }
Json json_of(Seconds value) { return value.value; }
Json json_of(Bytes value) { return value.value; }
Json json_of(const std::string& value) { return value; }
Json json_of(const std::optional<double>& value) { return value ? Json(*value) : Json(); }
Json json_of(const std::optional<std::array<Seconds, 2>>& value) {
    return value ? Json::array({(*value)[0].value, (*value)[1].value}) : Json();
}
Json json_of(const TimeBreakdown& parts) {
    Json out = Json::object();
    for_each_part(parts, [&](const char* key, Seconds time) { out[key] = time.value; });
    return out;
}
Json json_of(const BasisShare& basis) {
    Json out = Json::object();
    for_each_basis(basis, [&](const char* key, double share) { out[key] = share; });
    return out;
}
Json json_of(const LinkUse& use) {
    return Json{{"link", use.link}, {"busy", use.busy}, {"bytes", use.carried.value}};
}
Json json_of(const Loss& loss) {
    return Json{{"what", loss.what}, {"time_s", loss.time.value}, {"remedy", loss.remedy}};
}
Json json_of(const Provenance& made) {
    return Json{{"version", made.version},
                {"seed", made.seed},
                {"digests", Json{{"case", made.case_digest}}}};
}
Json json_of(const MemoryPoint& point) {
    return Json{{"time_s", point.time.value}, {"bytes", point.bytes.value}};
}
template <class T>
Json json_of(const std::vector<T>& values);
Json json_of(const RankMemory& memory) {
    return Json{{"rank", memory.rank}, {"points", json_of(memory.points)}};
}
template <class T>
Json json_of(const std::vector<T>& values) {
    Json out = Json::array();
    for (const T& value : values) out.push_back(json_of(value));
    return out;
}

void read(const JsonReader& at, Fidelity& out) { out = at.choice<Fidelity>(); }
void read(const JsonReader& at, double& out) { out = at.number(); }
void read(const JsonReader& at, Seconds& out) { out = Seconds{at.number()}; }
void read(const JsonReader& at, Bytes& out) { out = Bytes{at.number(0)}; }
void read(const JsonReader& at, std::string& out) { out = at.text(); }
void read(const JsonReader& at, std::optional<double>& out) { out = at.number(); }
void read(const JsonReader& at, std::optional<std::array<Seconds, 2>>& out) {
    if (!at.is_array() || at.size() != 2) at.fail("two times, [low, high]");
    out = {{Seconds{at.at(std::size_t{0}).number()}, Seconds{at.at(std::size_t{1}).number()}}};
}
void read(const JsonReader& at, TimeBreakdown& out) {
    for_each_part(out,
                  [&](const char* key, Seconds& time) { time = Seconds{at.at(key).number()}; });
}
void read(const JsonReader& at, BasisShare& out) {
    for_each_basis(out,
                   [&](const char* key, double& share) { share = at.at(key).number(0, 1 + 1e-9); });
}
void read(const JsonReader& at, LinkUse& out) {
    out = {at.at("link").text(), at.at("busy").number(0), Bytes{at.at("bytes").number(0)}};
}
void read(const JsonReader& at, Loss& out) {
    out = {at.at("what").text(), at.at("remedy").text(), Seconds{at.at("time_s").number()}};
}
void read(const JsonReader& at, Provenance& out) {
    out.version = at.at("version").text();
    out.seed = static_cast<std::uint64_t>(at.at("seed").integer(0));
    if (const auto digests = at.find("digests"))
        if (const auto digest = digests->find("case")) out.case_digest = digest->text();
}
void read(const JsonReader& at, MemoryPoint& out) {
    out = {Seconds{at.at("time_s").number(0)}, Bytes{at.at("bytes").number(0)}};
}
template <class T>
void read(const JsonReader& at, std::vector<T>& out);
void read(const JsonReader& at, RankMemory& out) {
    out.rank = at.at("rank").count();
    read(at.at("points"), out.points);
}
template <class T>
void read(const JsonReader& at, std::vector<T>& out) {
    out.clear();
    for (const JsonReader& item : at.items()) read(item, out.emplace_back());
}

template <class T>
inline constexpr bool kMayBeAbsent = false;
template <class T>
inline constexpr bool kMayBeAbsent<std::optional<T>> = true;
template <>
inline constexpr bool kMayBeAbsent<std::vector<RankMemory>> = true;

}  // namespace

Json to_json(const StepReport& report) {
    Json out = json_header("report");
    for_each_field(report, [&](const char* key, const auto& value) { out[key] = json_of(value); });
    return out;
}

StepReport report_from_json(const JsonReader& reader) {
    StepReport report;
    for_each_field(report, [&](const char* key, auto& value) {
        const auto found = reader.find(key);
        if (found)
            read(*found, value);
        else if (!kMayBeAbsent<std::remove_reference_t<decltype(value)>>)
            reader.at(key);  // says what is missing
    });
    return report;
}

namespace {

/// Microseconds, which the format counts in, to whole nanoseconds: both ends of a bar are rounded
/// alike, so bars that met still do.
double trace_time(Seconds time) { return std::round(time.value * 1e9) / 1e3; }

Json trace_name(const char* what, std::int64_t pid, const std::string& name) {
    return Json{{"ph", "M"}, {"name", what}, {"pid", pid}, {"args", {{"name", name}}}};
}
Json trace_place(const char* what, std::int64_t pid, std::int64_t place) {
    return Json{{"ph", "M"}, {"name", what}, {"pid", pid}, {"args", {{"sort_index", place}}}};
}
Json trace_counter(const std::string& name, std::int64_t pid, Seconds time, const char* unit,
                   double value) {
    return Json{{"ph", "C"},
                {"name", name},
                {"pid", pid},
                {"ts", trace_time(time)},
                {"args", {{unit, value}}}};
}

/// "rank 200, stage 3": memory is listed by stage, from the stage's first rank on.
std::string rank_name(const StepReport& report, int rank) {
    const auto& stages = report.memory_by_rank;
    const auto after = std::find_if(stages.begin(), stages.end(),
                                    [&](const RankMemory& stage) { return stage.rank > rank; });
    return "rank " + std::to_string(rank) +
           (stages.size() > 1 ? ", stage " + std::to_string(after - stages.begin() - 1) : "");
}

/// Where a stream stands among those of its rank.
std::int64_t stream_place(const std::string& stream) {
    static const std::vector<std::string> order = {"compute", "experts",      "tensor",
                                                   "context", "send forward", "send backward",
                                                   "data",    "parameters"};
    return std::find(order.begin(), order.end(), stream) - order.begin();
}

}  // namespace

std::string chrome_trace(const StepReport& report) {
    Json events = Json::array();
    std::map<std::pair<int, std::string>, std::size_t> threads;  // each has a number of its own
    std::set<int> ranks;
    std::vector<std::pair<double, Json>> timed;
    for (const auto& bar : report.timeline) {
        if (ranks.insert(bar.rank).second) {
            events.push_back(trace_name("process_name", bar.rank, rank_name(report, bar.rank)));
            events.push_back(trace_place("process_sort_index", bar.rank, bar.rank));
        }
        const auto [thread, added] =
            threads.emplace(std::pair(bar.rank, bar.stream), threads.size() + 1);
        if (added)
            for (Json event :
                 {trace_name("thread_name", bar.rank, bar.stream),
                  trace_place("thread_sort_index", bar.rank, stream_place(bar.stream))}) {
                event["tid"] = thread->second;
                events.push_back(std::move(event));
            }
        if (!(bar.end > bar.begin)) continue;
        const double begin = trace_time(bar.begin), end = trace_time(bar.end);
        timed.emplace_back(begin, Json{{"ph", "X"},
                                       {"name", bar.what},
                                       {"pid", bar.rank},
                                       {"tid", thread->second},
                                       {"ts", begin},
                                       {"dur", std::round((end - begin) * 1e3) / 1e3}});
    }
    for (const RankMemory& stage : report.memory_by_rank)
        if (ranks.contains(stage.rank))
            for (const MemoryPoint& point : stage.points)
                timed.emplace_back(
                    trace_time(point.time),
                    trace_counter("memory of the stage's fullest rank", stage.rank, point.time,
                                  "bytes", std::round(point.bytes.value)));
    if (!report.link_history.empty()) {
        const auto pid = static_cast<std::int64_t>(report.peak_memory.size());  // after the last rank
        events.push_back(trace_name("process_name", pid, "links"));
        events.push_back(trace_place("process_sort_index", pid, pid));
        for (const LinkHistory& curve : report.link_history)
            for (const LinkPoint& point : curve.points)
                timed.emplace_back(trace_time(point.time),
                                   trace_counter(curve.link, pid, point.time, "busy", point.busy));
    }
    std::stable_sort(timed.begin(), timed.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& [time, event] : timed) events.push_back(std::move(event));
    Json out;
    out["displayTimeUnit"] = "ms";
    out["traceEvents"] = std::move(events);
    return out.dump() + "\n";
}

std::vector<FieldPair> compare_reports(const StepReport& a, const StepReport& b) {
    std::vector<FieldPair> out;
    const auto text = [](const Json& value) {
        return value.is_null()     ? std::string("–")
               : value.is_string() ? value.get<std::string>()
                                   : value.dump();
    };
    const auto add = [&](const std::string& field, const Json& left, const Json& right) {
        FieldPair pair{field, text(left), text(right), {}};
        if (left.is_number() && right.is_number() && left.get<double>() != 0)
            pair.ratio = right.get<double>() / left.get<double>();
        out.push_back(std::move(pair));
    };
    const Json left = to_json(a), right = to_json(b);
    for_each_field(a, [&](const char* key, const auto&) {
        const Json &l = left[key], &r = right[key];
        if (l.is_object()) {
            for (const auto& [part, value] : l.items())
                add(std::string(key) + "." + part, value, r[part]);
        } else if (l.is_array() && !l.empty() && l.front().is_number() && r.is_array() &&
                   !r.empty()) {
            // many ranks or layers: the largest tells them apart
            double most_left = 0, most_right = 0;
            for (const auto& value : l) most_left = std::max(most_left, value.get<double>());
            for (const auto& value : r)
                most_right = std::max(most_right, value.template get<double>());
            add(std::string(key) + " (largest)", most_left, most_right);
        } else if (l.is_array()) {
            add(std::string(key) + " (count)", l.size(), r.size());
        } else {
            add(key, l, r);
        }
    });
    return out;
}

}  // namespace moeplan
