#include "cli/report/page.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

namespace moeplan::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Page, AHostileNameStaysText) {
    const std::string hostile =
        "</script><script>alert(1)</script>\"'&<img src=x onerror=alert(1)>";
    Page page(hostile, hostile);
    page.section(hostile)
        .paragraph(hostile)
        .list({hostile})
        .figures({{hostile, hostile}})
        .table({hostile}, {{hostile}});
    page.chart({.title = hostile,
                .words = hostile,
                .series = {{.name = hostile, .points = {{1, 2}}, .labels = {hostile}}},
                .categories = {hostile}});
    page.timeline(hostile,
                  {{.row = hostile, .what = hostile, .part = hostile, .begin = {0}, .end = {1}}});
    page.heat_map({.title = hostile,
                   .x_axis = hostile,
                   .y_axis = hostile,
                   .words = hostile,
                   .unit = hostile,
                   .rows = {hostile},
                   .values = {{1, 2}}});
    EXPECT_THAT(page.html(), Not(HasSubstr("<script>alert")));
    EXPECT_THAT(page.html(), Not(HasSubstr("<img src=x")));
}

TEST(Page, FetchesNothing) {
    Page page("A step", "");
    page.chart({.title = "t", .series = {{.name = "s", .points = {{1, 2}}}}});
    const std::string html = page.html();
    EXPECT_THAT(html, HasSubstr("default-src 'none'"));
    for (const char* request : {" src=\"http", "href=\"http", "@import", "url(http"})
        EXPECT_THAT(html, Not(HasSubstr(request)));
}

TEST(Page, EveryPartIsDrawnAndEmptyPartsAreLeftOut) {
    // A page with every kind of part; MOEPLAN_SAMPLE_PAGE keeps it for looking at.
    Page page("mixtral-8x7b on dgx-h100:16", "tp 1, ep 8, pp 4, dp 32; simulated at flow level");
    page.figures({{"4.87 s", "a step"},
                  {"861 k", "tokens a second"},
                  {"0.412", "model flops utilisation"},
                  {"61.2 GiB", "fullest GPU"}});
    page.section("Where the time goes")
        .paragraph(
            "Exposed parts add up to the step; busy parts also count what is hidden behind "
            "others.");
    page.chart({.kind = ChartKind::stacked_bars,
                .title = "Parts of the step",
                .x_axis = "seconds",
                .words = "Compute fills 3.1 of 4.9 seconds.",
                .series = {{.name = "compute", .points = {{0, 3.1}, {0, 3.1}}},
                           {.name = "dispatch", .points = {{0, 0.9}, {0, 1.6}}},
                           {.name = "bubble", .points = {{0, 0.87}, {0, 0}}}},
                .categories = {"exposed", "busy"},
                .horizontal = true});
    std::vector<TimeBar> bars;
    for (int rank = 0; rank < 4; ++rank)
        for (int m = 0; m < 8; ++m) {
            const double at = rank * 0.1 + m * 0.3;
            bars.push_back({"rank " + std::to_string(rank) + " compute",
                            "forward, micro-batch " + std::to_string(m),
                            m % 2 ? "backward" : "forward",
                            {at},
                            {at + 0.2}});
            bars.push_back({"rank " + std::to_string(rank) + " network",
                            "dispatch",
                            "dispatch",
                            {at + 0.2},
                            {at + 0.3}});
        }
    page.timeline("A step, four ranks", bars);
    std::vector<std::vector<double>> loads(8, std::vector<double>(64));
    for (std::size_t l = 0; l < loads.size(); ++l)
        for (std::size_t e = 0; e < 64; ++e)
            loads[l][e] = 1 + std::sin(static_cast<double>(l * 7 + e * 3)) * 0.8;
    page.heat_map({.title = "Tokens of each expert",
                   .x_axis = "expert",
                   .y_axis = "layer",
                   .words = "Layers are balanced within a factor 1.8.",
                   .unit = "of the mean",
                   .rows = {"layer 0", "layer 1", "layer 2", "layer 3", "layer 4", "layer 5",
                            "layer 6", "layer 7"},
                   .values = loads});
    page.chart({.kind = ChartKind::scatter,
                .title = "Candidates",
                .x_axis = "step time, s",
                .y_axis = "expected loss",
                .words = "Seven candidates, three on the front.",
                .series = {{.name = "front",
                            .points = {{4.1, 2.31}, {4.9, 2.27}, {6.3, 2.25}},
                            .labels = {"h 1", "h 2", "h 3"},
                            .emphasised = true},
                           {.name = "others",
                            .points = {{5.2, 2.31}, {5.9, 2.30}, {6.6, 2.28}, {7.1, 2.27}},
                            .labels = {"a", "b", "c", "d"},
                            .line = false}},
                .y_from_zero = false});
    page.table({"layout", "step", "what"},
               {{"tp 1 ep 8", "4.87 s", "fits"}, {"tp 2 ep 8", "5.10 s", "fits"}});
    Page empty("t", "s");
    empty.timeline("none", {}).heat_map({});
    EXPECT_THAT(empty.html(), Not(HasSubstr("<svg")));
    const std::string html = page.html();
    for (const char* part : {"class=\"timeline\"", "class=\"heat\"", "data-chart=\"chart1\"",
                             "<table>", "Chart.js v3.9"})
        EXPECT_THAT(html, HasSubstr(part));
    if (const char* keep = std::getenv("MOEPLAN_SAMPLE_PAGE")) std::ofstream(keep) << html;
}

