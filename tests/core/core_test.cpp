#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/digest.hpp"
#include "core/errors.hpp"
#include "core/json.hpp"
#include "core/number_format.hpp"
#include "core/output_file.hpp"
#include "core/quantity_text.hpp"
#include "core/seed.hpp"
#include "core/text.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

using namespace literals;
namespace fs = std::filesystem;

std::string message_of(const std::function<void()>& act) {
    try {
        act();
    } catch (const std::exception& error) {
        return error.what();
    }
    return "(nothing thrown)";
}

TEST(Units, BytesOverBytesPerSecondAreSeconds) {
    // 3 MB / (1 GB/s) = 3 ms
    const Seconds t = 3_MB / 1_GBps;
    EXPECT_TRUE(close(t.value, 3e-3));
    static_assert(4_KiB / 400_GBps + 2_us > 2_us);
    static_assert(400_Gbps == 50_GBps);
}

TEST(QuantityText, ReadsWhatPeopleWriteAndRefusesABareNumber) {
    EXPECT_EQ(parse_bytes_per_second("400 Gb/s"), 50_GBps);  // bits
    EXPECT_EQ(parse_bytes_per_second("400GB/s"), 400_GBps);
    EXPECT_EQ(parse_seconds("2 us"), Seconds{2 * 1e-6});
    EXPECT_EQ(parse_bytes("1.5 KiB"), Bytes{1536});
    for (const char* wrong : {"400", "", "GB/s", "-1 GB/s", "nan GB/s", "1e400 GB/s", "400 GBs"})
        EXPECT_THROW(parse_bytes_per_second(wrong), std::invalid_argument) << wrong;
}

TEST(QuantityText, ExactFormReadsBackToTheSameDouble) {
    DrawStream stream{Seed{7}};
    for (int i = 0; i < 2000; ++i) {
        const double x = std::exp(stream.normal() * 12);
        EXPECT_EQ(parse_bytes(to_exact_text(Bytes{x})).value, x);
        EXPECT_EQ(parse_seconds(to_exact_text(Seconds{x})).value, x);
        EXPECT_EQ(parse_bytes_per_second(to_exact_text(BytesPerSecond{x})).value, x);
    }
}

TEST(QuantityText, ShortFormHasThreeDigits) {
    EXPECT_EQ(to_text(Seconds{1.84e-3}), "1.84 ms");
    EXPECT_EQ(to_text(Bytes{93.1 * 1024 * 1024 * 1024}), "93.1 GiB");
    EXPECT_EQ(to_text(50_GBps), "50.0 GB/s");
    EXPECT_EQ(to_text(Seconds{0}), "0 ns");
}

TEST(JsonReader, MessageNamesFilePointerValueAndWhatWasExpected) {
    const auto file = JsonReader::from_text(R"({"moe": {"top_k": 12}})", "mixtral.json");
    EXPECT_EQ(message_of([&] { file.at("moe").at("top_k").count(1, 8); }),
              "mixtral.json: /moe/top_k is 12, expected an integer 1 … 8");
    EXPECT_EQ(message_of([&] { file.at("moe").at("heads"); }),
              "mixtral.json: /moe/heads is missing, expected a value");
}

TEST(JsonReader, UnknownKeyIsRefusedWithTheNearestKnownOne) {
    const auto file = JsonReader::from_text(R"({"$schema": "x", "num_expert": 8})", "a.json");
    EXPECT_THAT(message_of([&] {
                    file.refuse_unknown({"num_experts", "top_k"});
                }),
                testing::HasSubstr("\"num_experts\" perhaps"));
}

TEST(JsonReader, AKeyThatStandsTwiceInAnObjectIsRefusedByName) {
    EXPECT_THROW(JsonReader::from_text(R"({"a": 1, "b": {"a": 2}, "a": 3})", "f.json"), InputError);
    EXPECT_THROW(JsonReader::from_text(R"([{"x": {"tp": 1, "tp": 2}}])", "f.json"), InputError);
    EXPECT_NO_THROW(JsonReader::from_text(R"([{"a": 1}, {"a": 2, "b": {"a": 3}}])", "f.json"));
}

TEST(JsonReader, AVersionOfTomorrowIsRefused) {
    const auto read = [](const char* text) {
        JsonReader::from_text(text, "f.json").refuse_unknown({"a"});
    };
    EXPECT_NO_THROW(read(R"({"version": 1, "a": 1})"));
    EXPECT_NO_THROW(read(R"({"a": 1})"));
    EXPECT_THROW(read(R"({"version": 2, "a": 1})"), InputError);
}

