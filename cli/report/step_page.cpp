#include "cli/report/step_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "cli/report/values.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"

namespace moeplan::cli {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr std::size_t kMostBars = 64, kMostCurves = 8, kLinksListed = 8, kLinksDrawn = 3;

/// What draws of the routing add to the range.
std::string routing_words(const std::vector<double>& interval) {
    if (interval.size() != 2) return ".";
    const Seconds low{interval[0]}, high{interval[1]};
    if (to_text(low) == to_text(high)) return "; drawing the routing anew hardly moves the step.";
    return "; drawing the routing anew moves the step within " + range_text(low, high) +
           ", which is counted in.";
}

void add_figures(Page& page, const JsonReader& r) {
    const auto fidelity = r.text_or("fidelity", "");
    std::vector<std::pair<std::string, std::string>> figures = {
        {to_text(Seconds{r.at("step_time_s").number()}),
         "a step" + (fidelity.empty() ? "" : ", " + fidelity)}};
    const auto interval = numbers(r.find("interval_s")),
               routing = numbers(r.find("routing_interval_s"));
    if (interval.size() == 2)
        figures.push_back(
            {range_text(Seconds{interval[0]}, Seconds{interval[1]}),
             "80 % of runs like it" + std::string(routing.empty() ? "" : " and draws")});
    figures.push_back({rounded_text(r.number_or("tokens_per_second", 0)), "tokens a second"});
    if (r.has("mfu")) figures.push_back({percent(r.number_or("mfu", 0)), "of peak flops (MFU)"});
    const auto memory = numbers(r.find("peak_memory_bytes"));
    if (!memory.empty())
        figures.push_back({to_text(Bytes{*std::max_element(memory.begin(), memory.end())}),
                           "memory of the fullest rank"});
    page.figures(figures);
    if (interval.size() == 2)
        page.paragraph(
            "The range holds 80 % of measured steps of runs like this one, by how far they lay "
            "from what was predicted of them" +
            routing_words(routing));
}

void add_parts(Page& page, const JsonReader& r) {
    Chart parts{.kind = ChartKind::bars, .title = "Where the step goes", .x_axis = "seconds"};
    parts.horizontal = true;
    parts.words =
        "What the step waits for adds up to the step; work that is not waited for is hidden behind "
        "other work.";
    Series exposed{.name = "waited for"}, busy{.name = "at work"};
    const auto busy_parts = r.find("busy");
    for (const auto& [key, value] : r.at("exposed").members()) {
        // Nothing works in a bubble.
        const double works = busy_parts && key != "bubble_s" ? busy_parts->number_or(key, 0) : 0;
        if (value.number() <= 0 && works <= 0) continue;
        parts.categories.push_back(spaced(key));
        exposed.points.push_back({0, value.number()});
        busy.points.push_back({0, works});
    }
    parts.series = {exposed, busy};
    page.chart(parts);
}

void add_losses(Page& page, const JsonReader& r) {
    const auto losses = r.find("losses");
    if (!losses || losses->size() == 0) return;
    std::vector<std::vector<std::string>> rows;
    for (const auto& loss : losses->items())
        rows.push_back({to_text(Seconds{loss.at("time_s").number()}), loss.at("what").text(),
                        loss.at("remedy").text()});
    page.table({"lost", "to", "what would help"}, rows);
}

/// First rank of each stage, by the ranks whose memory is listed.
std::vector<std::size_t> stage_begins(const JsonReader& r, std::size_t ranks) {
    std::vector<std::size_t> out;
    if (const auto by_rank = r.find("memory_by_rank"); by_rank && by_rank->is_array())
        for (const auto& entry : by_rank->items())
            out.push_back(static_cast<std::size_t>(entry.count_or("rank", 0)));
    const bool whole = !out.empty() && out.front() == 0 && out.back() < ranks &&
                       std::is_sorted(out.begin(), out.end());
    return whole ? out : std::vector<std::size_t>{0};
}

/// Of which ranks the kernels work longest and shortest, in words.
std::string extremes(const std::vector<double>& busy) {
    std::vector<std::size_t> order(busy.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return busy[a] > busy[b]; });
    // Alike to a thousandth: nothing to name.
    if (busy[order.front()] <= 1.001 * busy[order.back()]) return " All ranks work alike.";
    const auto named = [&](std::size_t rank) {
        return fmt::format("rank {} ({})", rank, to_text(Seconds{busy[rank]}));
    };
    std::vector<std::string> longest;
    for (std::size_t i = 0; i < std::min<std::size_t>(3, order.size() - 1); ++i)
        longest.push_back(named(order[i]));
    return " Longest: " + join(longest, ", ") + "; shortest: " + named(order.back()) + ".";
}

