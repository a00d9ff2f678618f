#include <gmock/gmock.h>
#include <hdf5.h>

#include <thread>

#include "tests/traces/some_trace.hpp"

namespace moeplan {
namespace {

using ::testing::HasSubstr;

bool operator_equal(const TraceStep& a, const TraceStep& b) {
    return a.step == b.step && a.loss == b.loss && a.expert_ids == b.expert_ids &&
           a.gate_weights == b.gate_weights && a.document_ids == b.document_ids &&
           a.domain_ids == b.domain_ids && a.token_rank == b.token_rank &&
           a.token_micro_batch == b.token_micro_batch && a.pool_size == b.pool_size &&
           a.counts == b.counts;
}

class TraceFile : public TraceFolder {};

TEST_F(TraceFile, ReadsBackWhatWasWritten) {
    const TraceHeader header = some_header();
    write_trace(file("t.h5"), header, 3);
    const TraceReader reader(file("t.h5"));
    TraceHeader expected = header;
    expected.num_steps = 3;
    EXPECT_EQ(reader.header(), expected);
    for (int i = 0; i < 3; ++i)
        EXPECT_TRUE(operator_equal(reader.step(i), some_step(header, i))) << "step " << i;
}

TEST_F(TraceFile, SameTraceSameBytes) {
    write_trace(file("a.h5"), some_header(), 2);
    std::this_thread::sleep_for(
        std::chrono::milliseconds(1100));  // HDF5 stamps whole seconds where it is let
    write_trace(file("b.h5"), some_header(), 2);
    EXPECT_EQ(content_of(file("a.h5")), content_of(file("b.h5")));
    EXPECT_EQ(TraceReader(file("a.h5")).digest(), TraceReader(file("b.h5")).digest());
}

TEST_F(TraceFile, LoadsCountEveryRoutedChoiceOnce) {
    const TraceHeader header = some_header();
    write_trace(file("t.h5"), header, 1);
    const TraceReader reader(file("t.h5"));
    const TraceStep step = some_step(header, 0);
    for (int layer = 0; layer < header.num_moe_layers; ++layer) {
        // By hand: every slot of every sub-token, at its token's micro-batch and rank.
        std::vector<std::vector<std::uint32_t>> expected(2, std::vector<std::uint32_t>(2 * 8, 0));
        for (std::size_t slot = 0; slot < step.expert_ids[layer].size(); ++slot) {
            const std::size_t token = slot / 4;
            const auto id = step.expert_ids[layer][slot];
            if (id != kNotRouted)
                ++expected[step.token_micro_batch[token]][step.token_rank[token] * 8u + id];
        }
        std::uint64_t total = 0;
        for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
            const RoutingLoads loads = reader.loads(0, layer, micro_batch);
            EXPECT_EQ(loads.sub_tokens, expected[micro_batch]);
            for (const auto n : loads.sub_tokens) total += n;
            EXPECT_EQ(reader.tokens(0, layer, micro_batch).token_rank.size(), 32u);
        }
        EXPECT_EQ(total, 64u * 2 * 2 - (layer == 1 ? 1 : 0));  // T·h·k, less the one dropped
    }
}

TEST_F(TraceFile, CountsOnlyTracesHoldLoadsAndRefuseTokens) {
    TraceHeader header = some_header();
    header.counts_only = true;
    TraceStep step;
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
        auto& counts = step.counts.emplace_back(2 * 2 * 8, 0);
        for (std::uint32_t i = 0; i < counts.size(); ++i) counts[i] = 100000 * layer + i;
    }
    TraceWriter writer(file("c.h5"), header);
    writer.add(step);
    writer.finish();
    const TraceReader reader(file("c.h5"));
    EXPECT_TRUE(reader.header().counts_only);
    EXPECT_EQ(reader.step(0).counts, step.counts);
    const RoutingLoads loads = reader.loads(0, 2, 1);
    EXPECT_EQ(loads.num_sources, 2);
    EXPECT_EQ(loads.sub_tokens[8 + 3],
              200000u + 16 + 8 + 3);  // micro-batch 1 begins at 16, source 1 at 8
    EXPECT_THAT(input_error([&] { reader.tokens(0, 0, 0); }), HasSubstr("counts only"));
}

