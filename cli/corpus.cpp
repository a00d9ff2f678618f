/// `moeplan corpus`: the text that training reads, fetched, counted, and written as token ids or
/// JSON lines.

#include "model/text/corpus.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/progress_bar.hpp"
#include "cli/table.hpp"
#include "core/output_file.hpp"
#include "core/quantity_text.hpp"
#include "model/text/prepare.hpp"

namespace moeplan::cli {

void add_corpus(CLI::App& app, Run& run) {
    struct Words {
        TextOptions text;
        std::string tokens, jsonl;
        OutputWords output;
    };
    const auto words = std::make_shared<Words>();
    CLI::App* sub =
        app.add_subcommand("corpus", "The text that training reads: fetched, counted, encoded");
    sub->add_option("--data", words->text.data,
                    "debian (documentation packages), a folder (one document a file, sub-folder = "
                    "domain), a JSONL file (\"text\", \"domain\") or a tokens file")
        ->capture_default_str();
    sub->add_option("--cache", words->text.cache,
                    "where packages, vocabularies and tokens are kept (default: ~/.cache/moeplan)")
        ->type_name("FOLDER");
    sub->add_option("--vocabulary", words->text.vocabulary,
                    "a SentencePiece model (default: trained on the text)")
        ->type_name("FILE");
    sub->add_option("--vocabulary-size", words->text.vocabulary_size, "of a trained one")
        ->check(CLI::Range(300, 65536))
        ->capture_default_str();
    sub->add_option("--bytes-per-domain", words->text.bytes_per_domain,
                    "of the default corpus, at most")
        ->check(CLI::Range(10000, 100000000))
        ->capture_default_str();
    sub->add_option("--tokens", words->tokens,
                    "write the token ids (docs/corpus.md), for training elsewhere")
        ->type_name("FILE");
    sub->add_option("--jsonl", words->jsonl, "write the documents, one JSON object a line")
        ->type_name("FILE");
    add_output_flags(*sub, words->output);
    sub->footer("Example: moeplan corpus --tokens corpus.tokens --json corpus.json");
    sub->callback([words, &run] {
        run = [words] {
            PreparedText prepared;
            {
                ProgressBar bar("corpus");
                prepared = prepare_text(words->text, bar.callback());
            }
            const JsonReader manifest = JsonReader::from_text(prepared.manifest, "corpus.json");
            if (!words->tokens.empty()) write_tokens(words->tokens, prepared.tokens);
            if (!words->jsonl.empty())
                write_whole(
                    words->jsonl,
                    corpus_jsonl(words->text.data == "debian"
                                     ? debian_corpus({words->text.cache.empty() ? default_cache()
                                                                                : words->text.cache,
                                                      words->text.bytes_per_domain})
                                     : read_corpus(words->text.data)));
            if (!words->output.quiet()) {
                Table table({"domain", "documents", "bytes", "tokens"});
                for (const auto& domain : manifest.at("domains").items())
                    table.row({domain.at("domain").text(),
                               std::to_string(domain.at("documents").count()),
                               to_text(Bytes{domain.at("bytes").number()}),
                               std::to_string(domain.at("tokens").integer())});
                table.row({"all", std::to_string(manifest.at("documents").count()),
                           to_text(Bytes{manifest.at("bytes").number()}),
                           std::to_string(manifest.at("tokens").integer())});
                std::fputs(table.text().c_str(), stdout);
                for (const auto& package : manifest.at("packages").items())
                    fmt::print("{} {}: {}\n", package.at("package").text(),
                               package.at("version").text(), package.at("licence").text());
                fmt::print("vocabulary {} of {} pieces; tokens in {}\n",
                           prepared.vocabulary.string(), prepared.tokens.vocab_size,
                           prepared.tokens_file.string());
            }
            write_answer(words->output, manifest.value());
            return kDone;
        };
    });
}

}  // namespace moeplan::cli