Chart kernels_by_stage(const std::vector<double>& busy, const std::vector<std::size_t>& begins) {
    Chart chart{.kind = ChartKind::bars,
                .title = "Kernels, by pipeline stage",
                .x_axis = "stage",
                .y_axis = "seconds"};
    Series least{.name = "least busy rank"}, middle{.name = "median rank"},
        most{.name = "busiest rank"};
    for (std::size_t s = 0; s < begins.size(); ++s) {
        const std::size_t end = s + 1 < begins.size() ? begins[s + 1] : busy.size();
        std::vector<double> of(busy.begin() + static_cast<std::ptrdiff_t>(begins[s]),
                               busy.begin() + static_cast<std::ptrdiff_t>(end));
        std::sort(of.begin(), of.end());
        chart.categories.push_back(std::to_string(s));
        least.points.push_back({0, of.front()});
        middle.points.push_back({0, of[of.size() / 2]});
        most.points.push_back({0, of.back()});
    }
    chart.series = {least, middle, most};
    return chart;
}

Chart kernels_by_rank(const std::vector<double>& busy) {
    Chart chart{.kind = ChartKind::bars,
                .title = "Kernels, rank by rank",
                .x_axis = "rank",
                .y_axis = "seconds"};
    Series series;
    if (busy.size() <= kMostBars) {
        for (std::size_t i = 0; i < busy.size(); ++i) {
            chart.categories.push_back(std::to_string(i));
            series.points.push_back({0, busy[i]});
        }
    } else {
        std::vector<double> sorted = busy;
        std::sort(sorted.begin(), sorted.end());
        chart.kind = ChartKind::line;
        chart.title = "Kernels of all ranks, from the least busy to the busiest";
        chart.x_axis = "ranks";
        for (const std::size_t i : evenly(sorted.size(), kMostPoints))
            series.points.push_back({static_cast<double>(i), sorted[i]});
    }
    chart.series = {series};
    return chart;
}

void add_kernels(Page& page, const JsonReader& r) {
    const auto busy = numbers(r.find("busy_by_rank_s"));
    if (busy.size() < 2) return;
    const auto begins = stage_begins(r, busy.size());
    // A rank a stage: by rank says the same.
    Chart chart = begins.size() > 1 && busy.size() > begins.size() && busy.size() > kMostBars
                      ? kernels_by_stage(busy, begins)
                      : kernels_by_rank(busy);
    chart.words =
        "How long the kernels of a rank work; the rest of the step it waits." + extremes(busy);
    const double most = *std::max_element(busy.begin(), busy.end());
    if (number_at(r, {"busy", "compute_s"}, 0) > 1.01 * most)
        chart.words +=
            " Compute of the whole step is more: it counts each layer at its slowest rank.";
    page.chart(chart);
}

void add_memory(Page& page, const JsonReader& r) {
    const auto by_rank = r.find("memory_by_rank");
    if (!by_rank || !by_rank->is_array() || by_rank->size() == 0) return;
    Chart chart{.kind = ChartKind::line,
                .title = "Memory over the step",
                .x_axis = "seconds",
                .y_axis = "GiB",
                .words = by_rank->size() > 1
                             ? "What the fullest rank of a pipeline stage holds, from begin to end."
                             : "What the fullest rank holds, from begin to end of the step."};
    for (const std::size_t i : evenly(by_rank->size(), kMostCurves)) {
        const auto& points = by_rank->at(i).at("points");
        Series series{.name = by_rank->size() > 1 ? "stage " + std::to_string(i) : ""};
        for (const std::size_t p : evenly(points.size(), kMostPoints))
            series.points.push_back(
                {points.at(p).at("time_s").number(), points.at(p).at("bytes").number() / kGiB});
        chart.series.push_back(std::move(series));
    }
    page.chart(chart);
}

