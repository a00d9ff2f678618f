/// Memory of a step against hand-worked sums, laws, and published peaks.
#include "model/memory.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "model/check.hpp"
#include "model/import/hugging_face.hpp"
#include "model/layout_words.hpp"
#include "model/op_counts.hpp"
#include "model/stage_layers.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

StageMemory only(const ModelSpec& model, const ParallelLayout& layout, const StepSchedule& schedule,
                 double hot = 1) {
    return memory_by_stage(model, layout, schedule, hot).front();
}
double whole(const std::vector<StageMemory>& stages, Bytes StageMemory::*part) {
    double sum = 0;
    for (const auto& stage : stages) sum += (stage.*part).value;
    return sum;
}

TEST(MemoryByStage, OneGpuHoldsEveryParameter) {
    // bf16 weights, fp32 gradients; master weights and two moments: 2 + 4 + 12 bytes a parameter.
    for (const auto& name : shipped_models()) {
        ModelSpec model = load_model(name);
        model.num_mtp_layers = 0;
        const auto total = static_cast<double>(count_parameters(model).total);
        const StageMemory memory = only(model, {}, {});
        EXPECT_TRUE(close(memory.weights.value, 2 * total)) << name;
        EXPECT_TRUE(close(memory.gradients.value, 4 * total)) << name;
        EXPECT_TRUE(close(memory.optimizer.value, 12 * total)) << name;
        EXPECT_EQ(memory.dispatch.value, 0) << name;
    }
}

TEST(MemoryByStage, ExpertsShareStatesInTheirOwnGroup) {
    // Qwen3-30B, EP 8 on 8 and on 32 GPUs: experts 28.99e9/8, of which 12 bytes a parameter over
    // expert-DP 1 or 4; the rest over DP 8 or 32.
    const ModelSpec model = load_model("qwen3-30b-a3b");
    const double experts = 48.0 * 128 * 4'718'592, rest = 30'532'122'624 - experts;
    for (const int nodes : {1, 4}) {
        const StageMemory memory =
            only(model, {.data_parallel_size = 8 * nodes, .expert_parallel_size = 8}, {});
        EXPECT_TRUE(close(memory.weights.value, 2 * (experts / 8 + rest)));
        EXPECT_TRUE(close(memory.optimizer.value, 12 * (experts / 8 / nodes + rest / (8 * nodes))));
    }
}

