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

class HostileProfile : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(HostileProfile, IsRefusedWithItsPlace) {
    const auto& [text, place] = GetParam();
    try {
        profile_from_json(JsonReader::from_text(text, "mine.json"));
        FAIL() << "accepted";
    } catch (const InputError& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("mine.json"));
        EXPECT_THAT(error.what(), testing::HasSubstr(place));
    }
}

#define ROOFLINE                                                                                  \
    "\"name\": \"x\", \"roofline\": {\"peak\": {\"fp32\": \"1 TFlop/s\"}, \"memory_bandwidth\": " \
    "\"1 GB/s\"}"
INSTANTIATE_TEST_SUITE_P(
    Files, HostileProfile,
    testing::Values(
        std::pair{"[]", "mine.json"}, std::pair{"{}", "name"},
        std::pair{
            "{\"name\": \"x\", \"roofline\": {\"peak\": {}, \"memory_bandwidth\": \"1 GB/s\"}}",
            "peak"},
        std::pair{"{\"name\": \"x\", \"roofline\": {\"peak\": {\"fp33\": \"1 TFlop/s\"}, "
                  "\"memory_bandwidth\": \"1 GB/s\"}}",
                  "fp33"},
        std::pair{"{\"name\": \"x\", \"roofline\": {\"peak\": {\"fp32\": 1}, \"memory_bandwidth\": "
                  "\"1 GB/s\"}}",
                  "fp32"},
        std::pair{"{" ROOFLINE ", \"kernel\": []}", "kernel"},
        std::pair{"{" ROOFLINE ", \"kernels\": [{\"kernel\": \"gemmm\", \"precision\": \"fp32\", "
                               "\"basis\": \"measured\", \"columns\": [], \"rows\": []}]}",
                  "gemmm"},
        std::pair{"{" ROOFLINE ", \"kernels\": [{\"kernel\": \"gemm\", \"precision\": \"fp32\", "
                               "\"basis\": \"measured\", \"columns\": [\"m\"], \"rows\": [[1]]}]}",
                  "columns"},
        std::pair{"{" ROOFLINE
                  ", \"kernels\": [{\"kernel\": \"streamed\", \"precision\": \"fp32\", \"basis\": "
                  "\"measured\", \"columns\": [\"bytes\", \"median_s\"], \"rows\": [[1, 0]]}]}",
                  "rows/0"},
        std::pair{"{" ROOFLINE
                  ", \"links\": [{\"collective\": \"all_reduce\", \"num_ranks\": 2, \"basis\": "
                  "\"measured\", \"columns\": [\"bytes\"], \"rows\": [[1]]}]}",
                  "columns"}));

}  // namespace
}  // namespace moeplan