void add_imbalance(Page& page, const JsonReader& r) {
    const auto imbalance = numbers(r.find("load_imbalance"));
    if (imbalance.size() < 2) return;
    Chart chart{.kind = ChartKind::bars,
                .title = "Load of the fullest expert rank, over the mean",
                .x_axis = "MoE layer",
                .y_axis = "max / mean",
                .words = "1 is perfect balance; the layer waits for its fullest rank."};
    Series series;
    for (std::size_t i = 0; i < imbalance.size(); ++i) {
        chart.categories.push_back(std::to_string(i));
        series.points.push_back({0, imbalance[i]});
    }
    chart.series = {series};
    page.chart(chart);
}

void add_links(Page& page, const JsonReader& r) {
    const auto links = r.find("link_use");
    if (!links || links->size() == 0) return;
    std::vector<std::vector<std::string>> rows;
    for (const auto& link : links->items()) {
        if (rows.size() >= kLinksListed) break;
        rows.push_back({link.at("link").text(), percent(link.at("busy").number()),
                        to_text(Bytes{link.at("bytes").number()})});
    }
    page.table({"busiest links", "busy, mean of the step", "carried"}, rows);
}

void add_basis(Page& page, const JsonReader& r) {
    if (const auto basis = r.find("basis")) {
        std::vector<std::string> shares;
        for (const auto& [key, value] : basis->members())
            if (value.number() > 0) shares.push_back(percent(value.number()) + " " + key);
        page.paragraph("Kernel times rest on: " + join(shares, ", ") + ".");
    }
    auto taken = texts(r.find("assumptions"));
    for (const auto& folded : texts(r.find("folded"))) taken.push_back(folded);
    if (!taken.empty()) {
        page.paragraph("Taken for granted:");
        page.list(taken);
    }
}

// A timeline.

struct Bar {
    long long rank = 0;
    std::string stream, what;
    double begin = 0, end = 0;
};

struct Trace {
    std::vector<Bar> bars;
    std::map<long long, std::string> names;                           ///< of ranks
    std::map<std::string, std::vector<std::array<double, 2>>> links;  ///< time, busy from then on
    double end = 0;
};

Trace read_trace(const JsonReader& r) {
    Trace out;
    std::map<std::pair<long long, long long>, std::string> threads;
    const auto events = r.at("traceEvents");
    for (const auto& event : events.items()) {
        if (!event.is_object() || event.text_or("ph", "") != "M" || !event.at("pid").is_number())
            continue;
        const std::string name = event.text_or("name", "");
        if (name == "process_name")
            out.names[event.at("pid").integer()] = event.at("args").at("name").text();
        if (name == "thread_name")
            threads[{event.at("pid").integer(), event.at("tid").integer()}] =
                event.at("args").at("name").text();
    }
    for (const auto& event : events.items()) {
        if (!event.is_object()) continue;
        const std::string phase = event.text_or("ph", "");
        if ((phase != "X" && phase != "C") || !event.at("pid").is_number()) continue;
        const double begin = event.at("ts").number() / 1e6;
        if (phase == "C") {
            if (const auto args = event.find("args"); args && args->has("busy"))
                out.links[event.at("name").text()].push_back({begin, args->at("busy").number()});
            continue;
        }
        const long long rank = event.at("pid").integer();
        const auto thread = threads.find({rank, event.at("tid").integer()});
        out.bars.push_back({rank, thread == threads.end() ? "" : thread->second,
                            event.at("name").text(), begin,
                            begin + event.at("dur").number(0) / 1e6});
        out.end = std::max(out.end, out.bars.back().end);
    }
    return out;
}

