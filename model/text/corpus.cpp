#include "model/text/corpus.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "model/text/sources/sources.hpp"

namespace moeplan {
namespace {

namespace fs = std::filesystem;

/// Domains in the order of their names, whatever the order of documents.
void number_domains(Corpus& corpus, const std::vector<std::string>& domain_of) {
    std::map<std::string, std::uint16_t> number;
    for (const auto& domain : domain_of) number.emplace(domain, 0);
    if (number.size() > 65535)
        throw InputError(corpus.source, "", std::to_string(number.size()) + " domains",
                         "at most 65535");
    for (auto& [domain, index] : number) {
        index = static_cast<std::uint16_t>(corpus.domains.size());
        corpus.domains.push_back(domain);
    }
    for (std::size_t i = 0; i < domain_of.size(); ++i)
        corpus.documents[i].domain = number[domain_of[i]];
}

Corpus read_folder(const fs::path& folder) {
    Corpus corpus;
    corpus.source = folder.string();
    std::vector<fs::path> files;
    std::error_code error;
    for (auto at = fs::recursive_directory_iterator(folder, error);
         !error && at != fs::recursive_directory_iterator(); at.increment(error))
        if (at->is_regular_file(error) && !at->path().filename().string().starts_with('.'))
            files.push_back(at->path());
    if (error)
        throw InputError(folder.string(), "", "",
                         "a folder that can be read (" + error.message() + ")");
    std::sort(files.begin(), files.end());
    std::vector<std::string> domains;
    for (const auto& file : files) {
        std::ifstream in(file, std::ios::binary);
        if (!in) throw InputError(file.string(), "", "", "a readable file");
        const std::string raw((std::istreambuf_iterator<char>(in)), {});
        std::string text = text::clean(raw);
        if (text.empty()) continue;
        const fs::path relative = fs::relative(file, folder);
        corpus.documents.push_back({relative.string(), std::move(text), 0});
        domains.push_back(relative.has_parent_path() ? relative.begin()->string() : "text");
    }
    if (corpus.documents.empty())
        throw InputError(folder.string(), "", "no text",
                         "one document a file; a sub-folder is a domain");
    number_domains(corpus, domains);
    return corpus;
}

Corpus read_jsonl(const fs::path& file) {
    Corpus corpus;
    corpus.source = file.string();
    std::ifstream in(file, std::ios::binary);
    if (!in)
        throw InputError(file.string(), "", "",
                         "a readable folder or JSONL file, or \"debian\" for the default corpus");
    std::vector<std::string> domains;
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
        if (trim(line).empty()) continue;
        const std::string place = "line " + std::to_string(number);
        const auto value = nlohmann::json::parse(line, nullptr, false);
        if (!value.is_object() || !value.contains("text") || !value["text"].is_string())
            throw InputError(file.string(), place, "",
                             "a JSON object with \"text\", and \"domain\" if you like");
        if (value.contains("domain") && !value["domain"].is_string())
            throw InputError(
                file.string(), place + ", domain",
                value["domain"].dump(-1, ' ', true, nlohmann::json::error_handler_t::replace),
                "a name");
        std::string text = text::clean(value["text"].get_ref<const std::string&>());
        if (text.empty()) continue;
        corpus.documents.push_back({place, std::move(text), 0});
        domains.push_back(value.contains("domain") ? value["domain"].get<std::string>() : "text");
    }
    if (corpus.documents.empty())
        throw InputError(file.string(), "", "no text", "one JSON object a line, with \"text\"");
    number_domains(corpus, domains);
    return corpus;
}

}  // namespace

Corpus read_corpus(const fs::path& path) {
    std::error_code error;
    return fs::is_directory(path, error) ? read_folder(path) : read_jsonl(path);
}

Json corpus_manifest(const Corpus& corpus, const TokenData& tokens, const std::string& vocabulary) {
    Json out = json_header("corpus");
    out["source"] = corpus.source;
    out["documents"] = tokens.document_ends.size();
    std::vector<std::uint64_t> documents(corpus.domains.size()), bytes(corpus.domains.size()),
        ids(corpus.domains.size());
    std::uint64_t total = 0;
    for (const auto& document : corpus.documents) {
        bytes[document.domain] += document.text.size();
        total += document.text.size();
    }
    for (std::size_t i = 0, begin = 0; i < tokens.document_ends.size();
         begin = tokens.document_ends[i++]) {
        ids[tokens.document_domains[i]] += tokens.document_ends[i] - begin;
        ++documents[tokens.document_domains[i]];
    }
    out["bytes"] = total;
    out["tokens"] = tokens.tokens.size();
    out["vocabulary"] = {{"model", vocabulary}, {"size", tokens.vocab_size}};
    out["domains"] = Json::array();
    for (std::size_t i = 0; i < corpus.domains.size(); ++i)
        out["domains"].push_back({{"domain", corpus.domains[i]},
                                  {"documents", documents[i]},
                                  {"bytes", bytes[i]},
                                  {"tokens", ids[i]}});
    out["packages"] = Json::array();
    for (const auto& p : corpus.packages)
        out["packages"].push_back({{"package", p.package},
                                   {"version", p.version},
                                   {"sha256", p.sha256},
                                   {"licence", p.licence},
                                   {"domain", p.domain}});
    out["digest"] = tokens.digest;
    return out;
}

std::string corpus_jsonl(const Corpus& corpus) {
    std::string out;
    for (const auto& document : corpus.documents)
        out += nlohmann::ordered_json{{"domain", corpus.domains[document.domain]},
                                      {"name", document.name},
                                      {"text", document.text}}
                   .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
               "\n";
    return out;
}

}  // namespace moeplan
