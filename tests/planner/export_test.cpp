/// Candidates in other systems' words, and plans read back.

#include "planner/export.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "core/errors.hpp"
#include "planner/parallel_for.hpp"
#include "planner/plan.hpp"
#include "planner/scout.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

using namespace literals;
using ::testing::HasSubstr;
using ::testing::Not;

StepCase mixtral_like() {
    StepCase out;
    out.model.name = "mixtral-like";
    out.model.hidden_size = 4096;
    out.model.vocab_size = 32000;
    MoeFeedForward moe;
    moe.num_experts = 8;
    moe.top_k = 2;
    moe.expert_hidden_size = 14336;
    moe.balance_coefficient = 0.02;
    moe.renormalise_gates = true;
    const GroupedQueryAttention attention{
        .num_attention_heads = 32, .num_kv_heads = 8, .head_size = 128};
    out.model.layers.assign(32, LayerSpec{attention, moe, std::nullopt});
    out.cluster = load_cluster("dgx-h100:4");
    out.layout = {.tensor_parallel_size = 2,
                  .pipeline_parallel_size = 2,
                  .data_parallel_size = 8,
                  .expert_parallel_size = 8};
    out.schedule.micro_batch_size = 2;
    out.schedule.num_micro_batches = 16;
    out.schedule.virtual_pipeline_size = 4;
    out.schedule.pipeline = Pipeline::interleaved;
    out.schedule.sequence_parallel = true;
    return out;
}

TEST(Export, MegatronFlagsSayTheWholeLayout) {
    const Exported script = to_megatron(mixtral_like());
    ASSERT_EQ(script.refused, "");
    // 2 sequences · 16 micro-batches · dp 8 = 256
    for (const char* flag :
         {"--tensor-model-parallel-size 2\n", "--pipeline-model-parallel-size 2\n",
          "--expert-model-parallel-size 8\n", "--expert-tensor-parallel-size 1\n",
          "--num-virtual-stages-per-pipeline-rank 4\n", "--sequence-parallel\n",
          "--micro-batch-size 2\n", "--global-batch-size 256\n", "--num-experts 8\n",
          "--moe-router-topk 2\n", "--moe-ffn-hidden-size 14336\n", "--num-query-groups 8\n",
          "--use-distributed-optimizer\n", "--num-layers 32\n", "--bf16\n",
          "--nnodes \"${NNODES:-4}\" --nproc-per-node 8"})
        EXPECT_THAT(script.text, HasSubstr(flag));
    EXPECT_THAT(script.text, Not(HasSubstr("--moe-layer-freq")));
}

TEST(Export, MegatronWritesRunsOfDenseAndExpertLayers) {
    StepCase step = mixtral_like();
    for (int i = 0; i < 3; ++i)
        step.model.layers[i].feed_forward = DenseFeedForward{.dense_hidden_size = 18432};
    const Exported script = to_megatron(step);
    EXPECT_THAT(script.text, HasSubstr("--moe-layer-freq \"([0]*3+[1]*29)\"\n"));
    EXPECT_THAT(script.text, HasSubstr("--ffn-hidden-size 18432\n"));
}

TEST(Export, NoOtherSystemTrainsMhMoeAndEachSaysSo) {
    StepCase step = mixtral_like();
    for (LayerSpec& layer : step.model.layers)
        std::get<MoeFeedForward>(layer.feed_forward).num_moe_heads = 2;
    for (const ExportTarget target :
         {ExportTarget::megatron, ExportTarget::deepspeed, ExportTarget::torchtitan}) {
        const Exported out = export_to(target, step);
        EXPECT_THAT(out.refused, HasSubstr("MH-MoE"));
        EXPECT_EQ(out.text, "");
    }
}

TEST(Export, TorchtitanTakesTheWholePipelinesBatch) {
    const Exported toml = to_torchtitan(mixtral_like());
    ASSERT_EQ(toml.refused, "");
    for (const char* line : {"local_batch_size = 32\n", "global_batch_size = 256\n",
                             "pipeline_parallel_microbatch_size = 2\n",
                             "pipeline_parallel_schedule = \"Interleaved1F1B\"\n",
                             "data_parallel_shard_degree = 8\n", "expert_parallel_degree = 8\n",
                             "expert_tensor_parallel_degree = 1\n", "mode = \"none\"\n"})
        EXPECT_THAT(toml.text, HasSubstr(line));
    StepCase odd = mixtral_like();
    odd.layout.tensor_parallel_size = 4;
    odd.layout.expert_tensor_parallel_size = 2;
    EXPECT_THAT(to_torchtitan(odd).refused, HasSubstr("1 or tp"));
}

