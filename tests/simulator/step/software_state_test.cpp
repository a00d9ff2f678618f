#include "simulator/software_state.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <nlohmann/json.hpp>

#include "core/data_files.hpp"
#include "core/errors.hpp"
#include "simulator/job_prices.hpp"
#include "simulator/step_graph.hpp"
#include "simulator/step_walk.hpp"
#include "tests/simulator/step/cases.hpp"

namespace moeplan::tests {
namespace {

StepCase with_software(const std::string& framework, const std::string& release) {
    StepCase step = small_case();
    Profile profile = load_profile("b200-sxm");
    profile.host_overlap = 1;
    step.profile = std::make_shared<const Profile>(profile);
    step.schedule.software.framework = framework;
    step.schedule.software.release = release;
    return step;
}
const Launches& of(const SoftwareCosts& costs, Module module) {
    return costs.launches[static_cast<std::size_t>(module)];
}

TEST(Releases, AreComparedNumberByNumber) {
    EXPECT_TRUE(release_before("26.02.01", "26.06"));
    EXPECT_TRUE(release_before("0.14", "1"));
    EXPECT_TRUE(release_before("2021-04", "2022"));
    EXPECT_FALSE(release_before("26.06", "26.06"));
    EXPECT_FALSE(release_before("26.10", "26.9"));
    EXPECT_FALSE(release_before("20.12", "1"));
}

TEST(SoftwareTable, FindsARowByFrameworkAndRelease) {
    EXPECT_EQ(software_costs(with_software("megatron-bridge", "26.04.01")).name, "megatron-bridge");
    EXPECT_EQ(software_costs(with_software("megatron-bridge", "26.08")).name,
              "megatron-bridge-26.06");
    EXPECT_EQ(software_costs(with_software("megatron-lm", "20.12")).name, "megatron-2020");
    EXPECT_EQ(software_costs(with_software("megatron-lm", "0.14")).name, "megatron-core");
    EXPECT_FALSE(software_costs(with_software("torchtitan", "dev")).assumed);
}

TEST(SoftwareTable, TakesTheDefaultOfTheGpusEraForAnUnknownFramework) {
    const SoftwareCosts costs = software_costs(with_software("a framework of tomorrow", "9"));
    EXPECT_TRUE(costs.assumed);
    EXPECT_EQ(costs.name, software_table().defaults.at("blackwell"));
}

TEST(SoftwareTable, NamesNoRecord) {
    // States come from what sources say of their software, never from one run.
    const JsonReader table =
        JsonReader::from_file(data_folder() / "validation/software_states.json");
    const JsonReader records =
        JsonReader::from_file(data_folder() / "validation/published/training.json");
    const std::string text = table.value().dump();
    for (const JsonReader& record : records.items())
        EXPECT_EQ(text.find(record.at("id").text()), std::string::npos) << record.at("id").text();
}

StepCase two_stages(const std::string& framework, const std::string& release, int chunks = 1) {
    StepCase step = with_software(framework, release);
    step.model = small_model(4, 0);
    step.layout.pipeline_parallel_size = 2;
    step.layout.data_parallel_size = 8;
    step.schedule.virtual_pipeline_size = chunks;
    if (chunks > 1) step.schedule.pipeline = Pipeline::interleaved;
    return step;
}

TEST(Messages, AreAwaitedByTheHostBeforeEachPassWhereTheFrameworkDoesSo) {
    const auto awaited = [](const StepCase& step) {
        const StepGraph graph = build_step_graph(step);
        return std::count_if(graph.ops.begin(), graph.ops.end(),
                             [](const Op& op) { return op.awaited; });
    };
    // two stages, four micro-batches, forward and backward: sixteen passes
    EXPECT_EQ(awaited(two_stages("megatron-lm", "20.12")), 16);
    EXPECT_EQ(awaited(two_stages("megatron-core", "0.14")), 16);
    EXPECT_EQ(awaited(two_stages("megatron-core", "0.14", 2)), 0);  // chunks: on the stream alone
    EXPECT_EQ(awaited(two_stages("torchtitan", "dev")), 0);
}

TEST(Messages, ThatAreAwaitedLetNoHostRunAheadThroughTheBubble) {
    // tiny layers: the host's launches are the step. Without waiting, the second stage launches its
    // first pass while it waits for its input.
    const StepCase step = two_stages("megatron-lm", "20.12");
    StepGraph graph = build_step_graph(step);
    const double waits = walk_closed_form(graph, step).step_time;
    for (Op& op : graph.ops) op.awaited = false;
    EXPECT_LT(walk_closed_form(graph, step).step_time, 0.95 * waits);
}

TEST(Messages, OfOlderMegatronCarryEachRanksPart) {
    const auto bytes = [](const std::string& framework, const std::string& release) {
        StepCase step = two_stages(framework, release);
        step.layout.tensor_parallel_size = 4;
        step.layout.data_parallel_size = 2;
        step.schedule.sequence_parallel = false;
        for (const ExchangeDemand& demand : build_step_graph(step).exchanges)
            if (demand.kind == Collective::send_recv) return demand.payload.value;
        return 0.0;
    };
    // 512 tokens of 256 items of two bytes, whole and a quarter of it
    EXPECT_EQ(bytes("megatron-core", "0.14"), 512 * 256 * 2);
    EXPECT_EQ(bytes("megatron-lm", "20.12"), 512 * 256 * 2 / 4);
}

TEST(LearnedPositions, RotateNothing) {
    const auto rotations = [](bool learned) {
        StepCase step = two_stages("megatron-core", "0.14");
        step.model.learned_positions = learned;
        step.model.max_sequence_length = 512;
        int count = 0;
        for (const Work& work : build_step_graph(step).works)
            for (const KernelCall& call : work.calls) count += call.kernel.starts_with("rope");
        return count;
    };
    EXPECT_GT(rotations(false), 0);
    EXPECT_EQ(rotations(true), 0);
}

TEST(CudaGraphs, TakeTheLaunchesOfWhatTheyCaptureAndNothingElse) {
    const auto host_of = [](const std::string& scope) {
        StepCase step = with_software("megatron-bridge", "26.04");
        step.schedule.software.graph_scope = scope;
        const StepGraph graph = build_step_graph(step);
        double host = 0;
        for (const JobPrice& price : price_jobs(graph, step).jobs) host += price.host;
        return host;
    };
    const double none = host_of(""), attention = host_of("attn"),
                 more = host_of("attn,moe_preprocess,moe_router"), all = host_of("full_iteration");
    EXPECT_LT(attention, none);
    EXPECT_LT(more, attention);
    EXPECT_LT(all, 0.3 * none);
}

TEST(Checkpoints, CostTheHostLaunchesForEachPartThatIsRecomputed) {
    // one kind of layer: what its two passes launch, over a step that rebuilds nothing
    const auto launches_of = [](const std::set<std::string>& modules) {
        StepCase step = with_software("megatron-core", "0.14");
        step.schedule.recompute.modules = modules;
        double sum = 0;
        for (const Work& work : build_step_graph(step).works)
            for (const KernelCall& call : work.calls) sum += call.launches;
        return sum;
    };
    const Launches& one = software_costs(with_software("megatron-core", "0.14")).checkpoint;
    const double none = launches_of({}), each = one.forward + one.backward;
    ASSERT_GT(each, 0);
    EXPECT_NEAR(launches_of({"moe_act"}) - none, each, 1e-9);
    EXPECT_NEAR(launches_of({"layernorm"}) - none, 2 * each, 1e-9);  // both norms of a layer
    EXPECT_NEAR(launches_of({"layernorm", "moe_act"}) - none, 3 * each, 1e-9);
    EXPECT_NEAR(launches_of({"mlp"}) - none, 0, 1e-9);  // no layer has one
}

TEST(CudaGraphs, OfAWholeIterationCannotWaitForTokenCounts) {
    StepCase step = with_software("megatron-bridge", "26.04");
    EXPECT_NE(software_costs(step).sync, CountSync::none);
    step.schedule.software.graph_scope = "full_iteration";
    EXPECT_EQ(software_costs(step).sync, CountSync::none);
}

TEST(OurOwnTrainer, LaunchesWhatIsPriced) {
    const SoftwareCosts costs = software_costs(with_software("moeplan", ""));
    EXPECT_TRUE(costs.counted);
    EXPECT_EQ(of(costs, Module::attention).forward, 0);
}

TEST(HostileSoftwareTable, IsRefusedWithItsPlace) {
    const auto refuses = [](const std::string& state, const std::string& part) {
        const std::string text =
            R"({"states": [{"name": "a", "frameworks": ["x"])" + state +
            R"(}], "defaults": {"ampere": "a", "hopper": "a", "blackwell": "a"}})";
        try {
            software_table_from_json(JsonReader::from_text(text, "states.json"));
            ADD_FAILURE() << text;
        } catch (const InputError& error) {
            EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
        }
    };
    refuses(R"(, "launches": {"atention": [1, 2]})", "/states/0/launches/atention");
    refuses(R"(, "launches": {"attention": [1]})", "/states/0/launches/attention");
    refuses(R"(, "launches": {"attention": [1, -2]})", "/states/0/launches/attention/1");
    refuses(R"(, "sync": "often")", "/states/0/sync");
    refuses(R"(, "like": "b")", "/states/0/like");
    refuses(R"(, "narrow_rate": 0)", "/states/0/narrow_rate");
    refuses(R"(, "speed": 2)", "speed");
}

}  // namespace
}  // namespace moeplan::tests
