/// Step reports as JSON and back, the Chrome trace, and two reports side by side.

#include <cmath>
#include <nlohmann/json.hpp>

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

std::string chrome_trace(const StepReport& report) {
    Json events = Json::array();
    std::vector<std::pair<int, std::string>> threads;
    for (const auto& bar : report.timeline) {
        std::size_t thread = 0;
        while (thread < threads.size() && threads[thread] != std::pair(bar.rank, bar.stream))
            ++thread;
        if (thread == threads.size()) {
            threads.emplace_back(bar.rank, bar.stream);
            events.push_back(Json{{"ph", "M"},
                                  {"name", "process_name"},
                                  {"pid", bar.rank},
                                  {"args", {{"name", "rank " + std::to_string(bar.rank)}}}});
            events.push_back(Json{{"ph", "M"},
                                  {"name", "thread_name"},
                                  {"pid", bar.rank},
                                  {"tid", thread},
                                  {"args", {{"name", bar.stream}}}});
        }
        if (bar.end > bar.begin)
            events.push_back(Json{{"ph", "X"},
                                  {"name", bar.what},
                                  {"pid", bar.rank},
                                  {"tid", thread},
                                  {"ts", bar.begin.value * 1e6},
                                  {"dur", (bar.end - bar.begin).value * 1e6}});
    }
    if (!report.link_history.empty()) {
        const auto pid = static_cast<std::int64_t>(report.peak_memory.size());  // after the last rank
        events.push_back(Json{
            {"ph", "M"}, {"name", "process_name"}, {"pid", pid}, {"args", {{"name", "links"}}}});
        for (const LinkHistory& curve : report.link_history)
            for (const LinkPoint& point : curve.points)
                events.push_back(Json{{"ph", "C"},
                                      {"name", curve.link},
                                      {"pid", pid},
                                      {"ts", point.time.value * 1e6},
                                      {"args", {{"busy", point.busy}}}});
    }
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
