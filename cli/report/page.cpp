#include "cli/report/page.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/report/assets.hpp"
#include "cli/report/diagram.hpp"
#include "core/json.hpp"
#include "core/quantity_text.hpp"
#include "core/version.hpp"

namespace moeplan::cli {
namespace {

/// JSON inside a <script> element: nothing in it may end the element.
std::string script_json(const Json& value) {
    std::string out;
    for (const char c : value.dump(-1, ' ', false, Json::error_handler_t::replace)) {
        if (c == '<')
            out += "\\u003c";
        else if (c == '>')
            out += "\\u003e";
        else if (c == '&')
            out += "\\u0026";
        else
            out += c;
    }
    return out;
}

std::string number(double x) {
    char buffer[40];
    std::snprintf(buffer, sizeof buffer, "%.6g", x);
    return buffer;
}

/// Three digits, for people.
std::string short_number(double x) {
    char buffer[40];
    std::snprintf(buffer, sizeof buffer, "%.3g", x);
    return buffer;
}

/// Flags of the command line stay on one line: a browser breaks at their hyphens.
std::string flags_kept(const std::string& html) {
    std::string out;
    for (std::size_t at = 0; at < html.size();) {
        const bool flag = html.compare(at, 2, "--") == 0 &&
                          (at == 0 || html[at - 1] == ' ' || html[at - 1] == '(');
        const auto end = flag ? html.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at) : at + 1;
        const std::string piece = html.substr(at, end - at);
        out += flag && piece.size() > 2 ? "<span class=\"flag\">" + piece + "</span>" : piece;
        at = end == std::string::npos ? html.size() : end;
    }
    return out;
}

/// A tenth of a pixel is as fine as a screen shows.
std::string tenth(double x) {
    char buffer[40];
    std::snprintf(buffer, sizeof buffer, "%.1f", x);
    return buffer;
}

/// Of a name that would run out of its column, the beginning (no character is cut in two).
std::string shortened(const std::string& name, std::size_t most) {
    std::size_t characters = 0, at = 0;
    while (at < name.size()) {
        if ((static_cast<unsigned char>(name[at]) & 0xC0) != 0x80 && ++characters > most) break;
        ++at;
    }
    return at == name.size() ? name : name.substr(0, at) + "…";
}

constexpr const char* kKinds[] = {"line", "scatter", "bars", "stacked_bars"};

/// Colours of a step's parts: CSS classes of page.css.
std::string part_class(const std::string& part) {
    static const std::map<std::string, std::string> classes = {
        {"forward", "c0"},   {"compute", "c0"},       {"backward", "c1"},    {"recompute", "c8"},
        {"dispatch", "c2"},  {"combine", "c3"},       {"tensor_comm", "c4"}, {"context_comm", "c4"},
        {"data_comm", "c5"}, {"pipeline_comm", "c6"}, {"optimizer", "c7"},   {"host", "c8"},
        {"bubble", "c9"},    {"idle", "c9"}};
    const auto found = classes.find(part);
    return found == classes.end() ? "c0" : found->second;
}

/// Steps of 1, 2 or 5 times a power of ten, at most `most` of them.
double nice_step(double range, int most) {
    const double raw = range / most, power = std::pow(10, std::floor(std::log10(raw)));
    for (const double factor : {1.0, 2.0, 5.0, 10.0})
        if (power * factor >= raw) return power * factor;
    return power * 10;
}

}  // namespace

std::string escaped_html(std::string_view text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '"':
                out += "&quot;";
                break;
            case '\'':
                out += "&#39;";
                break;
            default:
                if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') out += c;
        }
    }
    return out;
}

std::string rounded_text(double value) {
    if (!std::isfinite(value)) return "–";
    if (value == 0) return "0";
    const double grain = std::pow(10, std::floor(std::log10(std::abs(value))) - 3);
    if (std::abs(value) < 1000) {
        char text[40];
        std::snprintf(text, sizeof text, "%.4g", value);
        return text;
    }
    return count_text(std::round(value / grain) * grain);
}

std::string count_text(double whole) {
    if (!std::isfinite(whole)) return "–";
    char digits[400];
    std::snprintf(digits, sizeof digits, "%.0f", std::abs(whole));
    std::string out = digits;
    for (auto at = static_cast<std::ptrdiff_t>(out.size()) - 3; at > 0; at -= 3)
        out.insert(static_cast<std::size_t>(at), ",");
    return whole < 0 ? "-" + out : out;
}

