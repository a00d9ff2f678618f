#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/data_files.hpp"
#include "core/errors.hpp"
#include "profiler/profile.hpp"

namespace moeplan {
namespace {

TEST(Calibration, ComesBackAsItWasWrittenAndNeutralWhereNothingIsSaid) {
    Calibration calibration;
    calibration[Constant::framework_launch] = 1.5e-5;
    calibration.source = "a test";
    EXPECT_EQ(calibration_from_json(JsonReader::from_value(to_json(calibration), "it")),
              calibration);
    EXPECT_EQ(calibration_from_json(JsonReader::from_text(R"({"constants": {}})", "it")),
              Calibration{});
}

TEST(Calibration, TableIsInTheOrderOfTheConstantsAndNeutralIsAllowed) {
    ASSERT_EQ(constant_facts().size(), static_cast<std::size_t>(kNumConstants));
    EXPECT_LE(kNumConstants, 12);
    for (std::size_t i = 0; i < constant_facts().size(); ++i) {
        const ConstantFacts& facts = constant_facts()[i];
        EXPECT_EQ(static_cast<std::size_t>(facts.constant), i);
        EXPECT_LE(facts.least, facts.neutral) << facts.name;
        EXPECT_GE(facts.most, facts.neutral) << facts.name;
        EXPECT_FALSE(facts.meaning.empty());
    }
}

TEST(Calibration, SchemaStatesTheSameConstantsAndRanges) {
    const JsonReader schema =
        JsonReader::from_file(data_folder() / "schemas" / "calibration.schema.json");
    const auto properties = schema.at("properties").at("constants").at("properties");
    ASSERT_EQ(properties.members().size(), constant_facts().size());
    for (const ConstantFacts& facts : constant_facts()) {
        EXPECT_EQ(properties.at(facts.name).at("minimum").number(), facts.least) << facts.name;
        EXPECT_EQ(properties.at(facts.name).at("maximum").number(), facts.most) << facts.name;
    }
}

TEST(HostileCalibration, IsRefusedWithItsPlace) {
    const auto refuses = [](const std::string& text, const std::string& part) {
        try {
            calibration_from_json(JsonReader::from_text(text, "mine.json"));
            ADD_FAILURE() << text;
        } catch (const InputError& error) {
            EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
        }
    };
    refuses(R"({})", "constants");
    refuses(R"({"constants": {"sustained_pascal": 1}})", "/constants/sustained_pascal");
    refuses(R"({"constants": {"sustained_hopper": 78}})", "/constants/sustained_hopper");
    refuses(R"({"constants": {"framework_launch_s": "15 us"}})", "/constants/framework_launch_s");
    refuses(R"({"constants": {}, "sorce": ""})", "sorce");
}

TEST(Calibration, ConcernsGpusAndNotWhatACpuMeasuredAsItRuns) {
    Profile profile = load_profile("h100-sxm");
    profile.calibration = {};
    Profile cpu = profile;
    cpu.host_overlap = 0;
    for (Profile* p : {&profile, &cpu}) {
        Profile changed = *p;
        for (const ConstantFacts& facts : constant_facts())
            changed.calibration[facts.constant] = 0.5 * (facts.least + facts.most);
        for (const char* kernel : {"gemm", "gemm_weight_gradient"}) {
            const double before =
                kernel_time(*p, kernel, Precision::bf16, Gemm{4096, 4096, 4096}).time.value;
            const double after =
                kernel_time(changed, kernel, Precision::bf16, Gemm{4096, 4096, 4096}).time.value;
            // time = (launch + main loop/sustained) · correction, sustained = 0.8: all but the
            // launch is 1/0.8 of what it was; the correction is a few per cent.
            if (p == &cpu)
                EXPECT_EQ(after, before) << kernel;
            else
                EXPECT_NEAR(before / 0.8 - after, 0.25 * p->roofline.gemm_model->launch.value,
                            0.1 * 0.25 * p->roofline.gemm_model->launch.value)
                    << kernel;
        }
        const AttentionShape shape{1, 4096, 32, 8, 128, {}};
        EXPECT_EQ(kernel_time(changed, "attention_backward", Precision::bf16, shape).time ==
                      kernel_time(*p, "attention_backward", Precision::bf16, shape).time,
                  p == &cpu);
        EXPECT_EQ(host_costs(changed).per_launch == host_costs(*p).per_launch, p == &cpu);
    }
}

TEST(Calibration, SustainedRateFollowsThePowerAFlop) {
    // exponent 1: rate in proportion to watts over the peak, among GPUs of one generation
    const auto rate = [](const char* gpu, double exponent, Precision precision) {
        Profile profile = load_profile(gpu);
        profile.calibration = {};
        profile.calibration[Constant::power_exponent] = exponent;
        return sustained(profile, precision);
    };
    for (const Precision precision : {Precision::bf16, Precision::fp8}) {
        for (const char* gpu : {"h100-sxm", "h100-96-hbm2e-500w", "b200-sxm", "gb300"})
            EXPECT_EQ(rate(gpu, 0, precision), 1) << gpu;
        EXPECT_NEAR(rate("h100-sxm", 1, precision), 1, 1e-12);
        EXPECT_NEAR(rate("h100-96-hbm2e-500w", 1, precision), 500.0 / 700, 1e-12);
        EXPECT_NEAR(rate("b200-sxm", 1, precision), 1, 1e-12);
        EXPECT_NEAR(rate("gb300", 1, precision), 1400.0 / 2500 * 2250 / 1000, 1e-12);
        EXPECT_NEAR(rate("gb300", 0.5, precision), std::sqrt(1400.0 / 2500 * 2250 / 1000), 1e-12);
    }
    EXPECT_EQ(rate("a100-sxm-40", 1, Precision::bf16), 1);
    EXPECT_EQ(rate("v100-sxm2-16", 1, Precision::fp16), 1);
}

TEST(Calibration, OfAShippedProfileIsPartOfItsDigest) {
    const Profile shipped = load_profile("h100-sxm");
    EXPECT_EQ(shipped.calibration, shipped_calibration());
    EXPECT_NE(shipped.digest,
              profile_from_json(JsonReader::from_file(shipped_file("specs/profiles", "h100-sxm")))
                  .digest);
}

}  // namespace
}  // namespace moeplan
