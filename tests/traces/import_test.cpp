#include "traces/import.hpp"

#include <gmock/gmock.h>
#include <zlib.h>

#include <nlohmann/json.hpp>

#include "tests/tolerance.hpp"
#include "tests/traces/some_trace.hpp"
#include "traces/npz.hpp"
#include "traces/statistics.hpp"

namespace moeplan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::filesystem::path sample(const std::string& name) {
    return std::filesystem::path(MOEPLAN_TEST_DATA) / "traces" / name;
}

class Import : public TraceFolder {
  protected:
    std::string refused(const std::string& content, const ImportOptions& options = {}) {
        std::ofstream(file("x"), std::ios::binary | std::ios::trunc) << content;
        const std::string message =
            input_error([&] { import_trace(file("x"), file("x.h5"), options); });
        EXPECT_FALSE(std::filesystem::exists(file("x.h5"))) << "nothing is left behind";
        return message;
    }
};

TEST_F(Import, JsonLinesCheckedByHand) {
    const Imported imported = import_trace(sample("routing-trace-mini.jsonl"), file("t.h5"), {});
    EXPECT_EQ(imported.format, "jsonl");
    EXPECT_THAT(imported.layer_numbers, ElementsAre(2));
    EXPECT_THAT(imported.assumptions, ElementsAre(HasSubstr("num_experts = 8")));
    const TraceReader trace(file("t.h5"));
    EXPECT_EQ(trace.header().num_experts, 8);
    EXPECT_EQ(trace.header().tokens_per_step, 4);
    const TraceStep step = trace.step(0);
    EXPECT_THAT(step.expert_ids[0], ElementsAre(5, 1, 5, 3, 0, 5, 7, 5));
    EXPECT_NEAR(step.gate_weights[0][0], 0.61, 0.61 / 1024);  // half precision
    EXPECT_THAT(trace_statistics(trace).layers[0].tokens_per_expert,
                ElementsAre(1, 1, 0, 1, 0, 4, 0, 1));
}

TEST_F(Import, SglangCountsLeaveDenseLayersOut) {
    const Imported imported =
        import_trace(sample("sglang-expert-distribution-as-json.json"), file("t.h5"), {});
    EXPECT_EQ(imported.format, "sglang");
    EXPECT_THAT(imported.layers_with_zero_total, ElementsAre(0));
    EXPECT_THAT(imported.layer_numbers, ElementsAre(1, 2));
    const auto statistics = trace_statistics(TraceReader(file("t.h5")));
    EXPECT_THAT(statistics.layers[0].tokens_per_expert, ElementsAre(12, 4, 2, 14));
    EXPECT_NEAR(statistics.layers[0].max_over_mean, 1.75,
                kArithmetic);  // the sample's own "expected"
    EXPECT_EQ(statistics.header.tokens_per_step, 16);
}

TEST_F(Import, EplbLoadTables) {
    const Imported imported =
        import_trace(sample("eplb-load-2layers.json"), file("t.h5"), {.top_k = 4});
    EXPECT_EQ(imported.format, "eplb");
    const auto statistics = trace_statistics(TraceReader(file("t.h5")));
    EXPECT_THAT(statistics.layers[0].tokens_per_expert,
                ElementsAre(10, 50, 30, 10, 80, 20, 40, 60));
    EXPECT_NEAR(statistics.layers[0].max_over_mean, 80 / 37.5, kArithmetic);
    EXPECT_EQ(statistics.header.tokens_per_step, 300 / 4);
}

TEST_F(Import, VllmLoadsOfPhysicalSlotsAreSummedByLogicalExpert) {
    std::ofstream(file("v.json"))
        << R"({"expert_load": [[5, 3, 8, 2]], "physical_to_logical_map": [[0, 1, 2, 0]]})";
    import_trace(file("v.json"), file("t.h5"), {});
    EXPECT_THAT(TraceReader(file("t.h5")).step(0).counts[0], ElementsAre(7, 3, 8));
}

TEST_F(Import, NumpyArchivesGoOutAndComeBack) {
    TraceHeader header = some_header();
    header.num_moe_heads = 1;
    write_trace(file("t.h5"), header, 2);
    export_trace(TraceReader(file("t.h5")), file("t.npz"), ExportFormat::npz);
    const Imported imported = import_trace(file("t.npz"), file("back.h5"), {.num_experts = 8});
    EXPECT_EQ(imported.format, "npz");
    const TraceReader a(file("t.h5")), b(file("back.h5"));
    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(a.step(i).expert_ids, b.step(i).expert_ids);
        EXPECT_EQ(a.step(i).gate_weights, b.step(i).gate_weights);
        EXPECT_EQ(a.step(i).document_ids, b.step(i).document_ids);
        EXPECT_EQ(a.loads(i, 1, 1).sub_tokens, b.loads(i, 1, 1).sub_tokens);
    }
}

TEST_F(Import, JsonLinesGoOutAndComeBack) {
    TraceHeader header = some_header();
    header.num_moe_heads = 1;
    write_trace(file("t.h5"), header, 2);
    export_trace(TraceReader(file("t.h5")), file("t.jsonl"), ExportFormat::jsonl);
    import_trace(file("t.jsonl"), file("back.h5"), {.num_experts = 8});
    const TraceReader a(file("t.h5")), b(file("back.h5"));
    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(a.step(i).expert_ids, b.step(i).expert_ids);
        EXPECT_EQ(a.step(i).domain_ids, b.step(i).domain_ids);
        EXPECT_EQ(a.loads(i, 2, 0).sub_tokens, b.loads(i, 2, 0).sub_tokens);
    }
}