TEST(Export, DeepspeedBatchSizesMultiply) {
    StepCase step = mixtral_like();
    EXPECT_THAT(to_deepspeed(step).refused, HasSubstr("pipeline"));
    step.layout.pipeline_parallel_size = 1;
    step.layout.data_parallel_size = 16;
    const Exported json = to_deepspeed(step);
    ASSERT_EQ(json.refused, "");
    const Json config = Json::parse(json.text);
    EXPECT_EQ(config["train_batch_size"].get<int>(),
              config["train_micro_batch_size_per_gpu"].get<int>() *
                  config["gradient_accumulation_steps"].get<int>() * 16);
    EXPECT_EQ(config["zero_optimization"]["stage"], 1);
    EXPECT_TRUE(config["bf16"]["enabled"]);
}

TEST(Export, SlurmAsksForTheClusterAndStartsOneTaskANode) {
    const Exported script = to_slurm(mixtral_like());
    EXPECT_THAT(script.text, HasSubstr("#SBATCH --nodes=4\n"));
    EXPECT_THAT(script.text, HasSubstr("#SBATCH --gpus-per-node=8\n"));
    EXPECT_THAT(script.text, HasSubstr("#SBATCH --ntasks-per-node=1\n"));
}

Plan one_candidate(const StepCase& step) {
    Plan out;
    ResizedModel model;
    model.model = step.model;
    model.shape = moe_shape(*first_moe(step.model));
    out.models.push_back(model);
    Candidate candidate;
    candidate.step = step;
    candidate.predicted.step_time = 1.5_s;
    out.best.push_back(candidate);
    out.front = {0};
    return out;
}

TEST(PlanJson, ACandidateReadsBackAsItWas) {
    const StepCase step = mixtral_like();
    const std::string text = to_file_text(to_json(one_candidate(step), step));
    const StoredPlan plan = plan_from_json(JsonReader::from_text(text, "plan.json"));
    ASSERT_EQ(plan.candidates.size(), 1u);
    EXPECT_EQ(plan.candidates[0].model, step.model);
    EXPECT_EQ(plan.candidates[0].layout, step.layout);
    EXPECT_EQ(plan.candidates[0].schedule, step.schedule);
    EXPECT_EQ(num_gpus(plan.candidates[0].cluster), 32);
    EXPECT_EQ(plan.predicted[0].step_time, 1.5_s);
    EXPECT_EQ(plan.front, (std::vector<std::size_t>{0}));
}

std::string refusal_of(const Json& plan) {
    try {
        plan_from_json(JsonReader::from_value(plan, "x.json"));
    } catch (const InputError& error) {
        return error.what();
    }
    return "accepted";
}

TEST(PlanJson, AWrongWordIsNamedByItsPlaceInTheFile) {
    const StepCase step = mixtral_like();
    const Json sound = to_json(one_candidate(step), step);
    EXPECT_EQ(refusal_of(sound), "accepted");
    Json plan = sound;
    plan["candidates"][0]["layout"]["tp"] = "many";
    EXPECT_EQ(refusal_of(plan),
              "x.json: /candidates/0/layout/tp is many, expected an integer 1 … 1048576");
    plan = sound;
    plan["candidates"][0]["layout"]["tp"] = 1.5;
    EXPECT_THAT(refusal_of(plan), HasSubstr("x.json: /candidates/0/layout/tp is 1.5, expected"));
    plan = sound;
    plan["candidates"][0]["layout"]["zero"] = "all";
    plan["candidates"][0].erase("schedule");
    EXPECT_THAT(refusal_of(plan), HasSubstr("x.json: /candidates/0/layout/zero is all, expected"));
    plan = sound;
    plan["candidates"][0]["layout"]["overlap_gradients"] = "perhaps";
    plan["candidates"][0].erase("schedule");
    EXPECT_THAT(refusal_of(plan), HasSubstr("/candidates/0/layout/overlap_gradients is perhaps"));
    plan = sound;
    plan["candidates"][0]["layout"]["tensor"] = 2;
    EXPECT_THAT(refusal_of(plan), HasSubstr("x.json: /candidates/0/layout/tensor is an unknown"));
    plan = sound;
    plan["candidates"][0]["routing"]["synthetic"] = "sideways";
    EXPECT_THAT(refusal_of(plan), HasSubstr("x.json: /candidates/0/routing/synthetic is "));
    plan = sound;
    plan["candidates"][0]["routing"]["exponent"] = -1;
    EXPECT_THAT(refusal_of(plan), HasSubstr("x.json: /candidates/0/routing/exponent is -1"));
}

TEST(PlanJson, ALayoutAndItsScheduleSayTheSame) {
    const StepCase step = mixtral_like();
    Json plan = to_json(one_candidate(step), step);
    plan["candidates"][0]["schedule"]["micro_batch"] = 4;
    EXPECT_EQ(refusal_of(plan),
              "x.json: /candidates/0/schedule/micro_batch is 4, expected \"2\", which "
              "/candidates/0/layout/micro_batch says");
}

