#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

#include "core/errors.hpp"
#include "simulator/routing_model.hpp"
#include "simulator/step_graph.hpp"
#include "simulator/step_walk.hpp"
#include "tests/simulator/step/cases.hpp"
#include "tests/tolerance.hpp"
#include "traces/import.hpp"

namespace moeplan {
namespace {

namespace fs = std::filesystem;

/// A folder of this process, gone with the object.
struct Folder {
    fs::path path = fs::temp_directory_path() / ("moeplan_traced_" + std::to_string(::getpid()));
    Folder() { fs::create_directories(path); }
    ~Folder() { fs::remove_all(path); }
};

/// A small model whose MoE layers are those of a trace.
ModelSpec model_like(const TraceHeader& header, int layers = 2) {
    ModelSpec model = tests::small_model(layers);
    for (auto& layer : model.layers) {
        auto& moe = std::get<MoeFeedForward>(layer.feed_forward);
        moe.num_experts = header.num_experts;
        moe.top_k = header.top_k;
        moe.num_moe_heads = header.num_moe_heads;
    }
    return model;
}

/// One layer, 8 experts, top-2, `choices` of the tokens in order.
std::shared_ptr<const TraceReader> trace_of(const fs::path& file,
                                            const std::vector<std::array<int, 2>>& choices) {
    TraceHeader header;
    header.source = "training";
    header.num_moe_layers = 1;
    header.num_experts = 8;
    header.top_k = 2;
    header.tokens_per_step = static_cast<std::int64_t>(choices.size());
    header.sequence_length = static_cast<int>(choices.size());
    TraceWriter writer(file, header);
    TraceStep step;
    step.expert_ids.emplace_back();
    for (const auto& pair : choices)
        for (const int expert : pair)
            step.expert_ids[0].push_back(expert < 0 ? kNotRouted
                                                    : static_cast<std::uint16_t>(expert));
    writer.add(step);
    writer.finish();
    return std::make_shared<const TraceReader>(file);
}

TEST(TracedCopies, AreCountedFromTheTokens) {
    // 4 places of 2 experts; domains {0, 1} and {2, 3}. Four tokens, all of one source:
    //   (0,1): place 0 twice, travels once           (0,2): places 0 and 1, one domain
    //   (3,6): places 1 and 3, both domains          (7,–): place 3; the other choice was dropped
    // Rows 3, 2, 0, 2 to the places; units 2, 2, 0, 2; to the domains 3 and 2.
    const Folder folder;
    const auto trace = trace_of(folder.path / "four.h5", {{0, 1}, {0, 2}, {3, 6}, {7, -1}});
    const RoutingModel routing(model_like(trace->header()), trace, {1, 4, 4}, 1);
    EXPECT_TRUE(routing.knows_tokens());
    const PlacedLoads loads = routing.placed_loads(0, 0, 4, 1, {0, 0, 1, 1});
    EXPECT_EQ(loads.traffic, (std::vector<std::uint32_t>{3, 2, 0, 2}));
    EXPECT_EQ(loads.copies, (std::vector<std::uint32_t>{2, 2, 0, 2}));
    EXPECT_EQ(loads.domain_copies, (std::vector<std::uint32_t>{3, 2}));
}

TEST(TracedCopies, StopAtAnExpertsCapacityAsRowsDo) {
    // Capacity ⌈1·4·2/8⌉ = 1 of each expert: the second and later choices of an expert stay.
    const Folder folder;
    const auto trace = trace_of(folder.path / "four.h5", {{0, 1}, {0, 2}, {0, 3}, {0, 1}});
    ModelSpec model = model_like(trace->header());
    for (auto& layer : model.layers)
        std::get<MoeFeedForward>(layer.feed_forward).capacity_factor = 1.0;
    const RoutingModel routing(model, trace, {1, 4, 4}, 1);
    const PlacedLoads loads = routing.placed_loads(0, 0, 4, 1);
    // kept in the order of the window: experts 0, 1, 2 and 3 once each; both of place 0's may be of
    // one token
    EXPECT_EQ(loads.traffic, (std::vector<std::uint32_t>{2, 2, 0, 0}));
    EXPECT_LE(loads.copies[0], 2u);
    EXPECT_EQ(loads.copies[1], 2u);
}

/// Two experts of a token are never independent choices: where they always share a place the
/// formula 1 − (1−q)² sees half as many copies again.
TEST(TracedCopies, AreWhatADeduplicatingDispatcherSends) {
    const Folder folder;
    std::vector<std::array<int, 2>> choices;  // both experts of one place, all places alike
    for (int token = 0; token < 512; ++token)
        choices.push_back({2 * (token % 4), 2 * (token % 4) + 1});
    const auto trace = trace_of(folder.path / "pairs.h5", choices);
    StepCase step = tests::small_case(1);
    step.model = model_like(trace->header());
    step.layout.expert_parallel_size = 4;
    step.schedule.dispatcher = Dispatcher::deduplicating;
    step.routing = trace;
    const StepGraph graph = build_step_graph(step);
    for (const ExchangeDemand& demand : graph.exchanges) {
        if (demand.kind != Collective::all_to_all || !demand.to_experts) continue;
        const auto once =
            all_to_all_bytes(graph, step.layout, demand, Dispatcher::deduplicating, 0);
        // 512 tokens a source, a quarter to each place, each once: 128 rows
        for (int source = 0; source < 4; ++source)
            for (int place = 0; place < 4; ++place)
                EXPECT_EQ(once[source * 4 + place],
                          source == place ? 0 : 128 * demand.payload.value);
    }
    EXPECT_NE(std::find(graph.assumptions.begin(), graph.assumptions.end(),
                        "copies that the dispatcher saves are counted from the recorded tokens"),
              graph.assumptions.end());
}

/// Copies against a count of sets, place by place, and the flows that carry them: both networks.
TEST(TracedCopies, OfARecordedRunAreThoseOfItsTokensInBothNetworks) {
    const auto trace = std::make_shared<const TraceReader>(
        fs::path(MOEPLAN_SOURCE_DIR) / "docs/routing-runs/softmax_top_k.trace.h5");
    const TraceHeader& header = trace->header();
    ASSERT_FALSE(header.counts_only);
    StepCase step = tests::small_case(2);
    step.model = model_like(header);
    step.layout.expert_parallel_size = 8;
    step.layout.data_parallel_size = 16;
    step.schedule.num_micro_batches = 2;
    step.schedule.sequence_length = 64;
    step.schedule.dispatcher = Dispatcher::deduplicating;
    step.routing = trace;
    // domains of 4, so that a group of 8 places spans two of them
    step.cluster.num_nodes = 4;
    step.cluster.gpus_per_node = 4;
    auto& fabric = std::get<Fabric>(step.cluster.topology);
    fabric.scale_up = NvSwitch{4};
    std::get<RailFatTree>(fabric.scale_out).num_nics = 4;
    const StepGraph graph = build_step_graph(step);
    EXPECT_EQ(graph.place_domain, (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1}));
    ASSERT_FALSE(graph.loads.empty());
    for (const ExpertLoads& loads : graph.loads) {
        ASSERT_EQ(loads.copies.size(), loads.traffic.size());
        for (std::size_t s = 0; s * 8 < loads.traffic.size(); ++s) {
            std::uint32_t sum = 0;
            for (std::size_t p = 0; p < 8; ++p) {
                EXPECT_LE(loads.copies[s * 8 + p], loads.traffic[s * 8 + p]);
                sum += loads.copies[s * 8 + p];
            }
            const std::uint32_t near = loads.domain_copies[s * 2],
                                far = loads.domain_copies[s * 2 + 1];
            EXPECT_LE(near, loads.units);
            EXPECT_LE(far, loads.units);
            EXPECT_GE(near + far, loads.units);  // every unit goes somewhere
            EXPECT_LE(near + far, sum);
        }
    }
    StepNetwork network(step, graph);
    for (std::uint32_t d = 0; d < graph.exchanges.size(); ++d) {
        if (graph.exchanges[d].kind != Collective::all_to_all) continue;
        const std::vector<LinkLoad> by_loads = network.loads(d).stages.front().loads;
        const Exchange& flows = network.exchange(d);
        const auto by_flows = link_loads(network.links(), flows.stages.front().flows);
        ASSERT_EQ(by_flows.size(), by_loads.size());
        for (std::size_t i = 0; i < by_loads.size(); ++i) {
            EXPECT_EQ(by_flows[i].link, by_loads[i].link);
            EXPECT_TRUE(close(by_flows[i].bytes.value, by_loads[i].bytes.value));
        }
    }
}

/// Whatever record of routing there is: ours of every routing, and other people's after import.
TEST(TracedRouting, OfEverySampleGivesEveryChoiceAPlace) {
    const Folder folder;
    std::vector<fs::path> traces;
    for (const auto& entry : fs::directory_iterator(fs::path(MOEPLAN_SOURCE_DIR) / "docs/routing-runs"))
        if (entry.path().extension() == ".h5") traces.push_back(entry.path());
    EXPECT_GE(traces.size(), 10u);
    for (const auto& entry : fs::directory_iterator(fs::path(MOEPLAN_TEST_DATA) / "traces")) {
        const auto extension = entry.path().extension();
        if (extension != ".json" && extension != ".jsonl") continue;
        traces.push_back(folder.path / (entry.path().stem().string() + ".h5"));
        import_trace(entry.path(), traces.back(), {});
    }
    EXPECT_GE(traces.size(), 13u);
    for (const fs::path& path : traces) {
        const auto trace = std::make_shared<const TraceReader>(path);
        const TraceHeader& header = trace->header();
        const int places = header.num_experts % 4 == 0 ? 4 : 1, tokens = 256;
        for (const int clones : {1, 2}) {  // the trace's own experts, and twice as many
            ModelSpec model = model_like(header);
            for (auto& layer : model.layers)
                std::get<MoeFeedForward>(layer.feed_forward).num_experts *= clones;
            const RoutingModel routing(model, trace, {places, tokens, tokens}, 1);
            EXPECT_EQ(routing.knows_tokens(), clones == 1 && !header.counts_only) << path;
            EXPECT_FALSE(routing.assumptions().empty());
            for (int layer = 0; layer < 2; ++layer) {
                const PlacedLoads loads = routing.placed_loads(layer, 1, places, places);
                const double all =
                    static_cast<double>(places) * tokens * header.num_moe_heads * header.top_k;
                const double sent =
                    std::accumulate(loads.traffic.begin(), loads.traffic.end(), 0.0);
                EXPECT_EQ(sent, std::accumulate(loads.rows.begin(), loads.rows.end(), 0.0)) << path;
                EXPECT_LE(sent, all) << path;  // recorded drops stay dropped
                EXPECT_GT(sent, 0.5 * all) << path;
            }
        }
        ModelSpec other = model_like(header);
        for (auto& layer : other.layers)
            std::get<MoeFeedForward>(layer.feed_forward).num_moe_heads += 1;
        EXPECT_THROW(RoutingModel(other, trace, {places, tokens, tokens}, 1), InputError) << path;
    }
}

}  // namespace
}  // namespace moeplan