TEST_F(Import, DeflatedMembersAreRead) {
    // One array of 6 u1 in a zip whose member is deflated, as numpy.savez_compressed writes it.
    std::string npy("\x93NUMPY\x01\x00", 8);
    std::string head = "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 2), }";
    head.resize(117, ' ');
    head += '\n';
    npy += static_cast<char>(head.size());
    npy += '\0';
    npy += head + std::string("\x00\x01\x01\x02\x02\x03", 6);
    std::string packed(compressBound(npy.size()), '\0');
    z_stream stream{};
    ASSERT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = reinterpret_cast<Bytef*>(npy.data());
    stream.avail_in = static_cast<uInt>(npy.size());
    stream.next_out = reinterpret_cast<Bytef*>(packed.data());
    stream.avail_out = static_cast<uInt>(packed.size());
    ASSERT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
    packed.resize(stream.total_out);
    deflateEnd(&stream);
    const auto number = [](std::uint64_t value, int width) {
        std::string out;
        for (int i = 0; i < width; ++i) out += static_cast<char>(value >> (8 * i));
        return out;
    };
    const std::string name = "expert_ids.npy";
    const std::string common = number(20, 2) + number(0, 2) + number(8, 2) + number(0, 4) +
                               number(0, 4) + number(packed.size(), 4) + number(npy.size(), 4) +
                               number(name.size(), 2) + number(0, 2);
    std::string zip = "PK\3\4" + common + name + packed;
    const std::size_t begin = zip.size();
    zip += "PK\1\2" + number(20, 2) + common + number(0, 2) + number(0, 2) + number(0, 2) +
           number(0, 4) + number(0, 4) + name;
    const std::size_t length = zip.size() - begin;
    zip += "PK\5\6" + number(0, 4) + number(1, 2) + number(1, 2) + number(length, 4) +
           number(begin, 4) + number(0, 2);
    std::ofstream(file("d.npz"), std::ios::binary) << zip;
    import_trace(file("d.npz"), file("t.h5"), {});
    EXPECT_THAT(TraceReader(file("t.h5")).step(0).expert_ids[0], ElementsAre(0, 1, 1, 2, 2, 3));
}

TEST_F(Import, WrongRecordsAreRefusedWithTheirPlace) {
    EXPECT_THAT(refused(""), HasSubstr("an empty file"));
    EXPECT_THAT(refused("hello"), HasSubstr("of no known format"));
    EXPECT_THAT(refused("{\"indices\": [1, 2]}\n{\"indices\": [1]}\n"),
                HasSubstr("line 2, indices"));
    EXPECT_THAT(refused("{\"indices\": [1, 2]}\nnonsense\n"), HasSubstr("line 2"));
    EXPECT_THAT(refused("{\"indices\": [1, 9]}\n", {.num_experts = 8}),
                HasSubstr("below the number of experts (8)"));
    EXPECT_THAT(refused("{\"indices\": [1], \"scores\": [1, 2]}\n"),
                HasSubstr("as many numbers as indices"));
    EXPECT_THAT(refused("{\"indices\": [1], \"step\": 1}\n{\"indices\": [1], \"step\": "
                        "0}\n{\"indices\": [1], \"step\": 1}\n"),
                HasSubstr("sort by step"));
    EXPECT_THAT(refused("{\"logical_count\": [[[1, 2], [3]]]}"), HasSubstr("step 0, layer 1"));
    EXPECT_THAT(refused("{\"logical_count\": [[[1, -2]]]}"), HasSubstr("/logical_count/0/0/1"));
    EXPECT_THAT(refused("{\"weight\": [[0, 0]]}"), HasSubstr("no token in any layer"));
    EXPECT_THAT(refused("PAR1xxxx"), HasSubstr("pandas"));
    EXPECT_THAT(refused("PK\3\4 archive/data.pkl"), HasSubstr("torch"));
    EXPECT_THAT(refused("{\"indices\": [1], \"token\": 2000000000}\n"), HasSubstr("token"));
}

TEST_F(Import, ScrambledArchivesAreReadOrRefused) {
    TraceHeader header = some_header();
    header.num_moe_heads = 1;
    write_trace(file("t.h5"), header, 1);
    export_trace(TraceReader(file("t.h5")), file("t.npz"), ExportFormat::npz);
    const std::string whole = content_of(file("t.npz"));
    DrawStream draws({3});
    int refusals = 0;
    for (int i = 0; i < 300; ++i) {
        std::string content = i < 100 ? whole.substr(0, draws.below(whole.size())) : whole;
        for (int flips = 0; i >= 100 && flips < 6; ++flips)
            content[draws.below(content.size())] = static_cast<char>(draws.bits());
        std::ofstream(file("x.npz"), std::ios::binary | std::ios::trunc) << content;
        try {
            import_trace(file("x.npz"), file("x.h5"), {});
        } catch (const InputError&) {
            ++refusals;
        }
    }
    EXPECT_GE(refusals, 100);  // every truncation at least
}

}  // namespace
}  // namespace moeplan
