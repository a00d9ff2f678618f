/// Every way in which a record can be wrong: skipped with its reason, never guessed, never fatal.

#include "planner/accuracy/record.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "planner/accuracy/gpu_names.hpp"
#include "tests/accuracy/records.hpp"

namespace moeplan {
namespace {

using testing::HasSubstr;

const SkippedRecord& skipped(const Record& record) {
    if (const auto* out = std::get_if<SkippedRecord>(&record)) return *out;
    throw std::runtime_error(id_of(record) + " was not skipped");
}
const TrainingRecord& training(const Record& record) {
    if (const auto* out = std::get_if<TrainingRecord>(&record)) return *out;
    throw std::runtime_error(id_of(record) + ": " + skipped(record).reason);
}

TEST(Record, ASoundRecordIsReadWhole) {
    const Record read = read_one(dense_record());
    const TrainingRecord& record = training(read);
    EXPECT_EQ(record.gpu, "h100-sxm");
    EXPECT_EQ(record.model.layers.size(), 8u);
    EXPECT_EQ(record.step_time->value, 2.0);
    EXPECT_EQ(record.sharding, Sharding::zero1);
    EXPECT_EQ(record.software.state.framework, "megatron-bridge");
    EXPECT_EQ(record.software.state.release, "26.04");
    EXPECT_EQ(record.network.nics_per_node, 8);
    EXPECT_EQ(record.network.nic_gbps, 400);
}

TEST(Record, EveryWrongFieldIsSkippedWithItsPlace) {
    const struct {
        const char* pointer;
        Json value;
    } faults[] = {{"/canonical/gpus", 0},
                  {"/canonical/gpus", "sixteen"},
                  {"/canonical/gpus", 1e300},
                  {"/canonical/seq", -2048},
                  {"/canonical/seq", 2048.5},
                  {"/canonical/micro_batch", nullptr},
                  {"/canonical/global_batch", Json::array()},
                  {"/canonical/precision", "int4"},
                  {"/canonical/recompute", "some"},
                  {"/canonical/sharding", "zero9"},
                  {"/canonical/routing", "lucky"},
                  {"/canonical/step_time_s", 0},
                  {"/canonical/step_time_s", -1},
                  {"/canonical/step_time_s", "fast"},
                  {"/canonical/peak_memory_gib", -3},
                  {"/canonical/missing", "nothing"},
                  {"/workload/architecture", nullptr},
                  {"/workload/architecture/layers", 0},
                  {"/workload/architecture/layers", 1000000000},
                  {"/workload/architecture/heads", 7},
                  {"/workload/architecture/type", "hybrid"},
                  {"/workload/architecture/activation", "sine"},
                  {"/workload/architecture/attention", "none"},
                  {"/workload/architecture/sliding_window", "a few tokens"},
                  {"/source", nullptr},
                  {"/source/title", 7},
                  {"/group", "training2"},
                  {"/measured/metric", nullptr}};
    for (const auto& fault : faults) {
        Json record = dense_record();
        record[Json::json_pointer(fault.pointer)] = fault.value;
        const Record read = read_one(record);
        ASSERT_TRUE(std::holds_alternative<SkippedRecord>(read))
            << fault.pointer << " = " << fault.value;
        EXPECT_EQ(skipped(read).id, "dense");
        EXPECT_FALSE(skipped(read).reason.empty());
        const std::string last =
            std::string(fault.pointer).substr(std::string(fault.pointer).rfind('/') + 1);
        EXPECT_THAT(skipped(read).reason, HasSubstr(last)) << fault.value;
    }
}

TEST(Record, EveryMissingFieldIsNamed) {
    for (const char* pointer : {"/workload", "/canonical/gpu", "/canonical/gpus", "/canonical/seq",
                                "/canonical/precision", "/workload/architecture/hidden",
                                "/workload/architecture/vocab", "/workload/architecture/ffn"}) {
        Json record = dense_record();
        const Json::json_pointer place(pointer);
        record[place.parent_pointer()].erase(place.back());
        const Record read = read_one(record);
        ASSERT_TRUE(std::holds_alternative<SkippedRecord>(read)) << pointer;
        EXPECT_THAT(skipped(read).reason, HasSubstr(place.back()));
    }
}

TEST(Record, WhatTheSourceLeavesOutIsTheReason) {
    Json record = dense_record();
    record["canonical"]["missing"] = {"micro_batch", "ep"};
    const Record read = read_one(record);
    EXPECT_EQ(skipped(read).rule, "missing");
    EXPECT_EQ(skipped(read).reason, "the source does not state micro_batch, ep");
}

TEST(Record, AUnitThatDoesNotFitIsNotGuessed) {
    for (const char* unit : {"min", "GB/s", "", "tokens/s/GPU"}) {
        Json record = dense_record();
        record["measured"]["unit"] = unit;
        EXPECT_THAT(skipped(read_one(record)).reason, HasSubstr("s, ms or us")) << unit;
    }
    // 2000 s in place of 2000 ms: a thousand times what canonical says.
    Json record = dense_record();
    record["measured"]["unit"] = "s";
    const Record read = read_one(record);
    EXPECT_EQ(skipped(read).rule, "unit");
    EXPECT_THAT(skipped(read).reason, HasSubstr("canonical says 2 s"));
}

TEST(Record, ARateComesToTheSameTime) {
    // 64 · 2048 tokens on 16 GPUs in 2 s: 4096 tokens/s/GPU
    Json record = dense_record();
    record["measured"] = {
        {"metric", "tokens_per_s_per_gpu"}, {"value", 4096}, {"unit", "tokens/s/GPU"}};
    EXPECT_EQ(training(read_one(record)).step_time->value, 2.0);
    record["measured"]["value"] = 4096 * 8;  // of the node, not of a GPU
    EXPECT_EQ(skipped(read_one(record)).rule, "unit");
}

TEST(Record, RoutingStatisticsAndClaimsAreNoTargets) {
    for (const char* group : {"routing", "peer_claims"}) {
        Json record = dense_record();
        record["group"] = group;
        EXPECT_EQ(skipped(read_one(record)).reason, "not a prediction target");
    }
}

TEST(Record, AnIdThatCameBeforeIsSkipped) {
    const auto file = std::filesystem::path(testing::TempDir()) / "moeplan-duplicates.json";
    std::ofstream(file) << Json::array({dense_record(), dense_record()}).dump();
    const auto once = read_record_files({file.string()});
    EXPECT_NO_THROW(training(once.at(0)));
    EXPECT_EQ(skipped(once.at(1)).rule, "duplicate");
    const auto twice = read_record_files({file.string(), file.string()});
    ASSERT_EQ(twice.size(), 4u);
    for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(skipped(twice[i]).rule, "duplicate");
    std::filesystem::remove(file);
}

TEST(Record, AFileOfAnotherFormIsRefusedWhole) {
    for (const char* text : {"{}", "3", "\"text\"", R"({"name": "mixtral"})"})
        EXPECT_THROW(read_records(JsonReader::from_text(text, "f.json")), InputError) << text;
    const std::string whole = Json::array({dense_record()}).dump();
    for (const std::size_t length :
         {std::size_t{0}, std::size_t{1}, whole.size() / 2, whole.size() - 1})
        EXPECT_THROW(read_records(JsonReader::from_text(whole.substr(0, length), "f.json")),
                     InputError)
            << length;
}

TEST(Record, ItemsThatAreNoRecordsAreSkipped) {
    const auto read =
        read_records(JsonReader::from_text(R"([1, null, "x", [], {}, {"id": 3}])", "f"));
    ASSERT_EQ(read.size(), 6u);
    for (const Record& record : read) EXPECT_FALSE(skipped(record).reason.empty());
}

TEST(Record, EveryTruncatedOrDamagedCopyIsReadOrRefusedNeverWorse) {
    const std::string whole = Json::array({dense_record(), moe_record()}).dump();
    int read = 0, skipped_with_reason = 0, refused = 0;
    const auto try_copy = [&](const std::string& copy) {
        try {
            for (const Record& record : read_records(JsonReader::from_text(copy, "f.json"))) {
                if (const auto* out = std::get_if<SkippedRecord>(&record)) {
                    EXPECT_FALSE(out->reason.empty() || out->rule.empty()) << copy;
                    ++skipped_with_reason;
                } else if (const auto* run = std::get_if<TrainingRecord>(&record)) {
                    EXPECT_GT(run->gpus, 0);
                    EXPECT_TRUE(!run->step_time || std::isfinite(run->step_time->value));
                    ++read;
                }
            }
        } catch (const InputError& error) {
            EXPECT_THAT(error.what(), HasSubstr("f.json"));
            ++refused;
        }
    };
    for (std::size_t at = 0; at < whole.size(); at += 7) {
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 5);
        try_copy(damaged);
        const int refused_before = refused;
        try_copy(whole.substr(0, at));  // cut short it is no JSON
        EXPECT_EQ(refused, refused_before + 1) << at;
    }
    EXPECT_GT(read, 0);
    EXPECT_GT(skipped_with_reason, 0);
}

TEST(Table, EveryRowIsARunAndABadOneIsSkipped) {
    Json table = {{"id", "sweep"},
                  {"group", "training"},
                  {"source", {{"title", "vTrain"}}},
                  {"hardware", {{"gpu", "A100 SXM4 80GB"}, {"gpus", 8}, {"gpus_per_node", 8}}},
                  {"software", "Megatron-DeepSpeed, fp16"},
                  {"workload", "GPT, ffn 4h; full activation checkpointing"},
                  {"measured", {{"metric", "iteration_time"}, {"unit", "ms"}}},
                  {"columns",
                   {"gpus", "gbs", "mbs", "hidden", "heads", "layers", "seq", "tp", "dp", "pp",
                    "iteration_time_ms"}},
                  {"rows", Json::array({{2, 16, 8, 1024, 16, 24, 1024, 1, 1, 2, 372.16},
                                        {2, 16, 8, 1024, 16, 24, 1024, 1, 2, 2, 372.16},
                                        {2, 16},
                                        7,
                                        {2, 16, 8, 1024, 16, 24, 1024, 1, 1, 2, -1}})}};
    const auto read = read_records(JsonReader::from_value(table, "t.json"));
    ASSERT_EQ(read.size(), 5u);
    EXPECT_EQ(training(read[0]).gpu, "a100-sxm-80");
    EXPECT_DOUBLE_EQ(training(read[0]).step_time->value, 0.37216);
    EXPECT_EQ(training(read[0]).recompute, Recomputation::full);
    EXPECT_THAT(skipped(read[1]).reason, HasSubstr("TP·PP·DP"));
    for (std::size_t i = 2; i < 5; ++i) EXPECT_FALSE(skipped(read[i]).reason.empty());
    table["columns"][0] = "devices";
    const auto none = read_records(JsonReader::from_value(table, "t.json"));
    ASSERT_EQ(none.size(), 1u);
    EXPECT_THAT(skipped(none[0]).reason, HasSubstr("a column \"gpus\""));
}

TEST(GpuNames, OneGpuOrNone) {
    EXPECT_EQ(gpu_id_of_name("H100 SXM5 80GB"), "h100-sxm");
    EXPECT_EQ(gpu_id_of_name("H100 96GB HBM2e, 500 W limit (not the 700 W SXM part)"),
              "h100-96-hbm2e-500w");
    EXPECT_EQ(gpu_id_of_name("GB200 (one 4-GPU compute tray of an NVL72)"), "gb200");
    EXPECT_EQ(gpu_id_of_name("A100 SXM4 40GB"), "a100-sxm-40");
    EXPECT_EQ(gpu_id_of_name("V100 SXM3 32GB (DGX-2H)"), "v100-sxm3-32");
    for (const char* none :
         {"GB300 / GB200", "H100 PCIe with NVLink bridge", "H20-3e", "not stated", ""})
        EXPECT_EQ(gpu_id_of_name(none), std::nullopt) << none;
}

TEST(StatedNetwork, RatesAreOfAGpuANodeOrAnAdapter) {
    const auto check = [](const char* inter, const char* nic, int nics, double gbps) {
        const StatedNetwork read = stated_network(inter, nic, 8);
        EXPECT_EQ(read.nics_per_node, nics) << inter;
        EXPECT_EQ(read.nic_gbps, gbps) << inter;
    };
    check("RoCE 1600 Gb/s per node", "not stated in source", 8, 200);
    check("InfiniBand NDR 400 Gb/s per GPU (8 NICs per node)", "8x ConnectX-7", 8, 400);
    check("InfiniBand EDR 100 Gb/s, one adapter per node", "1x ConnectX-4", 1, 100);
    check("InfiniBand 8x50 GB/s per node", "", 8, 400);
    check("InfiniBand HDR, 800 Gb/s per node (configs)", "", 8, 100);
    EXPECT_FALSE(stated_network("not stated in source", "not stated in source", 8).nic_gbps);
    EXPECT_FALSE(stated_network("InfiniBand HDR", "", 8).nic_gbps);
}

TEST(StatedSoftware, WordsOfSourcesBecomeOneVocabulary) {
    const auto read = [](const char* software, const Json& workload) {
        return stated_software(software, "2026-01", workload, "");
    };
    EXPECT_EQ(read("Megatron-LM 0.14, TE 2.11, BF16", {}).state.release, "0.14");
    EXPECT_EQ(read("Megatron-Core v0.8, PyTorch 24.04", {}).state.framework, "megatron-core");
    EXPECT_EQ(read("Megatron-LM 8aa4619, NGC PyTorch 20.12", {}).state.release, "2026-01");
    EXPECT_EQ(read("NeMo 25.04.rc2", {}).state.release, "25.04.rc2");
    EXPECT_EQ(read("Megatron-LM, April 2021, fp16", {}).state.release, "2021-04");
    EXPECT_EQ(read("torchtitan + torch nightly", {}).state.release, "dev");
    EXPECT_EQ(read("MegaScale-MoE", {}).state.release, "2026-01");
    EXPECT_EQ(read("x", {{"precision", "FP8-CS (FP8-MX)"}}).state.fp8_recipe, "tensorwise");
    EXPECT_EQ(read("x", {{"precision", "float8 rowwise"}}).state.fp8_recipe, "rowwise");
    EXPECT_EQ(read("x", {{"cuda_graph", "TE scopes moe_router, moe_preprocess"}}).state.graph_scope,
              "moe_preprocess,moe_router");
    EXPECT_EQ(read("x", {{"cuda_graph", nullptr}}).state.graph_scope, "none");
    const auto knobs = read("x", {{"recipe",
                                   {{"knobs",
                                     {{"moe_token_dispatcher_type", "flex"},
                                      {"moe_flex_dispatcher_backend", "hybridep"},
                                      {"cuda_graph_scope", "[\"attn\", \"moe_router\"]"},
                                      {"moe_a2a_overlap", "True"}}}}}});
    EXPECT_EQ(knobs.dispatcher, Dispatcher::deduplicating);
    EXPECT_EQ(knobs.state.moe_backend, "hybridep");
    EXPECT_EQ(knobs.state.graph_scope, "attn,moe_router");
    EXPECT_EQ(knobs.overlap_experts, true);
}

}  // namespace
}  // namespace moeplan