TEST(Page, FiguresHaveFourDigitsAtMost) {
    EXPECT_EQ(rounded_text(92451.5), "92,450");
    EXPECT_EQ(rounded_text(1024), "1,024");
    EXPECT_EQ(count_text(16384), "16,384");
    EXPECT_EQ(rounded_text(12345678), "12,350,000");
    EXPECT_EQ(rounded_text(0.123456), "0.1235");
    EXPECT_EQ(rounded_text(0), "0");
    EXPECT_EQ(rounded_text(-1500), "-1,500");
    EXPECT_EQ(range_text({156}, {241}), "2.60 … 4.02 min");
    EXPECT_EQ(range_text({0.9}, {1.1}), "900 ms … 1.10 s");
}

TEST(Page, ADiagramFramesGroupsAndExplainsItsColours) {
    const std::string hostile = "<img src=x>";
    Page page("t", "s");
    page.diagram({.title = "How they are joined",
                  .words = "two nodes",
                  .things = {{"gpu0", "0", "c0", 0, 0},
                             {"gpu1", "1", "c0", 0, 1},
                             {hostile, hostile, "c5", -1, -1, true}},
                  .lines = {{0, 2, 2, false, true, hostile}, {1, 2, 2, false, true, "b"}},
                  .legend = {{"GPU", "c0"}, {hostile, "", 2, false, true}},
                  .group_word = "node"});
    const std::string html = page.html();
    EXPECT_THAT(html, Not(HasSubstr("<img")));
    for (const char* part :
         {"node 0", "node 1", "class=\"frame\"", "class=\"legend\"", "GPU</span>"})
        EXPECT_THAT(html, HasSubstr(part));
}

TEST(Page, RowsOfATimelineAreNamedWithinTheirColumn) {
    // The names' column holds 22 letters of a group and 14 of a row; what is longer says so.
    const std::string group = "a rank with quite a long name indeed", row = "a stream of no end";
    Page page("t", "s");
    page.timeline("steps", {{row, "what", "forward", {0}, {1}, group}});
    EXPECT_THAT(page.html(), HasSubstr(group.substr(0, 22) + "…<"));
    EXPECT_THAT(page.html(), HasSubstr(row.substr(0, 14) + "…<"));
}

}  // namespace
}  // namespace moeplan::cli
