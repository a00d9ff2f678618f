/// The default corpus. Nothing is installed and no root is needed: packages are downloaded with
/// apt-get, unpacked with dpkg-deb, and read. Slim containers leave out /usr/share/doc on
/// installing, so that reading what is installed would not do.

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>

#include "core/child_process.hpp"
#include "core/digest.hpp"
#include "core/errors.hpp"
#include "core/seed.hpp"
#include "core/text.hpp"
#include "model/text/corpus.hpp"
#include "model/text/sources/sources.hpp"

namespace moeplan {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kShortestDocument = 200;  ///< bytes
constexpr std::size_t kFewestDomains = 4;

std::string file_content(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<fs::path> files_under(const fs::path& folder) {
    std::vector<fs::path> out;
    std::error_code error;
    for (auto at = fs::recursive_directory_iterator(
             folder, fs::directory_options::skip_permission_denied, error);
         !error && at != fs::recursive_directory_iterator(); at.increment(error))
        if (at->is_regular_file(error) && !at->is_symlink(error)) out.push_back(at->path());
    std::sort(out.begin(), out.end());
    return out;
}

using AddText = std::function<void(const std::string& name, const std::string& text)>;

void read_man_pages(const fs::path& root, const AddText& add) {
    for (const auto& file : files_under(root / "usr/share/man"))
        if (file.extension() == ".gz")
            add(file.parent_path().filename() / file.stem(),
                text::roff_to_text(text::gunzip(file_content(file), 4 << 20)));
}

void read_html(const fs::path& root, const AddText& add) {
    for (const auto& file : files_under(root / "usr/share/doc"))
        if (file.extension() == ".html") add(file.stem(), text::html_to_text(file_content(file)));
}

void read_pod(const fs::path& root, const AddText& add) {
    for (const auto& file : files_under(root / "usr/share/perl")) {
        if (file.extension() != ".pod" || file.stem() == "perltoc")
            continue;  // the table of contents repeats the rest
        int part = 0;
        for (const auto& text : text::pod_to_texts(file_content(file)))
            add(file.stem().string() + "#" + std::to_string(part++), text);
    }
}

void read_dictionary(const fs::path& root, const AddText& add) {
    for (const auto& file : files_under(root / "usr/share/dictd")) {
        if (file.extension() != ".index") continue;
        fs::path dictionary = file;
        dictionary.replace_extension(".dict.dz");
        int part = 0;
        for (const auto& text :
             text::dictd_entries(file_content(file), text::gunzip(file_content(dictionary))))
            add(file.stem().string() + "#" + std::to_string(part++), text);
    }
}

void read_fortunes(const fs::path& root, const AddText& add) {
    for (const auto& file : files_under(root / "usr/share/games/fortunes")) {
        if (file.has_extension()) continue;  // .dat and .u8 are indices
        int part = 0;
        for (const auto& text : text::fortune_cookies(file_content(file)))
            add(file.filename().string() + "#" + std::to_string(part++), text);
    }
}

struct Source {
    std::string domain;
    std::vector<std::string> packages;  ///< the first that apt knows
    std::string licence;
    void (*read)(const fs::path&, const AddText&);
};

/// Licences are those of the packages' copyright files, shortened; the files themselves are
/// unpacked beside the text.
const std::vector<Source>& sources() {
    static const std::vector<Source> table = {
        {"c_library",
         {"manpages-dev"},
         "Linux-man-pages-copyleft, GPL-2+, BSD and others, by page",
         read_man_pages},
        {"sql",
         {"postgresql-doc-15", "postgresql-doc-17", "postgresql-doc-16", "postgresql-doc-14"},
         "PostgreSQL",
         read_html},
        {"perl", {"perl-doc"}, "GPL-1+ or Artistic", read_pod},
        {"computing", {"dict-foldoc"}, "GFDL-1.1+", read_dictionary},
        {"dictionary", {"dict-gcide"}, "GPL-3+", read_dictionary},
        {"quotations", {"fortunes"}, "BSD and others, by quotation", read_fortunes}};
    return table;
}

/// Runs a program of Debian's in a folder; its messages in English.
ChildResult run_in(const fs::path& folder, std::vector<std::string> words) {
    if (!find_program(words[0]))
        throw EnvironmentError("the default corpus needs " + words[0] +
                               " (Debian or Ubuntu); elsewhere give your own text: --data FOLDER "
                               "or --data FILE.jsonl");
    words.insert(words.begin(), {"env", "-C", folder.string()});
    ChildOptions options;
    options.environment["LC_ALL"] = "C.UTF-8";
    return run_child(words, options);
}

/// The package's file in the cache folder, fetched if need be. Empty if apt does not know it or
/// cannot reach it.
fs::path fetch(const std::string& package, const fs::path& folder, std::string& said) {
    const auto present = [&]() -> fs::path {
        for (const auto& file : files_under(folder))
            if (file.filename().string().starts_with(package + "_") && file.extension() == ".deb")
                return file;
        return {};
    };
    if (const fs::path file = present(); !file.empty()) {
        if (run_in(folder, {"dpkg-deb", "--info", file.string()}).status == 0) return file;
        fs::remove(file);  // cut short by an earlier, killed run
    }
    // As root apt would drop to user _apt, who may not write into a private folder, and warn about
    // it.
    std::vector<std::string> words = {"apt-get", "-q",
                                      "-o",      "Acquire::Retries=1",
                                      "-o",      "Acquire::http::Timeout=20",
                                      "-o",      "Acquire::https::Timeout=20"};
    if (geteuid() == 0) words.insert(words.end(), {"-o", "APT::Sandbox::User=root"});
    words.insert(words.end(), {"download", package});
    const ChildResult ran = run_in(folder, words);
    if (ran.status != 0) {
        for (const auto& line : split(ran.error, '\n'))
            if (line.starts_with("E:")) said = line;
        return {};
    }
    return present();
}

/// A sample of a domain that does not depend on the order of files: documents in the order of a
/// hash of their names, until the bytes are reached; then in the order of names again.
std::vector<Document> capped(std::vector<Document> documents, std::uint64_t bytes) {
    const auto rank = [](const Document& d) { return draw({0}, d.name); };
    std::sort(documents.begin(), documents.end(), [&](const Document& a, const Document& b) {
        const auto x = rank(a), y = rank(b);
        return x != y ? x < y : a.name < b.name;
    });
    std::uint64_t total = 0;
    std::size_t kept = 0;
    while (kept < documents.size() && total < bytes) total += documents[kept++].text.size();
    documents.resize(kept);
    std::sort(documents.begin(), documents.end(),
              [](const Document& a, const Document& b) { return a.name < b.name; });
    return documents;
}

}  // namespace

Corpus debian_corpus(const DebianCorpusOptions& options, const Progress& progress) {
    Corpus corpus;
    corpus.source = "debian";
    const fs::path folder = options.cache / "packages";
    std::error_code error;
    fs::create_directories(folder, error);
    if (error)
        throw InputError(
            folder.string(), "", "",
            "a folder that can be made (" + error.message() + "); choose another with --cache");
    std::string said;
    double done = 0;
    for (const Source& source : sources()) {
        fs::path file;
        for (const auto& package : source.packages) {
            if (progress) progress(done, "fetching " + package);
            file = fetch(package, folder, said);
            if (!file.empty()) break;
        }
        done += 1.0 / static_cast<double>(sources().size());
        if (file.empty()) continue;
        const auto fields = run_in(folder, {"dpkg-deb", "-f", file.string(), "Package", "Version"});
        CorpusPackage package{"", "", digest_of_file(file), source.licence, source.domain};
        for (const auto& line : split(fields.output, '\n')) {
            if (line.starts_with("Package: "))
                package.package = trim(std::string_view(line).substr(9));
            if (line.starts_with("Version: "))
                package.version = trim(std::string_view(line).substr(9));
        }
        const fs::path unpacked = folder / (file.stem().string() + "." + std::to_string(getpid()));
        run_in(folder, {"dpkg-deb", "-x", file.string(), unpacked.string()});
        if (progress) progress(done, "reading " + package.package);
        std::vector<Document> documents;
        source.read(unpacked, [&](const std::string& name, const std::string& raw) {
            std::string text = text::clean(raw);
            if (text.size() >= kShortestDocument)
                documents.push_back({package.package + ":" + name, std::move(text),
                                     static_cast<std::uint16_t>(corpus.domains.size())});
        });
        // The licence stays with what is kept.
        const fs::path copyright = unpacked / "usr/share/doc" / package.package / "copyright";
        if (fs::exists(copyright, error))
            fs::copy_file(copyright, folder / (package.package + ".copyright"),
                          fs::copy_options::overwrite_existing, error);
        fs::remove_all(unpacked, error);
        if (documents.empty()) continue;
        documents = capped(std::move(documents), options.bytes_per_domain);
        corpus.domains.push_back(source.domain);
        corpus.packages.push_back(std::move(package));
        std::move(documents.begin(), documents.end(), std::back_inserter(corpus.documents));
    }
    if (corpus.domains.size() < kFewestDomains)
        throw EnvironmentError("the default corpus is made of Debian packages, and only " +
                               std::to_string(corpus.domains.size()) + " of " +
                               std::to_string(sources().size()) + " could be fetched" +
                               (said.empty() ? "" : " (apt-get: " + said + ")") +
                               ".\nConnect this machine and run apt-get update (as root), or copy "
                               "another machine's cache folder here (--cache FOLDER), "
                               "or give your own text: --data FOLDER or --data FILE.jsonl");
    return corpus;
}

}  // namespace moeplan