/// Of each of some stages the rank whose kernels work longest.
std::vector<long long> ranks_to_show(const Trace& trace) {
    std::map<long long, double> works;
    for (const Bar& bar : trace.bars)
        works[bar.rank] += bar.stream == "compute" ? bar.end - bar.begin : 0;
    std::map<std::string, long long> busiest;
    std::vector<std::string> stages;
    for (const auto& [rank, time] : works) {
        const auto name = trace.names.find(rank);
        const auto at =
            name == trace.names.end() ? std::string::npos : name->second.find(", stage ");
        const std::string stage =
            at == std::string::npos ? std::to_string(rank) : name->second.substr(at);
        const auto [found, added] = busiest.emplace(stage, rank);
        if (added) stages.push_back(stage);
        if (time > works[found->second]) found->second = rank;
    }
    std::vector<long long> out;
    for (const std::size_t i : evenly(stages.size(), kMostCurves))
        out.push_back(busiest[stages[i]]);
    return out;
}

std::string part_of(const Bar& bar) {
    const auto has = [&](const char* word) { return bar.what.find(word) != std::string::npos; };
    if (bar.what.starts_with("optimizer")) return "optimizer";
    if (bar.stream == "compute")
        return has("backward") ? "backward" : has("recompute") ? "recompute" : "forward";
    if (bar.what.starts_with("dispatch")) return "dispatch";
    if (bar.what.starts_with("combine")) return "combine";
    if (bar.stream.starts_with("send")) return "pipeline_comm";
    if (bar.stream == "data" || bar.stream == "parameters") return "data_comm";
    if (bar.stream == "tensor") return "tensor_comm";
    return bar.stream == "host" ? "host" : "context_comm";
}

/// Streams that seldom have anything to say share a row.
std::string row_of(const std::string& stream) {
    return stream.starts_with("send") ? "sends" : stream == "parameters" ? "data" : stream;
}

/// Where nothing of a rank runs.
std::vector<TimeBar> idle_of(const std::vector<Bar>& bars, double end, const std::string& group) {
    std::vector<std::array<double, 2>> works;
    for (const Bar& bar : bars) works.push_back({bar.begin, bar.end});
    std::sort(works.begin(), works.end());
    std::vector<TimeBar> out;
    double until = 0;
    const auto add = [&](double to) {
        if (to - until > end / 2000)
            out.push_back({"compute", "idle", "idle", Seconds{until}, Seconds{to}, group});
    };
    for (const auto& [from, to] : works) {
        add(from);
        until = std::max(until, to);
    }
    add(end);
    return out;
}

/// Neighbours that a screen could not tell apart are drawn as one.
std::vector<TimeBar> merged(std::vector<TimeBar> bars, double end) {
    constexpr double kPixels = 1500;  // of a wide screen
    std::stable_sort(bars.begin(), bars.end(), [](const TimeBar& a, const TimeBar& b) {
        return std::tuple(a.row, a.begin.value) < std::tuple(b.row, b.begin.value);
    });
    std::vector<TimeBar> out;
    std::size_t count = 1;
    for (TimeBar& bar : bars) {
        if (!out.empty() && out.back().row == bar.row && out.back().part == bar.part &&
            (bar.begin - out.back().end).value < end / kPixels) {
            if (++count == 2) out.back().what += " and next";
            out.back().end = std::max(out.back().end, bar.end);
        } else {
            out.push_back(std::move(bar));
            count = 1;
        }
    }
    return out;
}