std::string range_text(Seconds low, Seconds high) {
    const std::string from = to_text(low), to = to_text(high);
    const auto a = from.find(' '), b = to.find(' ');
    if (a != std::string::npos && b != std::string::npos && from.substr(a) == to.substr(b))
        return from.substr(0, a) + " … " + to;
    return from + " … " + to;
}

Page::Page(std::string title, std::string subtitle)
    : title_(std::move(title)), subtitle_(std::move(subtitle)) {}

Page& Page::section(std::string_view heading) {
    body_ += "<h2>" + escaped_html(heading) + "</h2>\n";
    return *this;
}

Page& Page::paragraph(std::string_view text) {
    body_ += "<p>" + escaped_html(text) + "</p>\n";
    return *this;
}

Page& Page::list(const std::vector<std::string>& items) {
    body_ += "<ul>\n";
    for (const auto& item : items) body_ += "<li>" + flags_kept(escaped_html(item)) + "</li>\n";
    body_ += "</ul>\n";
    return *this;
}

Page& Page::figures(const std::vector<std::pair<std::string, std::string>>& figures) {
    body_ += "<div class=\"figures\">\n";
    for (const auto& [value, what] : figures)
        body_ += "<div><b>" + escaped_html(value) + "</b><span>" + escaped_html(what) +
                 "</span></div>\n";
    body_ += "</div>\n";
    return *this;
}

Page& Page::table(const std::vector<std::string>& head,
                  const std::vector<std::vector<std::string>>& rows) {
    const auto is_number = [](const std::string& cell) {
        return !cell.empty() && cell.size() <= 32 &&
               (std::isdigit(static_cast<unsigned char>(cell[0])) ||
                                 (cell.size() > 1 && (cell[0] == '-' || cell[0] == '+') &&
                                  std::isdigit(static_cast<unsigned char>(cell[1]))));
    };
    body_ += "<div class=\"scroll\"><table><thead><tr>";
    for (std::size_t c = 0; c < head.size(); ++c) {
        const bool right = !rows.empty() && c < rows[0].size() && is_number(rows[0][c]);
        body_ += (right ? "<th class=\"number\">" : "<th>") + escaped_html(head[c]) + "</th>";
    }
    body_ += "</tr></thead><tbody>\n";
    for (const auto& row : rows) {
        body_ += "<tr>";
        for (const auto& cell : row)
            body_ += (is_number(cell) ? "<td class=\"number\">" : "<td>") +
                     flags_kept(escaped_html(cell)) + "</td>";
        body_ += "</tr>\n";
    }
    body_ += "</tbody></table></div>\n";
    return *this;
}

Page& Page::facts(const std::vector<std::pair<std::string, std::string>>& rows) {
    body_ += "<div class=\"scroll\"><table class=\"facts\"><tbody>\n";
    for (const auto& [what, value] : rows)
        body_ += "<tr><th scope=\"row\">" + escaped_html(what) + "</th><td>" + escaped_html(value) +
                 "</td></tr>\n";
    body_ += "</tbody></table></div>\n";
    return *this;
}

Page& Page::chart(const Chart& chart) {
    Json data;
    data["kind"] = kKinds[static_cast<int>(chart.kind)];
    data["title"] = chart.title;
    data["x"] = chart.x_axis;
    data["y"] = chart.y_axis;
    data["categories"] = chart.categories;
    data["log_x"] = chart.log_x;
    data["log_y"] = chart.log_y;
    data["horizontal"] = chart.horizontal;
    data["x_from_zero"] = chart.x_from_zero;
    data["y_from_zero"] = chart.y_from_zero;
    data["series"] = Json::array();
    for (const auto& series : chart.series) {
        Json one = {{"name", series.name},
                    {"labels", series.labels},
                    {"emphasised", series.emphasised},
                    {"line", series.line},
                    {"guide", series.guide}};
        one["points"] = Json::array();
        for (const auto& [x, y] : series.points) one["points"].push_back({x, y});
        data["series"].push_back(std::move(one));
    }
    const std::string id = "chart" + std::to_string(num_charts_++);
    const std::size_t rows = chart.horizontal ? chart.categories.size() : 0;
    const std::string height =
        std::to_string(rows > 0 ? std::max<std::size_t>(140, 70 + 26 * rows) : 320);
    body_ += "<figure><figcaption>" + escaped_html(chart.title) +
             "</figcaption><div class=\"chart\" style=\"height:" + height + "px\"><canvas id=\"" +
             id + "\" role=\"img\" aria-label=\"" + escaped_html(chart.words) +
             "\"></canvas></div>";
    if (!chart.words.empty()) body_ += "<p class=\"words\">" + escaped_html(chart.words) + "</p>";
    body_ += "<script type=\"application/json\" data-chart=\"" + id + "\">" + script_json(data) +
             "</script></figure>\n";
    return *this;
}