TEST(JsonReader, HostileTextsGiveAMessageAndNeverCrash) {
    for (const std::string& text :
         {std::string(1000000, '['), std::string("{\"a\":"), std::string("\xff\xfe"), std::string(),
          std::string("{\"a\":1e999}"), std::string("nul"), std::string("{\"a\":1}x")})
        EXPECT_THROW(JsonReader::from_text(text, "h.json"), InputError);
    const auto big = JsonReader::from_text(
        R"({"a": 18446744073709551615, "b": 1.5, "c": 1e300, "d": 9007199254740993})", "h.json");
    for (const char* key : {"a", "b", "c"}) EXPECT_THROW(big.at(key).integer(), InputError) << key;
    EXPECT_EQ(big.at("d").integer(), 9007199254740993LL);
}

TEST(JsonText, FloatsRoundTripAndRowsStayOnOneLine) {
    Json value;
    value["rows"] = {{1, 0.1}, {2, 1e-9}};
    EXPECT_EQ(to_file_text(value), "{\n  \"rows\": [\n    [1, 0.1],\n    [2, 1e-09]\n  ]\n}\n");
    EXPECT_EQ(JsonReader::from_text(to_file_text(value), "x").value(), value);
}

TEST(Digest, EqualsTheStandardsOwnExamples) {
    // FIPS 180-4 examples: "abc", the empty message, and one million 'a'.
    EXPECT_EQ(digest_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(digest_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    Digest digest;
    for (int i = 0; i < 1000; ++i) digest.add(std::string(997, 'a')).add(std::string(3, 'a'));
    EXPECT_EQ(digest.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Draw, DependsOnSeedNameAndIndexAlone) {
    EXPECT_EQ(draw(Seed{1}, "routing", 5), draw(Seed{1}, "routing", 5));
    EXPECT_NE(draw(Seed{1}, "routing", 5), draw(Seed{1}, "routing", 6));
    EXPECT_NE(draw(Seed{1}, "routing", 5), draw(Seed{2}, "routing", 5));
    EXPECT_NE(draw(Seed{1}, "routing", 5), draw(Seed{1}, "router", 5));
}

TEST(DrawStream, DistributionsHaveTheirMoments) {
    // n = 200,000: the standard error of a mean is σ/√n = 0.0022 σ; 5 of them are allowed.
    DrawStream stream{Seed{3}};
    const int n = 200000;
    double normal = 0, square = 0, gamma = 0, small = 0, below = 0;
    for (int i = 0; i < n; ++i) {
        const double x = stream.normal();
        normal += x;
        square += x * x;
        gamma += stream.gamma(3);
        small += stream.gamma(0.3);
        below += static_cast<double>(stream.below(10));
    }
    EXPECT_NEAR(normal / n, 0, 0.011);
    EXPECT_NEAR(square / n, 1, 0.016);
    EXPECT_NEAR(gamma / n, 3, 0.02);      // σ = √3
    EXPECT_NEAR(small / n, 0.3, 0.0062);  // σ = √0.3
    EXPECT_NEAR(below / n, 4.5, 0.033);   // σ = 2.87
}

TEST(OutputFile, AppearsWholeOrNotAtAll) {
    const fs::path folder = fs::temp_directory_path() / "moeplan_core_test";
    fs::create_directories(folder);
    write_whole(folder / "a.json", "one");
    {
        PendingFile pending(folder / "a.json");
        std::ofstream(pending.temporary()) << "half";
    }  // never kept
    std::ifstream in(folder / "a.json");
    std::string text;
    in >> text;
    EXPECT_EQ(text, "one");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
    EXPECT_THROW(write_whole(folder / "none" / "a.json", "x"), InputError);
    EXPECT_THROW(write_whole(folder, "x"), InputError);
    fs::remove_all(folder);
}

TEST(NearestWord, FindsTypingErrorsAndLeavesStrangersAlone) {
    EXPECT_EQ(nearest_word("dgx-h10", {"dgx-h100", "dgx-a100-80", "gb200-nvl72"}), "dgx-h100");
    EXPECT_EQ(nearest_word("banana", {"dgx-h100", "mixtral-8x7b"}), "");
}

TEST(EnumNames, EveryFormatHasANameThatReadsBack) {
    for (const auto& [value, name] : enum_names<NumberFormat>())
        EXPECT_EQ(from_name<NumberFormat>(name), value);
    EXPECT_EQ(choices<Precision>(), "fp32, fp16, bf16, fp8, mxfp8 or nvfp4");
}

}  // namespace
}  // namespace moeplan