std::vector<TimeBar> bars_of(const Trace& trace, long long rank) {
    static const std::vector<std::string> order = {"compute", "experts", "tensor",
                                                   "context", "sends",   "data"};
    const auto name = trace.names.find(rank);
    const std::string group =
        name == trace.names.end() ? "rank " + std::to_string(rank) : name->second;
    std::vector<Bar> mine;
    for (const Bar& bar : trace.bars)
        if (bar.rank == rank) mine.push_back(bar);
    std::vector<TimeBar> out;
    for (const Bar& bar : mine)
        out.push_back({row_of(bar.stream), bar.what, part_of(bar), Seconds{bar.begin},
                       Seconds{bar.end}, group});
    out = merged(std::move(out), trace.end);
    const auto idle = idle_of(mine, trace.end, group);
    out.insert(out.end(), idle.begin(), idle.end());
    const auto place = [&](const TimeBar& bar) {
        return std::find(order.begin(), order.end(), bar.row) - order.begin();
    };
    std::stable_sort(out.begin(), out.end(),
                     [&](const TimeBar& a, const TimeBar& b) { return place(a) < place(b); });
    return out;
}

/// How busy links are in even slices of the step.
void add_link_history(Page& page, const Trace& trace) {
    if (trace.links.empty() || !(trace.end > 0)) return;
    constexpr std::size_t kSlices = 120;
    const double slice = trace.end / kSlices;
    struct Curve {
        std::string name;
        std::vector<double> busy;
        double sum = 0;
    };
    std::vector<Curve> curves;
    for (const auto& [name, points] : trace.links) {
        Curve curve{name, std::vector<double>(kSlices, 0), 0};
        for (std::size_t p = 0; p < points.size(); ++p) {
            double from = points[p][0];
            const double to = p + 1 < points.size() ? points[p + 1][0] : trace.end;
            while (from < to) {
                const auto s = std::min(kSlices - 1, static_cast<std::size_t>(from / slice));
                const double until = s + 1 == kSlices
                                         ? to
                                         : std::min(to, std::max(static_cast<double>(s + 1) * slice,
                                                                 std::nextafter(from, to)));
                curve.busy[s] += points[p][1] * (until - from) / slice;
                curve.sum += points[p][1] * (until - from);
                from = until;
            }
        }
        curves.push_back(std::move(curve));
    }
    std::stable_sort(curves.begin(), curves.end(),
                     [](const Curve& a, const Curve& b) { return a.sum > b.sum; });
    Chart chart{.kind = ChartKind::line,
                .title = "The busiest links over the step",
                .x_axis = "seconds",
                .y_axis = "share of bandwidth",
                .words =
                    "Mean over each 120th of the step; 1 is the whole bandwidth of one way. "
                    "Of the two ways of a cable the busier is drawn."};
    std::set<std::string> cables;
    for (const Curve& curve : curves) {
        const auto way = curve.name.find_last_of("/-");
        if (chart.series.size() >= kLinksDrawn || !cables.insert(curve.name.substr(0, way)).second)
            continue;
        Series series{.name = curve.name};
        for (std::size_t s = 0; s < kSlices; ++s)
            series.points.push_back({static_cast<double>(s) * slice, curve.busy[s]});
        series.points.push_back({trace.end, curve.busy.back()});
        chart.series.push_back(std::move(series));
    }
    page.chart(chart);
}

}  // namespace

void add_step_sections(Page& page, const JsonReader& r) {
    add_figures(page, r);
    add_parts(page, r);
    add_losses(page, r);
    add_kernels(page, r);
    add_memory(page, r);
    add_imbalance(page, r);
    add_links(page, r);
    add_basis(page, r);
}

void add_timeline_sections(Page& page, const JsonReader& r) {
    const Trace trace = read_trace(r);
    const auto shown = ranks_to_show(trace);
    std::vector<TimeBar> bars;
    for (const long long rank : shown) {
        const auto more = bars_of(trace, rank);
        bars.insert(bars.end(), more.begin(), more.end());
    }
    std::set<long long> all;
    for (const Bar& bar : trace.bars) all.insert(bar.rank);
    if (all.size() > shown.size())
        page.paragraph(fmt::format(
            "{} of the timeline's {} ranks are shown, of each of these stages the one whose "
            "kernels "
            "work longest. Where nothing of a rank runs it is idle: it waits for other ranks.",
            shown.size(), all.size()));
    page.timeline("One step, rank by rank", bars);
    add_link_history(page, trace);
}

}  // namespace moeplan::cli