Page& Page::timeline(std::string_view title, const std::vector<TimeBar>& bars) {
    if (bars.empty()) return *this;
    std::vector<std::string> groups, parts;
    std::map<std::string, std::vector<std::string>> rows_of;
    double begin = bars[0].begin.value, end = bars[0].end.value;
    const auto add_once = [](std::vector<std::string>& to, const std::string& what) {
        if (std::find(to.begin(), to.end(), what) == to.end()) to.push_back(what);
    };
    for (const auto& bar : bars) {
        add_once(groups, bar.group);
        add_once(rows_of[bar.group], bar.row);
        add_once(parts, bar.part);
        begin = std::min(begin, bar.begin.value);
        end = std::max(end, bar.end.value);
    }
    const double span = end > begin ? end - begin : 1;
    constexpr double kLeft = 224, kWidth = 776, kRow = 20, kTop = 26, kBetween = 8;
    std::map<std::pair<std::string, std::string>, double> place;
    std::string names;
    double y = kTop;
    for (const auto& group : groups) {
        if (group != groups.front()) {
            names += "<line class=\"grid\" x1=\"0\" x2=\"1010\" y1=\"" + number(y + kBetween / 2) +
                     "\" y2=\"" + number(y + kBetween / 2) + "\"/>";
            y += kBetween;
        }
        names += "<text class=\"row group\" x=\"0\" y=\"" + number(y + 14) + "\">" +
                 escaped_html(shortened(group, 22)) + "</text>\n";
        for (const auto& row : rows_of[group]) {
            place[{group, row}] = y;
            names += "<text class=\"row\" x=\"" + number(kLeft - 8) + "\" y=\"" + number(y + 14) +
                     "\" text-anchor=\"end\">" +
                     escaped_html(shortened(row, group.empty() ? 34 : 14)) + "</text>\n";
            y += kRow;
        }
    }
    const double height = y + 8;
    std::string svg = "<svg class=\"timeline\" viewBox=\"0 0 1010 " + number(height) +
                      "\" role=\"img\" aria-label=\"" + escaped_html(title) + "\">\n" + names;
    // Ticks in the unit of the whole, so that they read as a scale: 0.50, 1.00, 1.50 min.
    const double unit = span >= 3600   ? 3600
                        : span >= 180  ? 60
                        : span >= 1    ? 1
                        : span >= 1e-3 ? 1e-3
                                       : 1e-6;
    const std::string unit_name = unit == 3600   ? "h"
                                  : unit == 60   ? "min"
                                  : unit == 1    ? "s"
                                  : unit == 1e-3 ? "ms"
                                                 : "us";
    const double step = nice_step(span / unit, 8) * unit;
    for (double t = 0; t <= span * 1.0001; t += step) {
        const double x = kLeft + t / span * kWidth;
        svg += "<line class=\"grid\" x1=\"" + number(x) + "\" x2=\"" + number(x) + "\" y1=\"" +
               number(kTop - 6) + "\" y2=\"" + number(height - 4) + "\"/>";
        svg += "<text class=\"tick\" x=\"" + number(x) + "\" y=\"14\" text-anchor=\"middle\">" +
               (t == 0 ? std::string("0") : short_number(t / unit) + " " + unit_name) + "</text>\n";
    }
    for (const auto& bar : bars) {
        const double x = kLeft + (bar.begin.value - begin) / span * kWidth,
                     w = std::max(0.4, (bar.end - bar.begin).value / span * kWidth);
        svg += "<rect class=\"" + part_class(bar.part) + "\" x=\"" + tenth(x) + "\" y=\"" +
               number(place[{bar.group, bar.row}] + 2) + "\" width=\"" + tenth(w) + "\" height=\"" +
               number(kRow - 4) + "\"><title>" +
               escaped_html(bar.what + ": " + to_text(bar.end - bar.begin) + ", from " +
                            to_text(bar.begin)) +
               "</title></rect>\n";
    }
    svg += "</svg>";
    body_ += "<figure><figcaption>" + escaped_html(title) + "</figcaption><div class=\"legend\">";
    for (const auto& part : parts) {
        std::string words = part;
        std::replace(words.begin(), words.end(), '_', ' ');
        body_ +=
            "<span><i class=\"" + part_class(part) + "\"></i>" + escaped_html(words) + "</span>";
    }
    body_ += "</div><div class=\"scroll\">" + svg + "</div></figure>\n";
    return *this;
}

