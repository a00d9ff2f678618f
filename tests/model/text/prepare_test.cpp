#include "model/text/prepare.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "core/errors.hpp"
#include "core/json.hpp"
#include "core/seed.hpp"
#include "model/text/corpus.hpp"
#include "model/text/vocabulary.hpp"

namespace moeplan {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Sentences that a byte-pair vocabulary can learn from.
std::string some_text(int seed, int sentences) {
    static const char* words[] = {"token",    "expert", "router",   "gradient", "layer",
                                  "sequence", "visits", "sends",    "balances", "every",
                                  "second",   "tiny",   "übergroß", "日本"};
    std::string out;
    DrawStream draws({static_cast<std::uint64_t>(seed)});
    for (int i = 0; i < sentences; ++i) {
        for (int w = 0; w < 8; ++w) out += std::string(w ? " " : "") + words[draws.below(14)];
        out += i % 3 == 0 ? ".\n\n    indented = code(x);\n" : ". ";
    }
    return out;
}

class Prepare : public ::testing::Test {
  protected:
    Prepare()
        : folder_(fs::temp_directory_path() /
                  ("moeplan_text_" +
                   std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) +
                   std::to_string(getpid()))) {
        fs::create_directories(folder_ / "data/a");
        fs::create_directories(folder_ / "data/b");
        for (int i = 0; i < 6; ++i)
            std::ofstream(folder_ / "data" / (i % 2 ? "a" : "b") / (std::to_string(i) + ".txt"))
                << some_text(i, 120);
        options_.data = (folder_ / "data").string();
        options_.cache = folder_ / "cache";
        options_.vocabulary_size = 400;
    }
    ~Prepare() override { fs::remove_all(folder_); }
    std::string error_of(const TextOptions& options) {
        try {
            prepare_text(options);
        } catch (const std::exception& error) {
            return error.what();
        }
        return "";
    }
    fs::path folder_;
    TextOptions options_;
};

TEST_F(Prepare, AFolderBecomesTokensThatDecodeToItsText) {
    const PreparedText prepared = prepare_text(options_);
    EXPECT_THAT(prepared.tokens.domains, ElementsAre("a", "b"));
    ASSERT_EQ(prepared.tokens.document_ends.size(), 6u);
    std::ifstream in(prepared.vocabulary, std::ios::binary);
    const Vocabulary vocabulary(std::string((std::istreambuf_iterator<char>(in)), {}), "v");
    const Corpus corpus = read_corpus(options_.data);
    std::uint64_t begin = 0;
    for (std::size_t i = 0; i < 6; ++i) {
        const std::vector<std::uint16_t> ids(
            prepared.tokens.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
            prepared.tokens.tokens.begin() +
                static_cast<std::ptrdiff_t>(prepared.tokens.document_ends[i]));
        EXPECT_EQ(ids.back(), kEndOfDocument);
        EXPECT_EQ(std::count(ids.begin(), ids.end(), kEndOfDocument), 1);
        EXPECT_EQ(vocabulary.decode(ids), corpus.documents[i].text + "\f");
        begin = prepared.tokens.document_ends[i];
    }
}

TEST_F(Prepare, TheSecondTimeComesFromTheCacheAndChangedTextDoesNot) {
    const PreparedText first = prepare_text(options_);
    int calls = 0;
    const PreparedText again = prepare_text(options_, [&](double, std::string_view) { ++calls; });
    EXPECT_EQ(calls, 0) << "nothing was made anew";
    EXPECT_EQ(first.tokens, again.tokens);
    EXPECT_EQ(first.manifest, again.manifest);
    std::ofstream(folder_ / "data/a/new.txt") << some_text(9, 10);
    EXPECT_EQ(prepare_text(options_).tokens.document_ends.size(), 7u);
    // A damaged cache is made anew.
    std::ofstream(again.tokens_file, std::ios::trunc) << "moetok1\nxx";
    fs::remove(folder_ / "data/a/new.txt");
    EXPECT_EQ(prepare_text(options_).tokens, first.tokens);
}

TEST_F(Prepare, AnotherCacheGivesTheSameTokens) {
    TextOptions other = options_;
    other.cache = folder_ / "elsewhere";
    EXPECT_EQ(prepare_text(options_).tokens.digest, prepare_text(other).tokens.digest);
}

TEST_F(Prepare, JsonLinesAndTokensFilesAreTextToo) {
    TextOptions options = options_;
    options.data = (folder_ / "t.jsonl").string();
    {
        std::ofstream out(options.data);
        for (const auto& document : read_corpus(options_.data).documents) {
            std::string escaped;
            for (const char c : document.text) escaped += c == '\n' ? "\\n" : std::string(1, c);
            out << "{\"domain\": \"d" << document.domain << "\", \"text\": \"" << escaped
                << "\"}\n";
        }
    }
    const PreparedText prepared = prepare_text(options);
    EXPECT_THAT(prepared.tokens.domains, ElementsAre("d0", "d1"));
    TextOptions ready = options_;
    ready.data = prepared.tokens_file.string();
    EXPECT_EQ(prepare_text(ready).tokens, prepared.tokens);
}

TEST_F(Prepare, AGivenVocabularyIsUsed) {
    const PreparedText trained = prepare_text(options_);
    TextOptions given = options_;
    given.vocabulary = trained.vocabulary;
    const PreparedText prepared = prepare_text(given);
    EXPECT_EQ(prepared.tokens.tokens, trained.tokens.tokens);
    EXPECT_EQ(prepared.vocabulary, trained.vocabulary);
}

TEST_F(Prepare, WrongWordsAreNamed) {
    TextOptions o = options_;
    o.data = "nowhere";
    EXPECT_THAT(error_of(o), HasSubstr("nowhere"));
    o = options_;
    std::ofstream(folder_ / "bad.jsonl") << "{\"text\": \"x\"}\n{\"txt\": 1}\n";
    o.data = (folder_ / "bad.jsonl").string();
    EXPECT_THAT(error_of(o), HasSubstr("line 2"));
    o = options_;
    std::ofstream(folder_ / "no.model") << "nonsense";
    o.vocabulary = folder_ / "no.model";
    EXPECT_THAT(error_of(o), HasSubstr("SentencePiece model"));
    o = options_;
    o.vocabulary_size = 10;
    EXPECT_THAT(error_of(o), HasSubstr("300"));
    o = options_;
    fs::create_directories(folder_ / "empty");
    o.data = (folder_ / "empty").string();
    EXPECT_THAT(error_of(o), HasSubstr("no text"));
}

TEST_F(Prepare, WithoutPackagesTheDefaultCorpusSaysWhatToDo) {
    // apt-get that fails, found first on the PATH: as a machine without a network.
    fs::create_directories(folder_ / "bin");
    std::ofstream(folder_ / "bin/apt-get")
        << "#!/bin/sh\necho 'E: Unable to locate package' >&2\nexit 100\n";
    fs::permissions(folder_ / "bin/apt-get", fs::perms::owner_all);
    const std::string before = std::getenv("PATH");
    setenv("PATH", ((folder_ / "bin").string() + ":" + before).c_str(), 1);
    TextOptions o = options_;
    o.data = "debian";
    try {
        prepare_text(o);
        ADD_FAILURE() << "no package could be had";
    } catch (const EnvironmentError& error) {
        EXPECT_THAT(error.what(), HasSubstr("--data"));
        EXPECT_THAT(error.what(), HasSubstr("Unable to locate package"));
    }
    setenv("PATH", before.c_str(), 1);
}

}  // namespace
}  // namespace moeplan
