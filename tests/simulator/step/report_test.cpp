#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/errors.hpp"
#include "simulator/step.hpp"
#include "simulator/step_fields.hpp"
#include "tests/simulator/step/cases.hpp"

namespace moeplan {
namespace {

TEST(StepReport, ReadsBackAsItWasWritten) {
    StepCase step = tests::small_case(1);
    step.layout.expert_parallel_size = 8;
    step.routing = SyntheticRouting{"multinomial", 0, 0};
    StepReport report = with_samples(step, estimate_step, 3);
    report.relative_spread = 0.25;
    const std::string text = to_file_text(to_json(report));
    EXPECT_EQ(to_file_text(to_json(report_from_json(JsonReader::from_text(text, "report.json")))),
              text);
}

TEST(StepReport, HasTheKeysOfTheContract) {
    const Json json = to_json(estimate_step(tests::small_case(1)));
    for (const char* key : {"fidelity", "step_time_s", "interval_s", "routing_interval_s",
                            "relative_spread", "busy_by_rank_s", "memory_by_rank", "link_use",
                            "folded", "losses", "exposed", "busy", "tokens_per_second", "mfu",
                            "peak_memory_bytes", "load_imbalance", "basis", "assumptions", "made"})
        EXPECT_TRUE(json.contains(key)) << key;
    EXPECT_EQ(json["fidelity"], "closed-form");
    EXPECT_EQ(json["peak_memory_bytes"].size(), 8u);
    EXPECT_TRUE(json["made"]["digests"].contains("case"));
    EXPECT_DOUBLE_EQ(json["basis"]["roofline"].get<double>(), 1.0);
}

TEST(StepReport, AMissingOrWrongFieldIsNamed) {
    Json json = to_json(estimate_step(tests::small_case(1)));
    json.erase("mfu");
    EXPECT_THROW(report_from_json(JsonReader::from_value(json, "r.json")), InputError);
    json["mfu"] = "much";
    EXPECT_THROW(report_from_json(JsonReader::from_value(json, "r.json")), InputError);
}

TEST(StepCase, ReadsBackAndAnswersTheSame) {
    StepCase step = tests::small_case(1);
    step.layout = {1, 1, 2, 4, 4, 1};
    step.schedule.stage_layers = {1, 3};
    step.routing = SyntheticRouting{"zipf", 1.1, 0};
    step.seed = 12345;
    step.disturbances.stragglers = {{3, 1.25}};
    const StepCase again =
        step_case_from_json(JsonReader::from_text(to_file_text(to_json(step)), "case.json"));
    EXPECT_EQ(again.layout, step.layout);
    EXPECT_EQ(again.schedule, step.schedule);
    StepReport a = estimate_step(step), b = estimate_step(again);
    EXPECT_EQ(a.step_time.value, b.step_time.value);
}

TEST(StepReport, ComparisonGivesRatiosOfNumbers) {
    StepCase step = tests::small_case(1);
    const StepReport a = estimate_step(step);
    step.schedule.num_micro_batches *= 2;
    const StepReport b = estimate_step(step);
    bool seen = false;
    for (const auto& pair : compare_reports(a, b))
        if (pair.field == "step_time_s") {
            seen = true;
            ASSERT_TRUE(pair.ratio);
            EXPECT_GT(*pair.ratio, 1.5);
            EXPECT_LT(*pair.ratio, 2.5);
        }
    EXPECT_TRUE(seen);
}

TEST(ChromeTrace, BarsOfAStreamDoNotOverlapAndEndWithTheStep) {
    StepCase step = tests::small_case(1);
    step.layout = {1, 1, 2, 4, 4, 1};
    step.keep_timeline = true;
    const StepReport report = estimate_step(step);
    ASSERT_FALSE(report.timeline.empty());
    std::map<std::pair<int, std::string>, Seconds> until;
    Seconds last;
    for (const auto& bar : report.timeline) {
        auto& end = until[{bar.rank, bar.stream}];
        EXPECT_GE(bar.begin.value, end.value - 1e-15) << bar.what;
        end = bar.end;
        last = std::max(last, bar.end);
    }
    EXPECT_EQ(last.value, report.step_time.value);
    const auto trace = nlohmann::json::parse(chrome_trace(report));
    EXPECT_GT(trace["traceEvents"].size(), report.timeline.size() / 2);
}

TEST(ChromeTrace, IsWhatPerfettoReads) {
    // Events in order of time; every bar on a named thread of a named process; bars of a thread do
    // not overlap after their rounding to nanoseconds.
    StepCase step = tests::small_case(1);
    step.layout = {1, 1, 2, 4, 4, 1};
    step.keep_timeline = true;
    const StepReport report = estimate_step(step);
    const auto trace = nlohmann::json::parse(chrome_trace(report));
    std::map<int, int> processes;
    std::map<std::pair<int, int>, int> threads;
    std::map<std::pair<int, int>, double> until;
    std::set<int> numbers;
    double now = 0;
    int bars = 0;
    for (const auto& event : trace["traceEvents"]) {
        const std::string phase = event["ph"], name = event["name"];
        const int pid = event["pid"];
        if (phase == "M") {
            EXPECT_EQ(now, 0) << "names come before what they name";
            if (name == "process_name") ++processes[pid];
            if (name == "thread_name") {
                ++threads[{pid, event["tid"]}];
                EXPECT_TRUE(numbers.insert(event["tid"].get<int>()).second);
            }
            continue;
        }
        EXPECT_EQ(processes[pid], 1) << pid;
        EXPECT_GE(event["ts"].get<double>(), now);
        now = event["ts"];
        if (phase != "X") continue;
        ++bars;
        const std::pair<int, int> thread{pid, event["tid"]};
        EXPECT_EQ(threads[thread], 1);
        // of two doubles of microseconds of this size the sum is off by less than a picosecond
        EXPECT_GE(now, until[thread] - 1e-6) << name;
        EXPECT_GE(event["dur"].get<double>(), 0);
        until[thread] = now + event["dur"].get<double>();
    }
    EXPECT_GT(bars, 0);
    EXPECT_EQ(processes.size(), 2 + 1u) << "the two stages' ranks, and the links";
}

TEST(ChromeTrace, CountersAgreeWithTheReport) {
    // A link's mean over the step is its use, and none carries more than all of its bandwidth; the
    // top of a stage's memory is its peak.
    StepCase step = tests::small_case(1);
    step.layout = {1, 1, 2, 4, 4, 1};
    step.keep_timeline = true;
    const StepReport report = estimate_step(step);
    const auto trace = nlohmann::json::parse(chrome_trace(report));
    struct Counter {
        double since = 0, value = 0, sum = 0;
    };
    std::map<std::string, Counter> links;
    std::map<int, double> memory;
    for (const auto& event : trace["traceEvents"]) {
        if (event["ph"] != "C") continue;
        const auto& args = event["args"];
        if (args.contains("bytes")) {
            auto& top = memory[event["pid"].get<int>()];
            top = std::max(top, args["bytes"].get<double>());
            continue;
        }
        Counter& link = links[event["name"]];
        const double now = event["ts"];
        link.sum += link.value * (now - link.since);
        link.since = now;
        link.value = args["busy"];
        EXPECT_LE(link.value, 1 + 1e-6) << event["name"];
    }
    ASSERT_FALSE(links.empty());
    for (const auto& use : report.link_use)
        if (const auto found = links.find(use.link); found != links.end()) {
            EXPECT_EQ(found->second.value, 0) << "free again at the end";
            // times are rounded to a nanosecond of some milliseconds
            EXPECT_NEAR(found->second.sum / (report.step_time.value * 1e6), use.busy,
                        1e-3 * use.busy);
        }
    ASSERT_EQ(memory.size(), report.memory_by_rank.size());
    for (const auto& [rank, top] : memory)
        EXPECT_NEAR(top, report.peak_memory[static_cast<std::size_t>(rank)].value, 1);
}

TEST(Losses, NameNoOptionThatIsOn) {
    // Experts over two nodes, and a pipeline with experts in each; with everything off and with
    // everything on.
    for (const bool on : {false, true})
        for (const bool pipelined : {false, true}) {
            StepCase step = tests::small_case(2);
            for (auto& layer : step.model.layers)
                std::get<MoeFeedForward>(layer.feed_forward).num_experts = 16;
            step.layout =
                pipelined ? ParallelLayout{1, 1, 2, 8, 8, 1} : ParallelLayout{1, 1, 1, 16, 16, 1};
            step.routing = SyntheticRouting{"zipf", 1.1, 0};
            step.schedule.overlap.gradients = step.schedule.overlap.parameters =
                step.schedule.overlap.tensor = step.schedule.overlap.experts = on;
            step.schedule.dispatcher = on ? Dispatcher::deduplicating : Dispatcher::all_to_all;
            if (on) step.schedule.software.graph_scope = "attn";
            std::string advice;
            for (const Loss& loss : estimate_step(step).losses) advice += loss.remedy + "\n";
            EXPECT_FALSE(advice.empty());
            if (!on) {
                EXPECT_EQ(advice.find("--dispatcher deepep") != std::string::npos, !pipelined)
                    << advice;
                EXPECT_NE(advice.find("--overlap-experts"), std::string::npos) << advice;
                continue;
            }
            for (const char* option :
                 {"--overlap-experts", "--overlap-tensor", "--overlap-gradients",
                  "--overlap-parameters", "--dispatcher", "--graph-scope"})
                EXPECT_EQ(advice.find(option), std::string::npos) << advice;
        }
}

}  // namespace
}  // namespace moeplan