TEST(PlanJson, ACandidateThatBreaksARuleIsRefusedWithTheRule) {
    const StepCase step = mixtral_like();
    const Json sound = to_json(one_candidate(step), step);
    const auto with = [&](const Json& words) {
        Json plan = sound;
        plan["candidates"][0].erase("schedule");
        plan["candidates"][0]["layout"].update(words);
        return refusal_of(plan);
    };
    // 32 GPUs over tp 3 · pp 2; 8 experts over 3; 32 GPUs over tp 2 · pp 2 · dp 4
    EXPECT_EQ(with({{"tp", 3}}),
              "x.json: /candidates/0/layout/pp is 2, expected another layout: TP·CP·PP = 6 does "
              "not divide 32 GPUs (remainder 2)");
    EXPECT_THAT(with({{"ep", 3}, {"dp", 8}}), HasSubstr("x.json: /candidates/0/layout/ep is 3"));
    EXPECT_THAT(with({{"dp", 4}, {"global_batch", 128}}),
                HasSubstr("TP·CP·PP·DP = 16, but there are 32 GPUs"));
    EXPECT_THAT(with({{"global_batch", 255}}),
                HasSubstr("x.json: /candidates/0/layout/global_batch is 255, expected another "
                          "layout: global batch 255 is no multiple"));
    // Rules of the cluster count as well: an A100 has no fp8.
    Json plan = sound;
    plan["cluster"]["gpu"]["peak"] = {{"bf16", "312 TFlop/s"}};
    plan["candidates"][0].erase("schedule");
    plan["candidates"][0]["layout"]["precision"] = "fp8";
    EXPECT_THAT(refusal_of(plan), HasSubstr("does not compute in fp8"));
}

TEST(PlanJson, SeedsOfSixtyFourBitsReadBack) {
    StepCase step = mixtral_like();
    step.seed = 18446744073709551615u;
    const Json plan = to_json(one_candidate(step), step);
    EXPECT_EQ(plan_from_json(JsonReader::from_value(plan, "x.json")).candidates[0].seed, step.seed);
}

TEST(PlanJson, OtherFilesAndDamagedPlansAreRefusedWithTheirPlace) {
    EXPECT_THROW(plan_from_json(JsonReader::from_text("{}", "x.json")), InputError);
    EXPECT_THROW(plan_from_json(JsonReader::from_text("[1]", "x.json")), InputError);
    const StepCase step = mixtral_like();
    Json plan = to_json(one_candidate(step), step);
    plan["front"] = {7};
    try {
        plan_from_json(JsonReader::from_value(plan, "x.json"));
        FAIL();
    } catch (const InputError& error) {
        EXPECT_THAT(error.what(), HasSubstr("/front/0"));
    }
    plan["front"] = Json::array();
    plan["candidates"][0]["layout"]["tp"] = "many";
    EXPECT_THROW(plan_from_json(JsonReader::from_value(plan, "x.json")), InputError);
}

TEST(Scout, ReadsALinearStepTimeOffTwoSmallRunsUnderBalancedRouting) {
    // t = 3 + 2 m
    int runs = 0, most = 0;
    const auto runner = [&](const StepCase& step) {
        EXPECT_EQ(std::get<SyntheticRouting>(step.routing).kind, "balanced");
        ++runs;
        most = std::max(most, step.schedule.num_micro_batches);
        StepReport out;
        out.step_time = {3.0 + 2 * step.schedule.num_micro_batches};
        return out;
    };
    StepCase step = mixtral_like();  // pp 2
    step.schedule.num_micro_batches = 64;
    step.routing = SyntheticRouting{.kind = "multinomial"};
    for (const int vpp : {1, 2, 4}) {
        step.schedule.virtual_pipeline_size = vpp;
        runs = most = 0;
        EXPECT_TRUE(close(scout_step(step, runner).value, 3 + 2 * 64));
        EXPECT_EQ(runs, 2);
        EXPECT_EQ(most, vpp > 1 ? 4 : 2);
    }
    step.schedule.num_micro_batches = 2;  // nothing to save: run whole
    runs = 0;
    scout_step(step, runner);
    EXPECT_EQ(runs, 1);
}

TEST(ParallelFor, EachIndexOnceAndTheFirstFaultIsThrown) {
    for (const int threads : {1, 2, 7}) {
        std::vector<std::atomic<int>> seen(100);
        parallel_for(seen.size(), threads, [&](std::size_t i) { ++seen[i]; });
        for (const auto& count : seen) EXPECT_EQ(count, 1);
        try {
            parallel_for(50, threads, [](std::size_t i) {
                if (i % 20 == 7) throw std::runtime_error(std::to_string(i));
            });
            FAIL();
        } catch (const std::runtime_error& error) {
            EXPECT_STREQ(error.what(), "7");
        }
    }
}

}  // namespace
}  // namespace moeplan