TEST_F(TraceFile, AnUnfinishedTraceNeverAppears) {
    {
        TraceWriter writer(file("t.h5"), some_header());
        writer.add(some_step(some_header(), 0));
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(TraceFile, IdsBeyondTheExpertsAreRefusedOnWriting) {
    TraceWriter writer(file("t.h5"), some_header());
    TraceStep step = some_step(some_header(), 0);
    step.expert_ids[2][0] = 8;
    EXPECT_THAT(input_error([&] { writer.add(step); }), HasSubstr("expert id is 8"));
}

TEST_F(TraceFile, IdsBeyondTheExpertsAreNamedWithTheirPlace) {
    write_trace(file("t.h5"), some_header(), 2);
    {
        // Another program writes id 9 into step 1, layer 2, row 5, slot 1 of a trace of 8 experts.
        const hid_t f = H5Fopen(file("t.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT),
                    d = H5Dopen2(f, "expert_ids", H5P_DEFAULT);
        const hid_t space = H5Dget_space(d);
        const hsize_t start[4] = {1, 2, 5, 1}, count[4] = {1, 1, 1, 1};
        H5Sselect_hyperslab(space, H5S_SELECT_SET, start, nullptr, count, nullptr);
        const hid_t one = H5Screate_simple(4, count, nullptr);
        const std::uint16_t id = 9;
        ASSERT_GE(H5Dwrite(d, H5T_NATIVE_UINT16, one, space, H5P_DEFAULT, &id), 0);
        H5Sclose(one), H5Sclose(space), H5Dclose(d), H5Fclose(f);
    }
    const TraceReader reader(file("t.h5"));
    reader.loads(0, 2, 0);
    const std::string message = input_error([&] { reader.loads(1, 2, 0); });
    EXPECT_THAT(message, HasSubstr("/expert_ids[1, 2, 5, 1] is 9"));
    EXPECT_THAT(message, HasSubstr("num_experts (8)"));
}

TEST_F(TraceFile, ForeignFilesAreRefused) {
    std::ofstream(file("text")) << "hello";
    EXPECT_THAT(input_error([&] { TraceReader reader(file("text")); }),
                HasSubstr("a routing trace in HDF5"));
    EXPECT_THAT(input_error([&] { TraceReader reader(file("absent")); }), HasSubstr("readable"));
    const hid_t f = H5Fcreate(file("foreign.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(f);
    EXPECT_THAT(input_error([&] { TraceReader reader(file("foreign.h5")); }),
                HasSubstr("routing-traces.md"));
}

TEST_F(TraceFile, AShapeThatItsDataCannotFillIsRefusedBeforeMemoryIsTaken) {
    {
        const hid_t f = H5Fcreate(file("bomb.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
        for (const auto& [name, value] : {std::pair<const char*, std::int64_t>{"version", 1},
                                          {"num_experts", 8},
                                          {"top_k", 2}}) {
            const hid_t space = H5Screate(H5S_SCALAR),
                        a = H5Acreate2(f, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
            H5Awrite(a, H5T_NATIVE_INT64, &value);
            H5Aclose(a), H5Sclose(space);
        }
        const hsize_t shape[4] = {1, 1, hsize_t{1} << 38, 2}, chunk[4] = {1, 1, 1024, 2};
        const hid_t space = H5Screate_simple(4, shape, nullptr), p = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_chunk(p, 4, chunk);
        const hid_t d =
            H5Dcreate2(f, "expert_ids", H5T_STD_U16LE, space, H5P_DEFAULT, p, H5P_DEFAULT);
        H5Dclose(d), H5Pclose(p), H5Sclose(space), H5Fclose(f);
    }
    EXPECT_THAT(input_error([&] { TraceReader reader(file("bomb.h5")); }),
                HasSubstr("a shape that its data can fill"));
}

TEST_F(TraceFile, CutOrScrambledFilesNeverCrash) {
    write_trace(file("t.h5"), some_header(), 2);
    const std::string whole = content_of(file("t.h5"));
    int refused = 0, tried = 0;
    const auto attempt = [&](const std::string& content) {
        std::ofstream(file("x.h5"), std::ios::binary | std::ios::trunc) << content;
        ++tried;
        try {
            const TraceReader reader(file("x.h5"));
            for (int i = 0; i < reader.header().num_steps; ++i) reader.step(i);
        } catch (const InputError&) {
            ++refused;
        }
    };
    for (std::size_t length = 0; length < whole.size(); length += whole.size() / 40)
        attempt(whole.substr(0, length));
    EXPECT_EQ(refused, tried);  // every truncation is noticed
    DrawStream draws({7});
    for (int i = 0; i < 300; ++i) {
        std::string content = whole;
        for (int flips = 0; flips < 4; ++flips)
            content[draws.below(content.size())] = static_cast<char>(draws.bits());
        attempt(content);  // read or refused; never anything else
    }
    EXPECT_EQ(tried, 41 + 300);
}

}  // namespace
}  // namespace moeplan