TEST(MemoryByStage, ExpertsDivideByExpertSizesAndTheRestByTensorSize) {
    const ModelSpec model = load_model("mixtral-8x7b");
    const ParallelLayout layout{
        .tensor_parallel_size = 8, .data_parallel_size = 2, .expert_parallel_size = 2};
    EXPECT_EQ(layout_facts(model, layout, {}, 16).expert_params_per_gpu,
              22'548'578'304);  // 45.1e9 / (ETP 1 · EP 2)
    const double d = 4096, norms = (2 * 32 + 1) * d, router = 32 * 8 * d,
                 rest = 46'702'792'704 - 45'097'156'608 - norms - router;
    EXPECT_TRUE(close(only(model, layout, {}).weights.value,
                      2 * (22'548'578'304 + rest / 8 + norms + router)));
}

TEST(MemoryByStage, StagesTogetherHoldTheModelOnce) {
    for (const char* name : {"mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"}) {
        ModelSpec model = load_model(name);
        model.num_mtp_layers = 0;
        for (const int pp : {1, 2, 4}) {
            const auto stages = memory_by_stage(model, {.pipeline_parallel_size = pp}, {});
            EXPECT_EQ(static_cast<int>(stages.size()), pp);
            EXPECT_TRUE(close(whole(stages, &StageMemory::weights),
                              2.0 * static_cast<double>(count_parameters(model).total)))
                << name << " pp " << pp;
        }
    }
}

TEST(MemoryByStage, ShardingSharesMoreAtEachStep) {
    const ModelSpec model = load_model("mixtral-8x7b");
    const ParallelLayout layout{.data_parallel_size = 8, .expert_parallel_size = 4};
    const auto with = [&](Sharding sharding) {
        StepSchedule schedule;
        schedule.sharding = sharding;
        return only(model, layout, schedule);
    };
    const StageMemory none = with(Sharding::none), one = with(Sharding::zero1),
                      two = with(Sharding::zero2), three = with(Sharding::zero3);
    EXPECT_EQ(none.optimizer.value, 6 * none.weights.value);
    EXPECT_LT(one.optimizer, none.optimizer);
    EXPECT_EQ(one.gradients, none.gradients);
    EXPECT_LT(two.gradients, one.gradients);
    EXPECT_EQ(two.weights, one.weights);
    EXPECT_LT(three.weights, two.weights);
    EXPECT_EQ(none.activations, three.activations);
    // FSDP holds the layer at work, the next one, and a gradient.
    EXPECT_GT(three.other.value, 0);
}

TEST(LayerActivations, HandWorkedMoeLayer) {
    // Qwen3-30B, one sequence of 4096, bf16, Megatron (gates weigh the inner activation). Per
    // token, in elements of 2 bytes:
    //   four residual-stream tensors 4·2048; q, k, v 4096 + 2·512, normed q and k 4096 + 512,
    //   output 4096; 8 permuted copies 8·2048; gate and up 2·8·768; product 8·768; and in 4 bytes:
    //   logsumexp 32, logits and probabilities 2·128.
    const ModelSpec model = load_model("qwen3-30b-a3b");
    StepSchedule schedule;
    schedule.software.framework = "megatron-core";
    const double elements = 4 * 2048 + (4096 + 1024) + (4096 + 512) + 4096 + 8 * 2048 + 3 * 8 * 768,
                 words = 32 + 256;
    EXPECT_TRUE(close(layer_activations(model, model.layers[0], {}, schedule).kept.value,
                      4096 * (2 * elements + 4 * words)));
    // FFN width 8·768 = 6144 a token and 8·2048 = 16384 of permuted hidden states: the expert part,
    // not a dense MLP's.
    schedule.recompute.modules = {"moe_act"};
    EXPECT_TRUE(close(layer_activations(model, model.layers[0], {}, schedule).kept.value,
                      4096 * (2 * (elements - 6144) + 4 * words)));
    schedule.recompute.modules = {"moe"};
    EXPECT_TRUE(close(layer_activations(model, model.layers[0], {}, schedule).kept.value,
                      4096 * (2 * (elements - 16384 - 3 * 6144) + 4 * 32)));
    schedule.recompute = {.full = true};
    EXPECT_TRUE(
        close(layer_activations(model, model.layers[0], {}, schedule).kept.value, 4096 * 2 * 2048));
}

TEST(LayerActivations, TokensAreSplitByContextAndSequenceParallelism) {
    const ModelSpec model = load_model("mixtral-8x7b");
    const double one = layer_activations(model, model.layers[0], {}, {}).kept.value;
    EXPECT_TRUE(close(
        layer_activations(model, model.layers[0], {.context_parallel_size = 4}, {}).kept.value,
        one / 4));
    StepSchedule schedule;
    schedule.sequence_parallel = true;
    // Every tensor is either split by tokens or by heads and widths: all of it divides.
    EXPECT_TRUE(close(
        layer_activations(model, model.layers[0], {.tensor_parallel_size = 8}, schedule).kept.value,
        one / 8));
    schedule.sequence_parallel = false;
    EXPECT_GT(
        layer_activations(model, model.layers[0], {.tensor_parallel_size = 8}, schedule).kept.value,
        one / 8);
}

TEST(LayerActivations, AHotRankReceivesMoreRows) {
    const ModelSpec model = load_model("mixtral-8x7b");
    const ParallelLayout layout{.data_parallel_size = 8, .expert_parallel_size = 8};
    const LayerActivations balanced = layer_activations(model, model.layers[0], layout, {}),
                           hot = layer_activations(model, model.layers[0], layout, {}, 3);
    // Dispatch: 2·4096 rows leave and as many arrive, 3 times as many on the hot rank.
    EXPECT_TRUE(close(balanced.dispatch.value, 2 * 4096 * 4096 * 2 * 2.0));
    EXPECT_TRUE(close(hot.dispatch.value, 2 * 4096 * 4096 * 2 * (1 + 3.0)));
    EXPECT_GT(hot.kept, balanced.kept);
    EXPECT_EQ(
        layer_activations(model, model.layers[0], {}, {}, 3).kept,
        layer_activations(model, model.layers[0], {}, {}).kept);  // one rank holds all experts
}

TEST(PassesInFlight, FollowTheSchedule) {
    using Passes = std::vector<std::vector<int>>;
    StepSchedule schedule{.num_micro_batches = 8};
    const ParallelLayout layout{.pipeline_parallel_size = 4};
    EXPECT_EQ(passes_in_flight(layout, schedule), (Passes{{4}, {3}, {2}, {1}}));  // 1F1B: p − i
    schedule.num_micro_batches = 2;
    EXPECT_EQ(passes_in_flight(layout, schedule), (Passes{{2}, {2}, {2}, {1}}));
    schedule = {.num_micro_batches = 8, .pipeline = Pipeline::gpipe};
    EXPECT_EQ(passes_in_flight(layout, schedule), (Passes{{8}, {8}, {8}, {8}}));
    // Interleaved: 2(p − i − 1) + (v − 1)p + 1 passes of chunks; rank 0: 6 + 4 + 1 = 11 = 4 + 4 of
    // round one, 3 of the next.
    schedule = {
        .num_micro_batches = 8, .virtual_pipeline_size = 2, .pipeline = Pipeline::interleaved};
    EXPECT_EQ(passes_in_flight(layout, schedule)[0], (std::vector{7, 4}));
    EXPECT_EQ(passes_in_flight(layout, schedule)[3], (std::vector{4, 1}));
    for (const auto& chunks :
         passes_in_flight({.pipeline_parallel_size = 4}, {.num_micro_batches = 1,
                                                         .virtual_pipeline_size = 2,
                                                         .pipeline = Pipeline::interleaved}))
        EXPECT_LE(std::accumulate(chunks.begin(), chunks.end(), 0), 2);
}

TEST(MemoryByStage, TheHeaviestStageIsNotTheMean) {
    ModelSpec model = load_model("mixtral-8x7b");
    model.layers.resize(8);
    StepSchedule schedule;
    schedule.stage_layers = {1, 2, 2, 3};
    const auto stages = memory_by_stage(model, {.pipeline_parallel_size = 4}, schedule);
    EXPECT_EQ(layout_facts(model, {.pipeline_parallel_size = 4}, schedule, 4).layers_per_stage,
              (std::vector{1, 2, 2, 3}));
    EXPECT_GT(stages[3].weights.value, whole(stages, &StageMemory::weights) / 4);
}

// Published peaks of allocated memory, Megatron in bf16, nothing recomputed: our sum must be within
// 5 %. What it leaves out: workspaces of attention and GEMMs, buckets of the gradient reduction,
// and what the allocator's peak catches between two kernels.
TEST(MemoryByStage, PublishedPeaksAreMetWithinFivePercent) {
    const JsonReader file =
        JsonReader::from_file(std::string(MOEPLAN_TEST_DATA) + "/model_spec/peak_memory.json");
    int rows = 0;
    for (const JsonReader& row : file.at("rows").items()) {
        const ModelSpec model = model_from_hugging_face(row.at("model"), row.at("id").text());
        LayoutWords words;
        for (const auto& [key, value] : row.at("layout").members())
            words[key] = value.is_string() ? value.text()
                         : value.is_bool() ? (value.boolean() ? "true" : "false")
                                           : std::to_string(value.integer());
        const ResolvedLayout resolved = resolve_layout(words, model, row.at("gpus").count());
        EXPECT_TRUE(resolved.broken.empty());
        Bytes peak;
        for (const StageMemory& stage : memory_by_stage(model, resolved.layout, resolved.schedule))
            peak = std::max(peak, stage.total());
        const double measured = row.at("peak_allocated_gib").number() * 1024 * 1024 * 1024;
        EXPECT_TRUE(close(peak.value, measured, kPublishedPeakMemory))
            << row.at("id").text() << ": " << peak.value / measured;
        ++rows;
    }
    EXPECT_GE(rows, 10);
}

}  // namespace
}  // namespace moeplan
