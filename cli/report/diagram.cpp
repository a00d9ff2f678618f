#include "cli/report/diagram.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>

namespace moeplan::cli {
namespace {

constexpr double kWidth = 1010, kRow = 92, kBox = 18, kWidest = 46, kGap = 14, kLetter = 7;

std::string number(double x) {
    char buffer[40];
    std::snprintf(buffer, sizeof buffer, "%.1f", x);
    return buffer;
}

/// Where everything stands.
struct Places {
    struct Box {
        double x = 0, y = 0;  ///< its middle
        double wide = 0, room = 0;
    };
    std::vector<Box> boxes;  ///< [things]
    double height = 0;
    struct Frame {
        double left = 0, right = 0, top = 1e300, bottom = 0;
    };
    std::map<int, Frame> frames;  ///< by group
};

/// How far a line within a row hangs below it.
double sag(double apart) { return 14 + 0.12 * apart; }

/// Each group has a column of its own; a row whose things all belong to groups keeps to them.
Places places_of(const Diagram& diagram) {
    Places out;
    std::map<int, double> column;  // group → left end
    for (const auto& thing : diagram.things)
        if (thing.group >= 0) column.emplace(thing.group, 0);
    const double wide = column.empty() ? kWidth
                                       : (kWidth - kGap * static_cast<double>(column.size() - 1)) /
                                             static_cast<double>(column.size());
    double left = 0;
    for (auto& [group, at] : column) {
        at = left;
        out.frames[group] = {left, left + wide};
        left += wide + kGap;
    }
    struct Row {
        std::size_t things = 0;
        bool grouped = true;
        std::map<int, std::size_t> of_group;
    };
    std::map<int, Row> rows;
    for (const auto& thing : diagram.things) {
        Row& row = rows[thing.row];
        ++row.things;
        ++row.of_group[thing.group];
        row.grouped = row.grouped && thing.group >= 0;
    }
    std::map<int, std::size_t> seen;
    std::map<std::pair<int, int>, std::size_t> seen_of_group;
    for (const auto& thing : diagram.things) {
        const Row& row = rows[thing.row];
        Places::Box box;
        if (row.grouped) {
            box.room = wide / static_cast<double>(row.of_group.at(thing.group));
            box.x =
                column[thing.group] +
                box.room * (static_cast<double>(seen_of_group[{thing.row, thing.group}]++) + 0.5);
        } else {
            box.room = kWidth / static_cast<double>(row.things);
            box.x = box.room * (static_cast<double>(seen[thing.row]++) + 0.5);
        }
        box.wide = std::min(kWidest, 0.86 * box.room);
        out.boxes.push_back(box);
    }
    std::map<std::size_t, std::array<double, 2>> reach;  // of bars, from left to right
    for (const auto& line : diagram.lines)
        for (const auto& [a, b] : {std::pair(line.from, line.to), std::pair(line.to, line.from)})
            if (diagram.things[a].wide && !diagram.things[b].wide) {
                const auto& end = out.boxes[b];
                auto& [from, to] = reach.try_emplace(a, std::array{1e300, -1e300}).first->second;
                from = std::min(from, end.x - end.wide / 2);
                to = std::max(to, end.x + end.wide / 2);
            }
    for (const auto& [bar, ends] : reach) {
        auto& box = out.boxes[bar];
        box.x = (ends[0] + ends[1]) / 2;
        box.wide = box.room = ends[1] - ends[0];
    }
    // Lines within row 0 hang below it and push the rest down.
    double hang = 0;
    for (const auto& line : diagram.lines)
        if (diagram.things[line.from].row == 0 && diagram.things[line.to].row == 0)
            hang = std::max(hang, sag(std::abs(out.boxes[line.from].x - out.boxes[line.to].x)));
    const int highest = rows.rbegin()->first, lowest = rows.begin()->first;
    constexpr double kTop = 40;
    const double ground = kTop + kRow * std::max(0, highest);
    for (std::size_t i = 0; i < diagram.things.size(); ++i) {
        const auto& thing = diagram.things[i];
        auto& box = out.boxes[i];
        box.y = ground - kRow * thing.row + (thing.row < 0 ? 0.75 * hang : 0);
        if (thing.group < 0) continue;
        auto& frame = out.frames[thing.group];
        frame.top = std::min(frame.top, box.y - 32);
        frame.bottom = std::max(frame.bottom, box.y + 20 + (thing.row == 0 ? 0.75 * hang : 0));
    }
    out.height = ground + kRow * -std::min(0, lowest) + 0.75 * hang + 26;
    return out;
}

std::string line_svg(const Diagram& diagram, const Diagram::Line& line, const Places& places) {
    const auto &a = places.boxes[line.from], &b = places.boxes[line.to];
    // A line meets a bar straight above or below its other end.
    const double from = diagram.things[line.from].wide ? b.x : a.x,
                 to = diagram.things[line.to].wide ? a.x : b.x;
    std::string path = "M" + number(from) + " " + number(a.y);
    if (a.y == b.y) {
        const double deep = sag(std::abs(from - to));
        path += " C" + number(from) + " " + number(a.y + deep) + " " + number(to) + " " +
                number(b.y + deep) + " " + number(to) + " " + number(b.y);
    } else {
        path += " L" + number(to) + " " + number(b.y);
    }
    return "<path class=\"wire" + std::string(line.strong ? " strong" : "") +
           (line.dashed ? " beside" : "") + "\" style=\"stroke-width:" + number(line.width) +
           "\" d=\"" + path + "\"><title>" + escaped_html(line.what) + "</title></path>\n";
}

std::string thing_svg(const Diagram::Thing& thing, const Places::Box& box, bool named) {
    std::string svg = "<g><title>" + escaped_html(thing.name) + "</title><rect class=\"" +
                      escaped_html(thing.colour) + "\" x=\"" + number(box.x - box.wide / 2) +
                      "\" y=\"" + number(box.y - kBox / 2) + "\" width=\"" + number(box.wide) +
                      "\" height=\"" + number(kBox) + "\" rx=\"4\"/>";
    const bool inside = kLetter * static_cast<double>(thing.label.size()) <= box.wide - 2;
    if (named || inside)
        svg += "<text class=\"" + std::string(inside ? "in" : "row") + "\" x=\"" + number(box.x) +
               "\" y=\"" + number(box.y + (inside ? 4 : -kBox / 2 - 5)) +
               "\" text-anchor=\"middle\">" + escaped_html(thing.label) + "</text>";
    return svg + "</g>\n";
}

std::string legend_html(const std::vector<Diagram::Key>& legend) {
    std::string out = "<div class=\"legend\">";
    for (const auto& key : legend)
        out += "<span><i class=\"" +
               (key.colour.empty() ? "line" + std::string(key.strong ? " strong" : "") +
                                         (key.dashed ? " dashed" : "") +
                                         "\" style=\"border-top-width:" + number(key.width) + "px"
                                   : escaped_html(key.colour)) +
               "\"></i>" + escaped_html(key.what) + "</span>";
    return out + "</div>";
}

}  // namespace

std::string diagram_html(const Diagram& diagram) {
    const Places places = places_of(diagram);
    std::string svg = "<svg class=\"diagram\" viewBox=\"0 0 1010 " + number(places.height) +
                      "\" role=\"img\" aria-label=\"" + escaped_html(diagram.words) + "\">\n";
    for (const auto& [group, frame] : places.frames)
        svg += "<rect class=\"frame\" x=\"" + number(frame.left) + "\" y=\"" + number(frame.top) +
               "\" width=\"" + number(frame.right - frame.left) + "\" height=\"" +
               number(frame.bottom - frame.top) + "\" rx=\"8\"/>\n";
    for (const auto& line : diagram.lines) svg += line_svg(diagram, line, places);
    for (const auto& [group, frame] : places.frames)
        svg += "<text class=\"tick\" x=\"" + number(frame.left + 8) + "\" y=\"" +
               number(frame.top + 15) + "\">" +
               escaped_html(diagram.group_word + " " + std::to_string(group)) + "</text>\n";
    // Where names of a row would run into each other, every second, third … has one.
    std::map<int, std::size_t> every, seen;
    for (std::size_t i = 0; i < diagram.things.size(); ++i) {
        const double letters = static_cast<double>(diagram.things[i].label.size()) + 1;
        auto& n = every.emplace(diagram.things[i].row, 1).first->second;
        n = std::max(n,
                     static_cast<std::size_t>(std::ceil(kLetter * letters / places.boxes[i].room)));
    }
    for (std::size_t i = 0; i < diagram.things.size(); ++i) {
        const int row = diagram.things[i].row;
        svg += thing_svg(diagram.things[i], places.boxes[i], seen[row]++ % every[row] == 0);
    }
    return legend_html(diagram.legend) + "<div class=\"scroll\">" + svg + "</svg></div>";
}

}  // namespace moeplan::cli
