#include "model/text/token_data.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "core/errors.hpp"

namespace moeplan {
namespace {

using ::testing::HasSubstr;

/// `lengths[i]` tokens in document i, its end token included; token values name the document.
TokenData some_tokens(const std::vector<int>& lengths) {
    TokenData data;
    data.vocab_size = 1000;
    data.domains = {"even", "odd"};
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        for (int j = 0; j + 1 < lengths[i]; ++j)
            data.tokens.push_back(static_cast<std::uint16_t>(1 + i));
        data.tokens.push_back(kEndOfDocument);
        data.document_ends.push_back(data.tokens.size());
        data.document_domains.push_back(static_cast<std::uint16_t>(i % 2));
    }
    data.digest = digest_of(data);
    return data;
}

TokenData many_documents() {
    std::vector<int> lengths;
    for (int i = 0; i < 400; ++i) lengths.push_back(3 + i % 37);
    return some_tokens(lengths);
}

Packing every_document(int sequence_length) {
    Packing p;
    p.sequence_length = sequence_length;
    p.held_out = 0;
    return p;
}

TEST(Packing, LaysEveryTokenOnceAndDropsLessThanOneSequence) {
    const TokenData data = many_documents();
    const PackedTokens packed = pack(data, Part::train, every_document(64));
    // ⌊(T − 1) / S⌋ sequences: the last token of the last one needs a target.
    EXPECT_EQ(packed.num_sequences, static_cast<std::int64_t>((data.tokens.size() - 1) / 64));
    std::map<std::uint32_t, std::uint64_t> by_document;
    for (const auto document : packed.documents) ++by_document[document];
    std::uint64_t whole = 0;
    for (const auto& [document, count] : by_document) {
        const std::uint64_t begin = document == 0 ? 0 : data.document_ends[document - 1];
        EXPECT_LE(count, data.document_ends[document] - begin);
        whole += count == data.document_ends[document] - begin;
    }
    EXPECT_GE(whole + 65, data.document_ends.size());  // only the tail is cut
}

TEST(Packing, TargetsAreTheTokensThatFollow) {
    const PackedTokens packed = pack(many_documents(), Part::train, every_document(32));
    const TokenBatch batch = read_batch(packed, 3, 5);
    ASSERT_EQ(batch.tokens.size(), 5u * 32);
    for (int s = 0; s < 5; ++s)
        for (int i = 0; i + 1 < 32; ++i)
            EXPECT_EQ(batch.targets[s * 32 + i], batch.tokens[s * 32 + i + 1]);
}

TEST(Packing, AnEpochReadsEverySequenceOnceAndTheNextInAnotherOrder) {
    const PackedTokens packed = pack(many_documents(), Part::train, every_document(64));
    const auto n = packed.num_sequences;
    const auto order = [&](std::int64_t epoch) {
        std::vector<std::vector<std::uint16_t>> sequences;
        for (std::int64_t i = 0; i < n; ++i)
            sequences.push_back(read_batch(packed, epoch * n + i, 1).tokens);
        return sequences;
    };
    auto first = order(0), second = order(1);
    EXPECT_NE(first, second);
    std::sort(first.begin(), first.end());
    std::sort(second.begin(), second.end());
    EXPECT_EQ(first, second);
}

TEST(Packing, ConsecutiveOrderKeepsPiecesOfADocumentTogether) {
    Packing packing = every_document(16);
    packing.order = DocumentOrder::consecutive;
    const PackedTokens packed = pack(some_tokens({100, 100, 100}), Part::train, packing);
    const TokenBatch all = read_batch(packed, 0, static_cast<int>(packed.num_sequences));
    EXPECT_TRUE(std::equal(all.tokens.begin(), all.tokens.end(), packed.tokens.begin()));
}

TEST(Packing, HeldOutAndTrainingDocumentsAreDisjointAndTheShareIsKept) {
    const TokenData data = many_documents();
    Packing packing = every_document(8);
    packing.held_out = 0.25;
    packing.seed = {11};
    const PackedTokens train = pack(data, Part::train, packing),
                       held_out = pack(data, Part::held_out, packing);
    const std::set<std::uint32_t> a(train.documents.begin(), train.documents.end()),
        b(held_out.documents.begin(), held_out.documents.end());
    for (const auto document : b) EXPECT_FALSE(a.contains(document));
    // 400 draws at 1/4: 100 ± 4·√(400·¼·¾) = 100 ± 35.
    EXPECT_NEAR(static_cast<double>(held_out.num_documents), 100, 35);
    EXPECT_EQ(train.num_documents + held_out.num_documents, 400);
}

TEST(Packing, TheGlobalBatchIsTheSameOnAnyNumberOfRanks) {
    const PackedTokens packed = pack(many_documents(), Part::train, every_document(16));
    const auto global_batch = [&](const BatchShape& shape) {
        std::vector<std::uint16_t> tokens;
        for (int m = 0; m < shape.num_micro_batches; ++m)
            for (int rank = 0; rank < shape.num_ranks; ++rank) {
                const TokenBatch part = read_micro_batch(packed, shape, 5, m, rank);
                tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
            }
        return tokens;
    };
    const auto alone = global_batch({8, 2, 1});
    EXPECT_EQ(global_batch({4, 2, 2}), alone);
    EXPECT_EQ(global_batch({2, 2, 4}), alone);
}

TEST(Packing, OneDomainAloneCanBeRead) {
    Packing packing = every_document(16);
    packing.only_domain = 1;
    const PackedTokens packed = pack(many_documents(), Part::held_out, [&] {
        auto p = packing;
        p.held_out = 0.5;
        return p;
    }());
    for (const auto domain : packed.domains) EXPECT_EQ(domain, 1);
}

TEST(Packing, TooLittleTextIsTheUsersFault) {
    EXPECT_THROW(pack(some_tokens({10}), Part::train, every_document(10)), InputError);
    EXPECT_EQ(pack(some_tokens({11}), Part::train, every_document(10)).num_sequences, 1);
}

TokenBatch one_sequence(std::vector<std::uint16_t> tokens, std::vector<std::uint32_t> documents,
                        int length) {
    TokenBatch batch;
    batch.sequence_length = length;
    batch.num_sequences = static_cast<int>(tokens.size()) / length;
    batch.tokens = std::move(tokens);
    batch.documents = std::move(documents);
    return batch;
}

TEST(DocumentSpans, EndAtTheEndTokenAndAtTheSequencesBorder) {
    // Two sequences of 5: "a a . b b" and "b . c . ." (documents 4, 5, 6, 7; "." ends a document; 7
    // is one end token).
    const TokenBatch batch =
        one_sequence({9, 9, 0, 8, 8, 8, 0, 7, 0, 0}, {4, 4, 4, 5, 5, 5, 5, 6, 6, 7}, 5);
    EXPECT_EQ(document_spans(batch),
              (std::vector<DocumentSpan>{{0, 3, 4}, {3, 5, 5}, {5, 7, 5}, {7, 9, 6}, {9, 10, 7}}));
}

TEST(DocumentSpans, TheRoutersEndTokenOpensTheNextSpanWhenAsked) {
    // The published EMO code: spans [previous end token, this end token); an end token at position
    // 0 opens the first span, one at the last position is a span of its own.
    const TokenBatch batch = one_sequence({0, 9, 0, 8, 0}, {3, 4, 4, 5, 5}, 5);
    EXPECT_EQ(router_spans(batch, EndTokenOf::next_document),
              (std::vector<DocumentSpan>{{0, 2, 4}, {2, 4, 5}, {4, 5, 5}}));
    EXPECT_EQ(router_spans(batch, EndTokenOf::its_document),
              (std::vector<DocumentSpan>{{0, 1, 3}, {1, 3, 4}, {3, 5, 5}}));
}

class TokensFile : public ::testing::Test {
  protected:
    std::filesystem::path file_ =
        std::filesystem::temp_directory_path() / ("moeplan_tokens_" + std::to_string(getpid()));
    ~TokensFile() override { std::filesystem::remove(file_); }
};

TEST_F(TokensFile, ReadsBackWhatWasWritten) {
    const TokenData data = many_documents();
    write_tokens(file_, data);
    EXPECT_EQ(read_tokens(file_), data);
}

TEST_F(TokensFile, EveryTruncationAndEveryScrambledByteIsReadOrRefused) {
    write_tokens(file_, some_tokens({5, 6, 7}));
    std::ifstream in(file_, std::ios::binary);
    const std::string whole((std::istreambuf_iterator<char>(in)), {});
    for (std::size_t length = 0; length < whole.size(); ++length) {
        std::ofstream(file_, std::ios::binary | std::ios::trunc) << whole.substr(0, length);
        EXPECT_THROW(read_tokens(file_), InputError) << length;
    }
    for (std::size_t at = 0; at < whole.size(); ++at)
        for (const char value : {'\xff', '\x7f', '\0'}) {
            std::string content = whole;
            content[at] = value;
            std::ofstream(file_, std::ios::binary | std::ios::trunc) << content;
            try {
                const TokenData data = read_tokens(file_);
                for (const auto token : data.tokens) EXPECT_LT(token, data.vocab_size);
            } catch (const InputError&) {
            }
        }
}

}  // namespace
}  // namespace moeplan
