#pragma once
/// From `--data` to token ids, by way of a cache: the second time takes a moment.

#include <filesystem>
#include <string>

#include "core/progress.hpp"
#include "model/text/token_data.hpp"

namespace moeplan {

struct TextOptions {
    std::string data = "debian";       ///< "debian", a folder, a JSONL file, or a tokens file
    std::filesystem::path cache;       ///< empty: default_cache()
    std::filesystem::path vocabulary;  ///< a SentencePiece model; empty: trained on the text
    int vocabulary_size = 2048;        ///< of a trained one
    std::uint64_t bytes_per_domain = 1'000'000;  ///< of the default corpus
};

struct PreparedText {
    TokenData tokens;
    std::string manifest;              ///< text of corpus.json
    std::filesystem::path vocabulary;  ///< the SentencePiece model used, in the cache or the user's
                                       ///< own; empty for a tokens file
    std::filesystem::path tokens_file;  ///< the cached tokens
};

/// Safe to call from several processes at once: they take turns on the cache.
/// @throws InputError for a wrong file, EnvironmentError where the default corpus cannot be fetched
PreparedText prepare_text(const TextOptions&, const Progress& = {});

std::filesystem::path default_cache();  ///< $XDG_CACHE_HOME/moeplan or ~/.cache/moeplan

}  // namespace moeplan
