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

const char* kCluster =
    R"({"$schema": "moeplan/cluster.schema.json", "version": 1, "name": "dgx-test", "num_nodes": 2, "gpus_per_node": 1,
    "scale_up": {"latency": "0.0007799999999999999 ms", "bandwidth": "450 GB/s"},
    "scale_out": {"latency": "0.004999999999999999 ms", "bandwidth": "50 GB/s", "efficiency": 0.96},
    "gpus": 2, "gpus_per_domain": 1, "bisection_bandwidth": 48e9,
    "drawing": {"vertices": [{"name": "gpu0", "kind": "gpu", "row": 0, "node": 0}, {"name": "gpu1", "kind": "gpu", "row": 0, "node": 1},
                             {"name": "rail0/leaf0", "kind": "leaf", "row": 1, "node": -1}],
                "lines": [{"from": 0, "to": 2, "bandwidth": 48e9, "level": "scale_out"}, {"from": 1, "to": 2, "bandwidth": 48e9, "level": "scale_out"}],
                "gpus_left_out": 0}})";

TEST_F(Pages, AClusterIsNamedAndItsQuantitiesAreShort) {
    const std::string page = page_for({read_report_file(write("c", kCluster))});
    EXPECT_THAT(page, HasSubstr("<h1>Cluster: dgx-test, 2 nodes of 1 GPU</h1>"));
    for (const char* part : {"780 ns", "5.00 us", "450 GB/s", "48.0 GB/s", "leaf switch"})
        EXPECT_THAT(page, HasSubstr(part));
    EXPECT_THAT(page, Not(HasSubstr("99999")));
    EXPECT_THAT(page, Not(HasSubstr("Answer")));
    Json unknown = Json::parse(kCluster);
    unknown["drawing"]["vertices"][0]["kind"] = "toaster";
    EXPECT_THROW(page_for({report_of(unknown, "c")}), InputError);
}

TEST_F(Pages, AModelAndACheckedLayoutAreNamed) {
    const std::string model = page_for({read_report_file(write("m", R"({"name": "mini", "layers": 2, "moe_layers": 1, "hidden_size": 4096,
        "parameters": {"total": 46702792704, "active": {"with_embeddings": 12879925248}, "parts": {"experts": 45097156608, "norms": 0}},
        "flops_per_token": {"training": 82933972992}, "moe": {"num_experts": 8, "top_k": 2}})"))});
    for (const char* part : {"<h1>Model: mini</h1>", "46.7 B", "12.9 B", "2 of 8", "4,096"})
        EXPECT_THAT(model, HasSubstr(part));
    const std::string layout = page_for({read_report_file(write("l", R"({"verdict": "out_of_memory",
        "broken": [{"rule": "memory", "detail": "stage 0 does not fit", "nearest": ["pp 2"]}],
        "memory": [{"stage": 0, "weights_bytes": 96e9, "total_bytes": 96e9, "limit_bytes": 80e9}]})"))});
    for (const char* part :
         {"<h1>Layout: out of memory</h1>", "89.4 GiB", "of 74.5 GiB", "stage 0 does not fit", "pp 2"})
        EXPECT_THAT(layout, HasSubstr(part));
}

/// Values of the large figures.
std::vector<std::string> figures_of(const std::string& page) {
    std::vector<std::string> out;
    for (std::size_t at = page.find("<div><b>"); at != std::string::npos;
         at = page.find("<div><b>", at + 1))
        out.push_back(page.substr(at + 8, page.find("</b>", at) - at - 8));
    return out;
}

TEST_F(Pages, LargeFiguresHaveFourSignificantDigitsAtMost) {
    Json step = Json::parse(kStep);
    step["step_time_s"] = 181.4703851042621;
    step["tokens_per_second"] = 92451.53687396877;
    step["interval_s"] = {155.76703088601244, 240.98448554366908};
    step["mfu"] = 0.01142586858523805;
    for (const std::string& page : {page_for({report_of(step, "step")}),
                                    page_for({read_report_file(write("c", kCluster))})}) {
        EXPECT_GE(figures_of(page).size(), 3u);
        for (std::string figure : figures_of(page)) {
            std::string digits;
            const auto check = [&] {
                digits.erase(0, digits.find_first_not_of('0'));
                while (digits.ends_with('0')) digits.pop_back();
                EXPECT_LE(digits.size(), 4u) << figure;
                digits.clear();
            };
            for (const char c : figure)
                if (c >= '0' && c <= '9')
                    digits += c;
                else if (c != ',' && c != '.')
                    check();
            check();
        }
    }
}

TEST_F(Pages, AStepIsHeadedOnceAndSaysWhatItsRangeIs) {
    Json step = Json::parse(kStep);
    step["interval_s"] = {1.2, 2.0};
    const std::string page =
        page_for({report_of(step, ""), report_of(Json::parse("{\"traceEvents\": []}"), "")},
                 "mixtral on dgx, 8 GPUs");
    EXPECT_THAT(page, HasSubstr("<h1>mixtral on dgx, 8 GPUs</h1><p>One training step</p>"));
    EXPECT_THAT(page, Not(HasSubstr("<h2>One training step")));
    EXPECT_THAT(page, HasSubstr("80 % of runs like it"));
    EXPECT_THAT(page, Not(HasSubstr("80 % of draws")));
}

TEST_F(Pages, KernelsOfManyRanksAreShownByStageWithTheSlowestNamed) {
    Json step = Json::parse(kStep);
    step["busy_by_rank_s"] = Json::array();
    for (int rank = 0; rank < 128; ++rank)
        step["busy_by_rank_s"].push_back(rank == 77 ? 1.4 : 1.0 + 0.001 * (rank / 64));
    step["memory_by_rank"] = Json::array();
    for (const int rank : {0, 64})
        step["memory_by_rank"].push_back(
            {{"rank", rank}, {"points", {{{"time_s", 0}, {"bytes", 1e9}}}}});
    const std::string page = page_for({report_of(step, "step")});
    for (const char* part : {"Kernels, by pipeline stage", "median rank", "rank 77 (1.40 s)"})
        EXPECT_THAT(page, HasSubstr(part));
}

TEST_F(Pages, ATimelineShowsWhereARankIsIdle) {
    const char* trace = R"({"traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 4, "args": {"name": "rank 4, stage 1"}},
        {"ph": "M", "name": "thread_name", "pid": 4, "tid": 1, "args": {"name": "compute"}},
        {"ph": "X", "name": "attention", "pid": 4, "tid": 1, "ts": 0, "dur": 400000},
        {"ph": "X", "name": "attention backward", "pid": 4, "tid": 1, "ts": 600000, "dur": 400000},
        {"ph": "C", "name": "node0/nic0/up", "pid": 9, "ts": 0, "args": {"busy": 0.5}},
        {"ph": "C", "name": "node0/nic0/up", "pid": 9, "ts": 500000, "args": {"busy": 0}}]})";
    const std::string page = page_for({read_report_file(write("t", trace))});
    for (const char* part : {"rank 4, stage 1", "idle: 200 ms, from 400 ms", "node0/nic0/up",
                             "The busiest links over the step"})
        EXPECT_THAT(page, HasSubstr(part));
}

}  // namespace
}  // namespace moeplan::cli
