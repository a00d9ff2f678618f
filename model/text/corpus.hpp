#pragma once
/// Documents with a domain each: Debian's own documentation packages by default, or a user's text.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/json.hpp"
#include "core/progress.hpp"
#include "model/text/token_data.hpp"

namespace moeplan {

struct Document {
    std::string name, text;
    std::uint16_t domain = 0;  ///< index into Corpus::domains
    bool operator==(const Document&) const = default;
};

/// A package that a domain of the default corpus comes from.
struct CorpusPackage {
    std::string package, version, sha256, licence, domain;
    bool operator==(const CorpusPackage&) const = default;
};

struct Corpus {
    std::string source;  ///< "debian", or the user's folder or file
    std::vector<std::string> domains;
    std::vector<Document> documents;
    std::vector<CorpusPackage> packages;  ///< of the default corpus
};

struct DebianCorpusOptions {
    std::filesystem::path cache;  ///< packages are kept there
    std::uint64_t bytes_per_domain = 1'000'000;
};

/// The default corpus: packages fetched with apt's own client, read without being installed.
/// @throws EnvironmentError if apt is missing, or fewer than four domains can be had; it says what
/// to do instead
Corpus debian_corpus(const DebianCorpusOptions&, const Progress& = {});

/// A folder (one document a file, sub-folder = domain) or a JSONL file ("text", optional "domain").
/// @throws InputError naming file and line
Corpus read_corpus(const std::filesystem::path& folder_or_file);

/// corpus.json: what the corpus is made of, by domain and package. No text.
Json corpus_manifest(const Corpus&, const TokenData&, const std::string& vocabulary);

/// One JSON line a document.
std::string corpus_jsonl(const Corpus&);

}  // namespace moeplan