Page& Page::heat_map(const HeatMap& map) {
    std::size_t columns = 0;
    double top = 0;
    for (const auto& row : map.values) {
        columns = std::max(columns, row.size());
        for (const double value : row) top = std::max(top, value);
    }
    if (columns == 0) return *this;
    constexpr double kLeft = 90, kWidth = 910;
    const double cell = kWidth / static_cast<double>(columns), tall = std::clamp(cell, 8.0, 26.0);
    const double height = tall * static_cast<double>(map.values.size()) + 34;
    std::string svg = "<svg class=\"heat\" viewBox=\"0 0 1010 " + number(height) +
                      "\" role=\"img\" aria-label=\"" + escaped_html(map.words) + "\">\n";
    for (std::size_t r = 0; r < map.values.size(); ++r) {
        const double y = tall * static_cast<double>(r);
        svg += "<text class=\"row\" x=\"" + number(kLeft - 8) + "\" y=\"" +
               number(y + tall / 2 + 4) + "\" text-anchor=\"end\">" +
               escaped_html(r < map.rows.size() ? map.rows[r] : "") + "</text>\n";
        for (std::size_t c = 0; c < map.values[r].size(); ++c) {
            const double value = map.values[r][c], strength = top > 0 ? value / top : 0;
            svg += "<rect class=\"cell\" style=\"fill-opacity:" + number(0.04 + 0.96 * strength) +
                   "\" x=\"" + number(kLeft + cell * static_cast<double>(c)) + "\" y=\"" +
                   number(y) + "\" width=\"" + number(std::max(0.5, cell - (cell > 4 ? 1 : 0))) +
                   "\" height=\"" + number(tall - 1) + "\"><title>" +
                   escaped_html((r < map.rows.size() ? map.rows[r] + ", " : "") + map.x_axis + " " +
                                std::to_string(c) + ": " + short_number(value) + " " + map.unit) +
                   "</title></rect>\n";
        }
    }
    svg += "<text class=\"tick\" x=\"" + number(kLeft) + "\" y=\"" + number(height - 14) + "\">" +
           escaped_html(map.x_axis) + " 0 … " + std::to_string(columns - 1) +
           "; full colour = " + escaped_html(short_number(top) + " " + map.unit) + "</text></svg>";
    body_ += "<figure><figcaption>" + escaped_html(map.title) +
             "</figcaption><div class=\"scroll\">" + svg + "</div>";
    if (!map.words.empty()) body_ += "<p class=\"words\">" + escaped_html(map.words) + "</p>";
    body_ += "</figure>\n";
    return *this;
}

Page& Page::diagram(const Diagram& diagram) {
    if (diagram.things.empty()) return *this;
    body_ += "<figure><figcaption>" + escaped_html(diagram.title) + "</figcaption>" +
             diagram_html(diagram);
    if (!diagram.words.empty())
        body_ += "<p class=\"words\">" + escaped_html(diagram.words) + "</p>";
    body_ += "</figure>\n";
    return *this;
}

std::string Page::html() const {
    std::string out =
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
        "name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
    // Nothing is fetched: not even a hostile text could make the page do so.
    out +=
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src "
        "'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\">\n";
    out += "<title>" + escaped_html(title_) + "</title>\n<style>\n" + std::string(page_style()) +
           "</style>\n</head>\n<body>\n<main>\n";
    out += "<header><h1>" + escaped_html(title_) + "</h1><p>" + escaped_html(subtitle_) +
           "</p></header>\n" + body_;
    out += std::string("<footer>moeplan ") + kVersion +
           (num_charts_ > 0 ? ". Charts: Chart.js 3.9 (MIT)." : ".") + "</footer>\n</main>\n";
    if (num_charts_ > 0)
        out += "<script>" + std::string(chart_library()) + "</script>\n<script>\n" +
               std::string(page_script()) + "</script>\n";
    return out + "</body>\n</html>\n";
}

}  // namespace moeplan::cli
