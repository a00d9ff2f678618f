#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/data_files.hpp"
#include "core/errors.hpp"
#include "profiler/profile.hpp"

namespace moeplan {
namespace {

TEST(ShippedProfiles, HoldEveryGpuOfTheHardwareTable) {
    const auto hardware = JsonReader::from_file(std::string(MOEPLAN_SOURCE_DIR) +
                                                "/validation/published/hardware.json");
    const auto shipped = shipped_profiles();
    for (const auto& [gpu, data] : hardware.at("gpus").members()) {
        ASSERT_THAT(shipped, testing::Contains(gpu));
        const Profile profile = load_profile(gpu);
        EXPECT_EQ(profile.name, gpu);
        // Peak and memory bandwidth are the datasheet's.
        EXPECT_NEAR(profile.roofline.peak.at(Precision::fp16).value,
                    data.at("peak_tflops").at("fp16").number() * 1e12, 1);
        EXPECT_NEAR(profile.roofline.memory_bandwidth.value, data.at("hbm_gbps").number() * 1e9, 1);
        EXPECT_EQ(profile.roofline.num_sms, data.at("sms").integer());
    }
}

TEST(ShippedProfiles, NeverExceedThePeak) {
    for (const std::string& name : shipped_profiles()) {
        const Profile profile = load_profile(name);
        for (const auto& [precision, peak] : profile.roofline.peak)
            for (const std::int64_t m : {128, 1000, 4096, 32768}) {
                const PricedTime time =
                    kernel_time(profile, "gemm", precision, Gemm{m, 8192, 4096});
                EXPECT_GT(time.time.value, 2.0 * static_cast<double>(m) * 8192 * 4096 / peak.value)
                    << name << " m " << m;
            }
    }
}

TEST(ProfileJson, ComesBackAsItWasWritten) {
    const Profile profile = load_profile("h100-sxm");
    const std::string text = to_file_text(to_json(profile));
    const Profile again = profile_from_json(JsonReader::from_text(text, "again"));
    EXPECT_EQ(to_file_text(to_json(again)), text);
}

TEST(ProfileJson, KeepsStretchesAndReadsProfilesWithout) {
    const std::string plain =
        R"({"name": "x", "roofline": {"peak": {"fp32": "1 TFlop/s"}, "memory_bandwidth": "1 GB/s"})";
    EXPECT_FALSE(profile_from_json(JsonReader::from_text(plain + "}", "old")).stretches);
    const Profile profile = profile_from_json(JsonReader::from_text(
        plain +
            R"(, "stretches": {"window_s": 0.1, "columns": ["num_ranks", "stretch_s", "slowest", "typical"],
                   "rows": [[1, 0.001, 1.02, 1], [2, 0.001, 1.05, 1]]}})",
        "new"));
    EXPECT_DOUBLE_EQ(slowest_of(profile, {1e-3}, 2), 1.05);
    const std::string text = to_file_text(to_json(profile));
    EXPECT_EQ(to_file_text(to_json(profile_from_json(JsonReader::from_text(text, "again")))), text);
}

TEST(HostileProfile, IsRefusedWithItsPlace) {
    const std::string plain =
        R"("name": "x", "roofline": {"peak": {"fp32": "1 TFlop/s"}, "memory_bandwidth": "1 GB/s"})";
    const auto with = [&](const std::string& more) { return "{" + plain + ", " + more + "}"; };
    const auto roofline = [](const std::string& peak) {
        return R"({"name": "x", "roofline": {"peak": {)" + peak +
               R"(}, "memory_bandwidth": "1 GB/s"}})";
    };
    const auto curve = [&](const std::string& kernel, const std::string& columns,
                           const std::string& rows) {
        return with(R"("kernels": [{"kernel": ")" + kernel +
                    R"(", "precision": "fp32", "basis": "measured", "columns": [)" + columns +
                    R"(], "rows": )" + rows + "}]");
    };
    // text of the file, and what the message must point at
    const std::vector<std::pair<std::string, std::string>> files = {
        {"[]", "mine.json"},
        {"{}", "name"},
        {roofline(""), "peak"},
        {roofline(R"("fp33": "1 TFlop/s")"), "fp33"},
        {roofline(R"("fp32": 1)"), "fp32"},
        {roofline(R"("fp32": "-1 TFlop/s")"), "fp32"},
        {with(R"("kernel": [])"), "kernel"},
        {curve("gemmm", "", "[]"), "gemmm"},
        {curve("gemm", R"("m")", "[[1]]"), "columns"},
        {curve("gemm", R"("m", "n", "k", "median_s")", "[[1, 1, 1]]"), "rows/0"},
        {curve("streamed", R"("bytes", "median_s")", "[[1, 0]]"), "rows/0"},
        {with(R"("links": [{"collective": "all_reduce", "num_ranks": 2, "basis": "measured",
                "columns": ["bytes"], "rows": [[1]]}])"),
         "columns"},
        {with(
             R"("stretches": {"window_s": 0.1, "columns": ["num_ranks", "stretch_s", "slowest", "typical"],
                "rows": [[1, 0.001, 1.02, 1], [2, 0.002, 1.05, 1]]})"),
         "stretches"},
    };
    for (const auto& [text, place] : files) {
        try {
            profile_from_json(JsonReader::from_text(text, "mine.json"));
            ADD_FAILURE() << "accepted: " << text;
        } catch (const InputError& error) {
            EXPECT_THAT(error.what(), testing::HasSubstr("mine.json"));
            EXPECT_THAT(error.what(), testing::HasSubstr(place));
        }
    }
}

}  // namespace
}  // namespace moeplan
