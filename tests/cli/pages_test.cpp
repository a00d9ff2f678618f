#include "cli/report/pages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "traces/routing_law.hpp"

namespace moeplan::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class Pages : public ::testing::Test {
  protected:
    Pages() { fs::create_directories(folder_); }
    ~Pages() override { fs::remove_all(folder_); }
    fs::path write(const std::string& name, const std::string& content) {
        std::ofstream(folder_ / name, std::ios::binary) << content;
        return folder_ / name;
    }
    fs::path folder_ = fs::temp_directory_path() / ("moeplan_pages_" + std::to_string(getpid()));
};

const char* kStep =
    R"({"$schema": "moeplan/report.schema.json", "version": 1, "fidelity": "flow", "step_time_s": 1.5, "tokens_per_second": 100,
    "exposed": {"compute_s": 1.0, "bubble_s": 0.5}, "busy": {"compute_s": 1.0}, "peak_memory_bytes": [1073741824]})";

TEST_F(Pages, FilesAreKnownByTheirContent) {
    EXPECT_EQ(read_report_file(write("a", kStep)).kind, ReportKind::step);
    EXPECT_EQ(
        read_report_file(write("b", "{\"step\": 0, \"loss\": 7}\n{\"step\": 1, \"loss\": 6}\n"))
            .kind,
        ReportKind::training);
    EXPECT_EQ(read_report_file(write("c", "{\"traceEvents\": []}")).kind, ReportKind::timeline);
    EXPECT_EQ(read_report_file(write("d", "{\"fields\": [], \"passed\": true}")).kind,
              ReportKind::validation);
    EXPECT_EQ(read_report_file(write("e", "{\"$schema\": \"moeplan/profile.schema.json\"}")).kind,
              ReportKind::profile);
    RoutingLaw law;
    SynthesisShape shape;
    shape.sequence_length = 64;
    TraceWriter writer(folder_ / "t", synthetic_header(law, shape, {1}));
    writer.add(synthetic_step(law, shape, {1}, 0));
    writer.finish();
    const ReportFile trace = read_report_file(folder_ / "t");
    EXPECT_EQ(trace.kind, ReportKind::trace);
    EXPECT_THAT(page_for({trace}), HasSubstr("Load of the experts"));
}

TEST_F(Pages, ForeignFilesAreRefusedWithTheirPlace) {
    for (const char* content : {"", "hello", "[1]", "{\"a\": 1}", "{\"a\": 1}\n{\"b\": 2}\n",
                                "{\"step\": 0, \"loss\": 7}\nnonsense\n"})
        EXPECT_THROW(read_report_file(write("x", content)), InputError) << content;
    EXPECT_THROW(
        page_for({read_report_file(write("y", "{\"step_time_s\": \"long\", \"exposed\": {}}"))}),
        InputError);
}

TEST_F(Pages, WhatAFileSaysNeverRuns) {
    Json evil = Json::parse(kStep);
    evil["assumptions"] = {"</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>"};
    evil["exposed"]["\"><svg onload=alert(1)>_s"] = 0.1;
    evil["losses"] = Json::array({{{"time_s", 1}, {"what", "<b>x</b>"}, {"remedy", "&"}}});
    const std::string page = page_for({report_of(evil, "<script>alert(2)</script>.json")});
    for (const char* tag : {"<script>alert", "<img", "<svg onload", "<b>x"})
        EXPECT_THAT(page, Not(HasSubstr(tag)));
    EXPECT_THAT(page, HasSubstr("Content-Security-Policy"));
}

TEST_F(Pages, OnePageOpensWithoutANetwork) {
    const std::string page = page_for(
        {read_report_file(write("a", kStep)),
         read_report_file(write("b", "{\"step\": 0, \"loss\": 7}\n{\"step\": 1, \"loss\": 6}\n"))});
    EXPECT_THAT(page, Not(HasSubstr("<script src")));
    EXPECT_THAT(page, Not(HasSubstr("<link")));
    // Training comes before the step that it led to.
    EXPECT_LT(page.find("One training step"), page.find(">Training<"));   // the answer first
}

TEST_F(Pages, RunsOfSeveralFilesShareTheLossChart) {
    const auto a = read_report_file(write(
                   "top_k.jsonl", "{\"step\": 0, \"loss\": 7}\n{\"step\": 1, \"loss\": 6}\n")),
               b = read_report_file(write(
                   "emo.jsonl", "{\"step\": 0, \"loss\": 7.5}\n{\"step\": 1, \"loss\": 6.5}\n"));
    const std::string page = page_for({a, b});
    std::size_t charts = 0;
    for (std::size_t at = page.find("<figcaption>Loss</figcaption>"); at != std::string::npos;
         at = page.find("<figcaption>Loss</figcaption>", at + 1))
        ++charts;
    EXPECT_EQ(charts, 1u);
    EXPECT_THAT(page, HasSubstr("top_k.jsonl"));
    EXPECT_THAT(page, HasSubstr("emo.jsonl"));
}

}  // namespace
}  // namespace moeplan::cli
