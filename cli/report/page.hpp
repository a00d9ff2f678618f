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

/// One bar of a timeline: rows are drawn in the order of their first bar.
struct TimeBar {
    std::string row, what, part;  ///< part decides the colour: compute, dispatch, bubble …
    Seconds begin, end;
};

/// Rows and columns of numbers as colours.
struct HeatMap {
    std::string title, x_axis, y_axis, words, unit;
    std::vector<std::string> rows;
    std::vector<std::vector<double>> values;  ///< [rows] of [columns]
};

/// Things in rows, the first at the bottom, and the lines between them.
struct Diagram {
    struct Thing {
        std::string name;
        int row = 0;
    };
    struct Line {
        std::size_t from = 0, to = 0;
        double width = 1;
        bool dashed = false;
        std::string what;  ///< shown when the pointer rests on it
    };
    std::string title, words;
    std::vector<Thing> things;  ///< of a row from left to right
    std::vector<Line> lines;
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
    Page& chart(const Chart&);
    Page& timeline(std::string_view title, const std::vector<TimeBar>& bars);
    Page& heat_map(const HeatMap&);
    Page& diagram(const Diagram&);

    std::string html() const;

  private:
    std::string title_, subtitle_, body_;
    int num_charts_ = 0;
};

/// & < > " ' as entities: safe as text and inside attributes.
std::string escaped_html(std::string_view text);

}  // namespace moeplan::cli
