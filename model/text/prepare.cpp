#include "model/text/prepare.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/digest.hpp"
#include "core/errors.hpp"
#include "core/output_file.hpp"
#include "model/text/corpus.hpp"
#include "model/text/vocabulary.hpp"

namespace moeplan {
namespace {

namespace fs = std::filesystem;

/// Raise it when the same packages or files would give other tokens: parsers, cleaning, vocabulary
/// settings.
constexpr const char* kTextVersion = "1";

/// One process at a time works on the cache; the lock goes with the process.
class CacheLock {
  public:
    explicit CacheLock(const fs::path& cache) {
        file_ = open((cache / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (file_ >= 0) flock(file_, LOCK_EX);
    }
    ~CacheLock() {
        if (file_ >= 0) close(file_);
    }
    CacheLock(const CacheLock&) = delete;
    CacheLock& operator=(const CacheLock&) = delete;

  private:
    int file_ = -1;
};

std::string content_of(const fs::path& file, const std::string& expected) {
    std::ifstream in(file, std::ios::binary);
    if (!in || fs::is_directory(file)) throw InputError(file.string(), "", "", expected);
    return {std::istreambuf_iterator<char>(in), {}};
}

bool is_tokens_file(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    char begin[7] = {};
    in.read(begin, sizeof begin);
    return std::string_view(begin, sizeof begin) == "moetok1";
}

std::string digest_of_corpus(const Corpus& corpus) {
    Digest digest;
    for (const auto& document : corpus.documents)
        digest
            .add(corpus.domains[document.domain] + "\n" + std::to_string(document.text.size()) +
                 "\n")
            .add(document.text);
    return digest.hex();
}

TokenData encode(const Corpus& corpus, const Vocabulary& vocabulary, const Progress& progress) {
    TokenData data;
    data.vocab_size = vocabulary.size();
    data.domains = corpus.domains;
    for (std::size_t i = 0; i < corpus.documents.size(); ++i) {
        if (progress && i % 256 == 0)
            progress(
                0.6 + 0.4 * static_cast<double>(i) / static_cast<double>(corpus.documents.size()),
                "encoding");
        const auto ids = vocabulary.encode(corpus.documents[i].text);
        data.tokens.insert(data.tokens.end(), ids.begin(), ids.end());
        data.tokens.push_back(kEndOfDocument);
        data.document_ends.push_back(data.tokens.size());
        data.document_domains.push_back(corpus.documents[i].domain);
    }
    data.digest = digest_of(data);
    return data;
}

/// What an earlier run left, if it is whole.
bool from_cache(const fs::path& stem, PreparedText& out) {
    const fs::path tokens = stem.string() + ".tokens", manifest = stem.string() + ".json";
    std::error_code error;
    if (!fs::exists(tokens, error) || !fs::exists(manifest, error)) return false;
    try {
        const Json made = JsonReader::from_file(manifest).value();
        out.manifest = to_file_text(made);
        out.tokens = read_tokens(tokens);
        out.tokens_file = tokens;
        return made.value("digest", "") == out.tokens.digest;
    } catch (const InputError&) {
        return false;  // damaged: made anew
    }
}

}  // namespace

fs::path default_cache() {
    if (const char* folder = std::getenv("XDG_CACHE_HOME"); folder && *folder)
        return fs::path(folder) / "moeplan";
    if (const char* home = std::getenv("HOME"); home && *home)
        return fs::path(home) / ".cache" / "moeplan";
    return fs::temp_directory_path() / ("moeplan-cache-" + std::to_string(getuid()));
}

PreparedText prepare_text(const TextOptions& options, const Progress& progress) {
    PreparedText out;
    std::error_code error;
    const bool own_text = options.data != "debian";
    if (own_text && !fs::exists(options.data, error))
        throw InputError("--data", "", options.data,
                         "debian (the default corpus), a folder, a JSONL file or a tokens file");
    if (own_text && !fs::is_directory(options.data, error) && is_tokens_file(options.data)) {
        out.tokens = read_tokens(options.data);
        out.tokens_file = options.data;
        Corpus nothing;
        nothing.source = options.data;
        nothing.domains = out.tokens.domains;
        out.manifest = to_file_text(corpus_manifest(nothing, out.tokens, ""));
        return out;
    }

    const fs::path cache = options.cache.empty() ? default_cache() : options.cache;
    fs::create_directories(cache, error);
    if (error || access(cache.c_str(), W_OK) != 0)
        throw InputError(options.cache.empty() ? "cache folder" : "--cache", "", cache.string(),
                         "a folder that can be written; choose one with --cache FOLDER");
    const CacheLock lock(cache);

    // The key names all that decides about the tokens. The user's text is read to tell; the default
    // corpus is what was fetched once.
    std::string given;
    Digest key;
    key.add(kTextVersion).add("\n");
    if (options.vocabulary.empty()) {
        key.add("trained " + std::to_string(options.vocabulary_size) + "\n");
    } else {
        given = content_of(options.vocabulary, "a SentencePiece model (.model)");
        key.add("given " + digest_of(std::string_view(given)) + "\n");
    }
    Corpus corpus;
    if (own_text) {
        corpus = read_corpus(options.data);
        key.add(digest_of_corpus(corpus));
    } else {
        key.add("debian " + std::to_string(options.bytes_per_domain));
    }
    const fs::path stem = cache / ((own_text ? "text-" : "debian-") + key.hex().substr(0, 16));
    out.vocabulary =
        options.vocabulary.empty() ? fs::path(stem.string() + ".model") : options.vocabulary;
    if (from_cache(stem, out)) return out;

    if (!own_text)
        corpus = debian_corpus({cache, options.bytes_per_domain},
                               [&](double done, std::string_view doing) {
                                   if (progress) progress(0.4 * done, doing);
                               });
    if (progress) progress(0.4, "vocabulary");
    std::vector<std::string_view> texts;
    for (const auto& document : corpus.documents) texts.push_back(document.text);
    const Vocabulary vocabulary = given.empty()
                                      ? train_vocabulary(texts, options.vocabulary_size)
                                      : Vocabulary(std::move(given), options.vocabulary.string());
    out.tokens = encode(corpus, vocabulary, progress);
    out.tokens_file = stem.string() + ".tokens";
    out.manifest = to_file_text(corpus_manifest(
        corpus, out.tokens,
        options.vocabulary.empty() ? "trained" : options.vocabulary.filename().string()));
    if (options.vocabulary.empty()) write_whole(out.vocabulary, vocabulary.content());
    write_tokens(out.tokens_file, out.tokens);
    write_whole(stem.string() + ".json", out.manifest);
    if (progress) progress(1.0, "");
    return out;
}

}  // namespace moeplan
