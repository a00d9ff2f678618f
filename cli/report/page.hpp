#pragma once
/// One self-contained page: words, tables and pictures. It opens offline, follows the reader's
/// light or dark scheme, and every text that came from a file is escaped.

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/units.hpp"

namespace moeplan::cli {

/// A line, a cloud of points or a row of bars with its name.
struct Series {
    std::string name;
    std::vector<std::array<double, 2>> points;  ///< x, y; of bars: y alone counts, one a label
    std::vector<std::string>
        labels;  ///< of single points, shown when the pointer rests on them; may be empty
    bool emphasised = false;  ///< drawn stronger: the front among the candidates
    bool line = true;         ///< scatter charts: join the points
    bool guide = false;       ///< a line to compare with, no data: drawn dashed and soft
};

enum class ChartKind { line, scatter, bars, stacked_bars };

/// Drawn by the charting library from data in the page.
struct Chart {
    ChartKind kind = ChartKind::line;
    std::string title, x_axis, y_axis;
    std::string words;  ///< what the picture shows, for those who do not see it
    std::vector<Series> series;
    std::vector<std::string> categories;  ///< of bars
    bool log_x = false, log_y = false, horizontal = false;
    bool x_from_zero = false, y_from_zero = true;
};

/// One bar of a timeline: rows are drawn in the order of their first bar, those of a group
/// together.
struct TimeBar {
    std::string row, what, part;  ///< part decides the colour: compute, dispatch, bubble …
    Seconds begin, end;
    std::string group = {};  ///< whose row it is: a rank's streams
};

/// Rows and columns of numbers as colours.
struct HeatMap {
    std::string title, x_axis, y_axis, words, unit;
    std::vector<std::string> rows;
    std::vector<std::vector<double>> values;  ///< [rows] of [columns]
};

/// Things in rows, row 0 between the negative ones below it and the others above, and the lines
/// between them.
struct Diagram {
    struct Thing {
        std::string name;    ///< shown when the pointer rests on it
        std::string label;   ///< where there is room
        std::string colour;  ///< c0 … c9 of page.css
        int row = 0;
        int group = -1;     ///< framed with the others of its group
        bool wide = false;  ///< a bar over all it is joined to
    };
    struct Line {
        std::size_t from = 0, to = 0;
        double width = 1;
        bool dashed = false, strong = false;
        std::string what;  ///< shown when the pointer rests on it
    };
    struct Key {
        std::string what, colour;  ///< a line's has no colour
        double width = 1;
        bool dashed = false, strong = false;
    };
    std::string title, words;
    std::vector<Thing> things;  ///< of a row from left to right
    std::vector<Line> lines;
    std::vector<Key> legend;
    std::string group_word;  ///< "node": frames are named by it and their number
};

class Page {
  public:
    Page(std::string title, std::string subtitle);

    Page& section(std::string_view heading);
    Page& paragraph(std::string_view text);
    Page& list(const std::vector<std::string>& items);
    /// Large figures with what they are: {"1.84 s", "a step"}.
    Page& figures(const std::vector<std::pair<std::string, std::string>>& figures);
    Page& table(const std::vector<std::string>& head,
                const std::vector<std::vector<std::string>>& rows);
    /// What something is, a fact a row.
    Page& facts(const std::vector<std::pair<std::string, std::string>>& rows);
    Page& chart(const Chart&);
    Page& timeline(std::string_view title, const std::vector<TimeBar>& bars);
    Page& heat_map(const HeatMap&);
    Page& diagram(const Diagram&);

    std::string html() const;

  private:
    std::string title_, subtitle_, body_;
    int num_charts_ = 0;
};

/// Thousands apart and four significant digits at most: 92,450.
std::string rounded_text(double);
/// Thousands apart, nothing rounded: 16,384 GPUs.
std::string count_text(double whole);
/// A range whose unit stands once where both ends share it: "2.60 … 4.02 min".
std::string range_text(Seconds low, Seconds high);

/// & < > " ' as entities: safe as text and inside attributes.
std::string escaped_html(std::string_view text);

}  // namespace moeplan::cli
