#include "cli/report/cluster_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/quantity_text.hpp"
#include "core/text.hpp"

namespace moeplan::cli {
namespace {

/// How a kind of vertex is drawn, and what it is called.
struct Look {
    const char* kind;
    const char* colour;
    const char* one;
    bool wide = false;
};
constexpr Look kLooks[] = {{"gpu", "c0", "GPU"},
                           {"nv_switch", "c5", "NVSwitch", true},
                           {"nic", "c4", "NIC"},
                           {"leaf", "c2", "leaf switch"},
                           {"spine", "c6", "spine switch"},
                           {"switch", "c7", "switch"}};

const Look& look_of(const JsonReader& vertex) {
    const std::string kind = vertex.text_or("kind", "switch");
    for (const Look& look : kLooks)
        if (kind == look.kind) return look;
    vertex.fail("a kind of vertex: gpu, nv_switch, nic, leaf, spine or switch");
}

/// What is short enough to stand in a box: "gpu12" is 12 there, "node3/nic5" is 5.
std::string label_of(const std::string& name, const std::string& kind) {
    if (kind != "gpu" && kind != "nic") return name;
    const auto last = name.find_last_not_of("0123456789");
    return last + 1 < name.size() ? name.substr(last + 1) : name;
}

std::string rate_text(const JsonReader& at, const char* key) {
    return to_text(BytesPerSecond{at.number_or(key, 0)});
}

/// A quantity of a cluster file ("0.00078 ms") in the unit that people would choose.
template <class Parse>
std::string quantity(const JsonReader& at, const char* key, Parse parse) {
    const std::string text = at.text_or(key, "");
    if (text.empty()) return "–";
    try {
        return to_text(parse(text));
    } catch (const std::invalid_argument&) {
        return text;
    }
}

std::string count_at(const JsonReader& r, const char* key) {
    return count_text(r.number_or(key, 0));
}

std::string plural(double count, const std::string& what) {
    return count_text(count) + " " + what + (count == 1 ? "" : "s");
}

std::string percent(double share) { return fmt::format("{:.3g} %", 100 * share); }

void add_figures(Page& page, const JsonReader& r) {
    std::vector<std::pair<std::string, std::string>> figures;
    const std::string gpu = r.has("gpu") ? r.at("gpu").text_or("name", "") : "";
    const double gpus =
        r.number_or("gpus", r.number_or("num_nodes", 1) * r.number_or("gpus_per_node", 1));
    figures.push_back({count_text(gpus), (gpus == 1 ? "GPU " : "GPUs ") + gpu});
    const double domain = r.number_or("gpus_per_domain", 0);
    if (domain > 1) {
        const double domains = std::ceil(gpus / domain);
        figures.push_back(
            {count_text(domains),
             (domains == 1 ? "NVLink domain of " : "NVLink domains of ") + plural(domain, "GPU")});
    }
    for (const auto& [key, name] : {std::pair("scale_up", "scale-up, a GPU one way"),
                                    std::pair("scale_out", "scale-out, a NIC one way")})
        if (r.has(key) && (domain != 1 || key != std::string_view("scale_up")))
            figures.push_back({quantity(r.at(key), "bandwidth", parse_bytes_per_second), name});
    if (r.has("bisection_bandwidth") && gpus > 1)
        figures.push_back({rate_text(r, "bisection_bandwidth"), "bisection, one way"});
    page.figures(figures);
}

bool has_spines(const JsonReader& r) {
    const auto links = r.find("links");
    if (!links || !links->is_array()) return false;
    for (const auto& link : links->items())
        if (link.text_or("kind", "").find("spine") != std::string::npos) return true;
    return false;
}

/// Lines are as wide as the logarithm of their rate; each rate has its entry in the legend.
void add_drawing(Page& page, const JsonReader& r, const JsonReader& drawing) {
    Diagram diagram{.title = "How the GPUs are joined",
                    .words = {},
                    .things = {},
                    .lines = {},
                    .legend = {},
                    .group_word = "node"};
    int lowest = 0, highest = 0;
    std::map<std::string, int> of_kind;
    for (const auto& vertex : drawing.at("vertices").items()) {
        const std::string name = vertex.at("name").text();
        const Look& look = look_of(vertex);
        ++of_kind[look.kind];
        const int row = vertex.at("row").count(-1000), node = vertex.count_or("node", -1, -1);
        lowest = std::min(lowest, row);
        highest = std::max(highest, row);
        diagram.things.push_back(
            {name, label_of(name, look.kind), look.colour, row, node, look.wide});
    }
    if (drawing.at("lines").size() == 0) return;
    for (const Look& look : kLooks)
        if (of_kind.contains(look.kind))
            diagram.legend.push_back({look.one, look.colour, 1, false, false});
    double slowest = 0;
    for (const auto& line : drawing.at("lines").items())
        if (const double rate = line.number_or("bandwidth", 0); rate > 0)
            slowest = slowest > 0 ? std::min(slowest, rate) : rate;
    std::map<std::pair<std::string, double>, Diagram::Key> rates;
    bool beside = false;
    for (const auto& line : drawing.at("lines").items()) {
        const double rate = line.number_or("bandwidth", 0);
        const auto from = static_cast<std::size_t>(line.at("from").count(0)),
                   to = static_cast<std::size_t>(line.at("to").count(0));
        if (from >= diagram.things.size() || to >= diagram.things.size())
            line.fail("vertices of the drawing");
        const bool strong = line.text_or("level", "") == "scale_up";
        const double width = rate > 0 ? 1 + std::log2(rate / slowest) : 1;
        const std::string text = to_text(BytesPerSecond{rate});
        diagram.lines.push_back({from, to, width, rate <= 0, strong,
                                 diagram.things[from].name + " – " + diagram.things[to].name +
                                     (rate > 0 ? ": " + text + " each way" : ": side by side")});
        beside = beside || rate <= 0;
        if (rate > 0)
            rates[{strong ? "0" : "1", -rate}] = {
                text + (strong ? " scale-up" : " scale-out") + ", usable each way", "", width,
                false, strong};
    }
    for (const auto& [order, key] : rates) diagram.legend.push_back(key);
    if (beside) diagram.legend.push_back({"a GPU and its NIC", "", 1, true, false});
    const bool direct =
        std::any_of(diagram.lines.begin(), diagram.lines.end(), [&](const auto& line) {
            return diagram.things[line.from].row == diagram.things[line.to].row;
        });
    diagram.words = lowest < 0 || direct ? "Below the GPUs: what joins them within a domain." : "";
    if (highest > 0)
        diagram.words += std::string(diagram.words.empty() ? "" : " ") +
                         "Above the GPUs: the way from node to node.";
    if (r.number_or("num_nodes", 1) == 1 && r.number_or("gpus_per_node", 1) > 1)
        diagram.words += " One node alone has no way out, so its NICs are not drawn.";
    if (!of_kind.contains("spine") && has_spines(r))
        diagram.words +=
            " Spine switches are left out: messages change rails within a node, so no way between "
            "these GPUs crosses a spine.";
    if (const double left_out = drawing.number_or("gpus_left_out", 0); left_out > 0)
        diagram.words +=
            fmt::format(" Drawn are the first and the last nodes; {} between them {} joined alike.",
                        plural(left_out, "GPU"), left_out == 1 ? "is" : "are");
    page.diagram(diagram);
}

std::string link_words(const JsonReader& link) {
    return quantity(link, "bandwidth", parse_bytes_per_second) + " a way, " +
           percent(link.number_or("efficiency", 1)) + " of it usable; latency " +
           quantity(link, "latency", parse_seconds);
}

void add_facts(Page& page, const JsonReader& r) {
    std::vector<std::pair<std::string, std::string>> facts;
    if (r.has("num_nodes"))
        facts.push_back({"nodes", plural(r.number_or("num_nodes", 1), "node") + " of " +
                                      plural(r.number_or("gpus_per_node", 1), "GPU")});
    if (const auto gpu = r.find("gpu")) {
        facts.push_back(
            {"GPU", gpu->text_or("name", "") + ": " + quantity(*gpu, "memory", parse_bytes) +
                        " at " + quantity(*gpu, "memory_bandwidth", parse_bytes_per_second) +
                        (gpu->has("num_sms") ? ", " + count_at(*gpu, "num_sms") + " SMs" : "") +
                        (gpu->has("l2") ? ", L2 " + quantity(*gpu, "l2", parse_bytes) : "")});
        if (const auto peak = gpu->find("peak"); peak && peak->is_object()) {
            std::vector<std::string> rates;
            for (const auto& [precision, rate] : peak->members())
                rates.push_back(precision + " " +
                                quantity(*peak, precision.c_str(), parse_flops_per_second));
            facts.push_back({"dense peak", join(rates, ", ")});
        }
    }
    if (r.has("scale_up")) facts.push_back({"scale-up link", link_words(r.at("scale_up"))});
    if (r.has("scale_out")) facts.push_back({"scale-out link", link_words(r.at("scale_out"))});
    if (const auto shares = r.find("collective_efficiency"); shares && shares->is_object()) {
        std::vector<std::string> words;
        for (const auto& [name, share] : shares->members()) {
            std::string spaced = name == "nvls" ? "reduction in the switch" : name;
            std::replace(spaced.begin(), spaced.end(), '_', ' ');
            words.push_back(spaced + " " + percent(share.number()));
        }
        facts.push_back({"of the usable rate collectives reach", join(words, ", ")});
    }
    if (r.has("collective_launch"))
        facts.push_back(
            {"launch of a collective", quantity(r, "collective_launch", parse_seconds)});
    if (r.has("in_switch_reduction"))
        facts.push_back(
            {"switches reduce", r.boolean_or("in_switch_reduction", false) ? "yes" : "no"});
    if (const auto hops = r.find("hops"); hops && hops->number_or("most", 0) > 0)
        facts.push_back(
            {"links on a way",
             fmt::format("{} to {}, mean {:.3g}; longest latency {}", hops->count_or("fewest", 0),
                         hops->count_or("most", 0), hops->number_or("mean", 0),
                         to_text(Seconds{hops->number_or("longest_latency_s", 0)}))});
    page.facts(facts);
}

}  // namespace

std::string cluster_title(const JsonReader& r) {
    return r.text_or("name", "a cluster") +
           (r.has("num_nodes") ? ", " + plural(r.number_or("num_nodes", 1), "node") + " of " +
                                     plural(r.number_or("gpus_per_node", 1), "GPU")
                               : "");
}

void add_cluster_sections(Page& page, const JsonReader& r) {
    add_figures(page, r);
    if (const auto drawing = r.find("drawing")) add_drawing(page, r, *drawing);
    page.section("What it is");
    add_facts(page, r);
    if (const auto links = r.find("links"); links && links->is_array() && links->size() > 0) {
        page.section("Its links");
        std::vector<std::vector<std::string>> rows;
        for (const auto& link : links->items())
            rows.push_back({link.text_or("kind", ""), count_at(link, "count"),
                            rate_text(link, "bandwidth"),
                            link.text_or("level", "") == "scale_up" ? "scale-up" : "scale-out"});
        page.table({"link (# stands for numbers)", "count", "usable rate", "level"}, rows);
    }
    if (const auto assumed = r.find("assumed"); assumed && assumed->size() > 0) {
        page.section("Assumed");
        std::vector<std::string> lines;
        for (const auto& line : assumed->items()) lines.push_back(line.text());
        page.list(lines);
    }
    if (const std::string source = r.text_or("source", ""); !source.empty()) {
        page.section("Where the figures come from");
        std::vector<std::string> lines;
        for (const auto& line : split(source, ';'))
            if (!trim(line).empty()) lines.emplace_back(trim(line));
        page.list(lines);
    }
}

}  // namespace moeplan::cli
