/// A record becomes the case that its source ran, and says what it assumed.

#include "planner/accuracy/record_case.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "planner/accuracy/evaluate.hpp"
#include "tests/accuracy/records.hpp"

namespace moeplan {
namespace {

using testing::HasSubstr;

std::variant<RecordCase, SkippedRecord> built(const Json& record) {
    const Record read = read_one(record);
    if (const auto* skipped = std::get_if<SkippedRecord>(&read)) return *skipped;
    return case_of(std::get<TrainingRecord>(read), shipped_profile_source());
}
RecordCase sound(const Json& record) {
    auto out = built(record);
    if (const auto* skipped = std::get_if<SkippedRecord>(&out))
        throw std::runtime_error(skipped->reason);
    return std::get<RecordCase>(std::move(out));
}
SkippedRecord refused(const Json& record) {
    auto out = built(record);
    if (const auto* skipped = std::get_if<SkippedRecord>(&out)) return *skipped;
    throw std::runtime_error("it was not refused");
}
std::string assumed(const RecordCase& run, const std::string& key) {
    for (const Assumption& assumption : run.assumed)
        if (assumption.key == key) return assumption.value;
    return "";
}

TEST(RecordCase, StatedFieldsAreTheCase) {
    const RecordCase run = sound(dense_record());
    EXPECT_EQ(num_gpus(run.step.cluster), 16);
    EXPECT_EQ(run.step.layout.data_parallel_size, 4);
    EXPECT_EQ(run.step.schedule.num_micro_batches, 16);  // 64 / (1 · 4)
    EXPECT_EQ(run.step.schedule.software.framework, "megatron-bridge");
    EXPECT_EQ(assumed(run, "sharding"), "");
    EXPECT_EQ(assumed(run, "sequence_parallel"), "true");
}

TEST(RecordCase, AnUnknownGpuIsSkipped) {
    Json record = dense_record();
    record["canonical"]["gpu"] = "h900-sxm";
    const SkippedRecord skipped = refused(record);
    EXPECT_EQ(skipped.rule, "unknown_gpu");
    EXPECT_THAT(skipped.reason, HasSubstr("h900-sxm"));
}

TEST(RecordCase, EveryImpossibleLayoutIsSkipped) {
    const struct {
        const char* key;
        int value;
        const char* says;
    } faults[] = {{"tp", 3, "16 GPUs"},     {"pp", 5, "16 GPUs"},       {"cp", 7, "16 GPUs"},
                  {"pp", 16, "8 layers"},   {"global_batch", 63, "63"}, {"micro_batch", 64, "64"},
                  {"ep", 4, "without MoE"}, {"gpus", 12, "12"},         {"gpus_per_node", 5, "5"}};
    for (const auto& fault : faults) {
        Json record = dense_record();
        record["canonical"][fault.key] = fault.value;
        const SkippedRecord skipped = refused(record);
        EXPECT_THAT(skipped.reason, HasSubstr(fault.says)) << fault.key << " " << fault.value;
    }
    Json record = moe_record();
    record["canonical"]["ep"] = 5;
    EXPECT_EQ(refused(record).rule, "layout");
    record["canonical"]["ep"] = 8;
    record["canonical"]["precision"] = "mxfp8";  // not in Hopper's tensor cores
    EXPECT_THAT(refused(record).reason, HasSubstr("mxfp8"));
}

TEST(RecordCase, WhatIsUnstatedIsAssumedAloud) {
    Json record = moe_record();
    for (const char* key : {"etp", "routing", "recompute", "sharding"})
        record["canonical"][key] = nullptr;
    const RecordCase run = sound(record);
    EXPECT_EQ(assumed(run, "etp"), "1");
    EXPECT_EQ(assumed(run, "routing"), "balanced");
    EXPECT_EQ(assumed(run, "recompute"), "none");
    EXPECT_EQ(assumed(run, "sharding"), "zero1");
    EXPECT_EQ(assumed(run, "dispatcher"), "deduplicating");  // Megatron-Bridge 26.04
}

TEST(RecordCase, NaturalRoutingIsSkewedAndSaysSo) {
    Json record = moe_record();
    record["canonical"]["routing"] = "natural";
    const RecordCase run = sound(record);
    EXPECT_EQ(std::get<SyntheticRouting>(run.step.routing).kind, "zipf");
    EXPECT_EQ(assumed(run, "routing"), "zipf:1.1");
}

TEST(RecordCase, ExpertsSharedExpertsAndDenseLayersAreTheArchitectures) {
    const RecordCase run = sound(moe_record());
    EXPECT_EQ(num_moe_layers(run.step.model), 7);
    const MoeFeedForward& moe = *first_moe(run.step.model);
    EXPECT_EQ(moe.num_experts, 32);
    EXPECT_EQ(moe.num_shared_experts * moe.shared_expert_hidden_size, 1024);
    EXPECT_TRUE(std::holds_alternative<DenseFeedForward>(run.step.model.layers[0].feed_forward));
}

TEST(RecordCase, AlternateWindowsAreEverySecondLayer) {
    Json record = moe_record();
    record["workload"]["architecture"]["sliding_window"] = "128 tokens on alternate layers";
    const RecordCase run = sound(record);
    for (std::size_t l = 0; l < 8; ++l)
        EXPECT_EQ(run.step.model.layers[l].window.has_value(), l % 2 == 0) << l;
}

TEST(RecordCase, LatentAttentionHasItsOwnSizes) {
    Json record = moe_record();
    Json& architecture = record["workload"]["architecture"];
    architecture["attention"] = "mla";
    architecture.update(Json{{"kv_lora_rank", 512},
                             {"q_lora_rank", nullptr},
                             {"qk_head_dim", 128},
                             {"qk_rope_dim", 64},
                             {"v_head_dim", 128}});
    const RecordCase run = sound(record);
    const auto& mla = std::get<LatentAttention>(run.step.model.layers[0].attention);
    EXPECT_EQ(mla.nope_size, 128);
    EXPECT_EQ(mla.q_lora_rank, 0);
}

TEST(RecordCase, EarlySoftwareShardsAndOverlapsNothing) {
    Json record = dense_record();
    record["software"] = "Megatron-LM, April 2021, fp16 mixed precision";
    record["canonical"]["sharding"] = nullptr;
    const RecordCase run = sound(record);
    EXPECT_EQ(run.step.schedule.sharding, Sharding::none);
    EXPECT_FALSE(run.step.schedule.overlap.gradients);
    EXPECT_FALSE(run.step.schedule.sequence_parallel);
}

TEST(RecordCase, MemoryDecidesWhatRecomputationIsAssumed) {
    Json record = dense_record();
    record["canonical"]["recompute"] = nullptr;
    record["canonical"]["micro_batch"] =
        16;  // 16 · 2048 tokens of 8 layers do not fit 80 GB? They do
    EXPECT_EQ(assumed(sound(record), "recompute"), "none");
    record["canonical"]["seq"] = 65536;
    record["canonical"].erase("step_time_s");
    record["canonical"]["tflops_per_gpu"] = 400;
    record["canonical"]["tflops_convention"] = "causal attention";
    record["measured"] = {{"metric", "tflops_per_gpu"}, {"value", 400}, {"unit", "TFLOP/s/GPU"}};
    EXPECT_THAT(assumed(sound(record), "recompute"), HasSubstr("selective"));
    record["software"] = "LLM Foundry / Composer, PyTorch FSDP, flash attention";
    EXPECT_EQ(assumed(sound(record), "recompute"), "full");
}

TEST(RecordCase, RacksOfManyAreDomainsOf64) {
    Json record = moe_record();
    Json& canonical = record["canonical"];
    canonical["gpu"] = "gb200";
    canonical["gpus"] = 128;
    canonical["gpus_per_node"] = 4;
    canonical["global_batch"] = 128;
    record["hardware"]["inter"] = "not stated in source";
    record["hardware"]["nic"] = "not stated in source";
    record["measured"]["value"] = 2000;
    EXPECT_EQ(gpus_per_domain(sound(record).step.cluster), 64);
    canonical["gpus"] = 64;
    EXPECT_EQ(gpus_per_domain(sound(record).step.cluster), 72);
    EXPECT_EQ(assumed(sound(record), "network"), "");  // one rack: no network is used
}

TEST(Evaluate, ThreadsDoNotChangeTheAnswer) {
    std::vector<Record> records;
    for (int i = 1; i <= 6; ++i) {
        Json record = i % 2 ? dense_record() : moe_record();
        record["id"] = "r" + std::to_string(i);
        record["canonical"]["global_batch"] = 64 * i;
        records.push_back(read_one(record));
    }
    EvaluationOptions one, many;
    one.num_threads = 1;
    many.num_threads = 4;
    one.profiles = many.profiles = shipped_profile_source();
    const Evaluation a = evaluate_training(records, one), b = evaluate_training(records, many);
    ASSERT_EQ(a.rows.size(), 6u);
    ASSERT_EQ(b.rows.size(), 6u);
    for (std::size_t i = 0; i < 6; ++i) {
        EXPECT_EQ(a.rows[i].id, b.rows[i].id);
        EXPECT_EQ(a.rows[i].predicted, b.rows[i].predicted);
    }
}

TEST(Evaluate, ARateIsConvertedByTheConventionItWasCountedIn) {
    Json record = dense_record();
    record["canonical"]["step_time_s"] = nullptr;
    record["canonical"]["tflops_per_gpu"] = 500;
    record["measured"] = {{"metric", "tflops_per_gpu"}, {"value", 500}, {"unit", "TFLOP/s/GPU"}};
    const auto time = [&](const char* convention) {
        record["canonical"]["tflops_convention"] = convention;
        std::string assumed;
        return step_time_of_rate(std::get<TrainingRecord>(read_one(record)), assumed)->value;
    };
    // Recomputing adds a third of forward and backward; halving the scores takes away.
    EXPECT_NEAR(time("full attention + recomputation") / time("full attention"), 4.0 / 3, 1e-12);
    EXPECT_LT(time("causal attention"), time("full attention"));
    record["canonical"]["tflops_convention"] = "in leagues";
    const Evaluation skipped = evaluate_training(
        {read_one(record)}, {.num_threads = 1, .profiles = shipped_profile_source()});
    EXPECT_EQ(skipped.skipped.at(0).rule, "convention");
}

}  // namespace
}  // namespace moeplan
