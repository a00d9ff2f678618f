#include "model/text/token_data.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/digest.hpp"
#include "core/errors.hpp"
#include "core/output_file.hpp"

namespace moeplan {
namespace {

/// A permutation of 0 … n−1 without a table: four Feistel rounds over the next even power of two,
/// walked until inside n.
class Permutation {
  public:
    Permutation(Seed seed, std::uint64_t n) : seed_(seed), n_(n) {
        while ((std::uint64_t{1} << (2 * half_bits_)) < n) ++half_bits_;
    }
    std::uint64_t operator()(std::uint64_t index) const {
        const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
        do {
            std::uint64_t left = index >> half_bits_, right = index & mask;
            for (std::uint64_t round = 0; round < 4; ++round) {
                const std::uint64_t mixed = mix(seed_.value ^ mix(right * 4 + round)) & mask;
                left = std::exchange(right, left ^ mixed);
            }
            index = left << half_bits_ | right;
        } while (index >= n_);
        return index;
    }

  private:
    Seed seed_;
    std::uint64_t n_;
    int half_bits_ = 1;
};

std::uint64_t document_begin(const TokenData& data, std::size_t document) {
    return document == 0 ? 0 : data.document_ends[document - 1];
}

constexpr char kMagic[8] = {'m', 'o', 'e', 't', 'o', 'k', '1', '\n'};

template <class T>
void put(std::string& out, const T* values, std::size_t count) {
    out.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

/// Takes values from the front of a file's content, and says where it stopped when there are too
/// few.
class Taker {
  public:
    Taker(const std::string& file, std::string_view content) : file_(file), content_(content) {}
    template <class T>
    std::vector<T> take(std::uint64_t count, const char* what) {
        if (count > (content_.size() - at_) / sizeof(T))
            throw InputError(file_, std::string("byte ") + std::to_string(at_),
                             "the end of the file",
                             std::to_string(count) + " " + what + " (the file is cut short)");
        std::vector<T> out(count);
        if (count > 0) std::memcpy(out.data(), content_.data() + at_, count * sizeof(T));
        at_ += count * sizeof(T);
        return out;
    }
    std::uint64_t number(const char* what) { return take<std::uint64_t>(1, what)[0]; }
    std::size_t at() const { return at_; }
    bool done() const { return at_ == content_.size(); }

  private:
    const std::string& file_;
    std::string_view content_;
    std::size_t at_ = 0;
};

}  // namespace

template <>
const EnumNames<DocumentOrder>& enum_names<DocumentOrder>() {
    static const EnumNames<DocumentOrder> names = {{DocumentOrder::shuffled, "shuffled"},
                                                   {DocumentOrder::consecutive, "consecutive"}};
    return names;
}

std::string digest_of(const TokenData& data) {
    Digest digest;
    const auto add = [&](const auto& values) {
        digest.add(
            {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0])});
    };
    digest.add(std::to_string(data.vocab_size) + "\n");
    add(data.tokens);
    add(data.document_ends);
    add(data.document_domains);
    for (const auto& domain : data.domains) digest.add(domain + "\n");
    return digest.hex();
}

void write_tokens(const std::filesystem::path& file, const TokenData& data) {
    std::string out(kMagic, sizeof kMagic);
    const std::uint64_t counts[4] = {static_cast<std::uint64_t>(data.vocab_size),
                                     data.domains.size(), data.document_ends.size(),
                                     data.tokens.size()};
    put(out, counts, 4);
    for (const auto& domain : data.domains) {
        const std::uint64_t length = domain.size();
        put(out, &length, 1);
        out += domain;
    }
    put(out, data.document_ends.data(), data.document_ends.size());
    put(out, data.document_domains.data(), data.document_domains.size());
    put(out, data.tokens.data(), data.tokens.size());
    write_whole(file, out);
}

TokenData read_tokens(const std::filesystem::path& path) {
    const std::string file = path.string();
    std::ifstream in(path, std::ios::binary);
    if (!in || std::filesystem::is_directory(path))
        throw InputError(file, "", "", "a readable tokens file");
    const std::string content((std::istreambuf_iterator<char>(in)), {});
    if (content.compare(0, sizeof kMagic, kMagic, sizeof kMagic) != 0)
        throw InputError(
            file, "", "",
            "a tokens file (it begins with \"moetok1\"; docs/corpus.md gives the format)");
    Taker taker(file, std::string_view(content).substr(sizeof kMagic));
    TokenData data;
    const std::uint64_t vocab = taker.number("number"), domains = taker.number("number"),
                        documents = taker.number("number"), tokens = taker.number("number");
    if (vocab < 2 || vocab > 65536)
        throw InputError(file, "vocabulary size", std::to_string(vocab), "2 … 65536");
    if (domains < 1 || domains > 65535)
        throw InputError(file, "number of domains", std::to_string(domains), "1 … 65535");
    data.vocab_size = static_cast<int>(vocab);
    for (std::uint64_t i = 0; i < domains; ++i) {
        const auto name = taker.take<char>(taker.number("number"), "bytes of a domain's name");
        data.domains.emplace_back(name.begin(), name.end());
    }
    data.document_ends = taker.take<std::uint64_t>(documents, "document ends");
    data.document_domains = taker.take<std::uint16_t>(documents, "document domains");
    data.tokens = taker.take<std::uint16_t>(tokens, "token ids");
    if (!taker.done())
        throw InputError(file, "", "bytes behind the last token", "the end of the file");
    std::uint64_t before = 0;
    for (std::size_t i = 0; i < documents; ++i) {
        if (data.document_ends[i] <= before || data.document_ends[i] > tokens)
            throw InputError(file, "document end " + std::to_string(i),
                             std::to_string(data.document_ends[i]),
                             "more than the one before it (" + std::to_string(before) +
                                 "), at most " + std::to_string(tokens));
        if (data.document_domains[i] >= domains)
            throw InputError(file, "domain of document " + std::to_string(i),
                             std::to_string(data.document_domains[i]),
                             "less than " + std::to_string(domains));
        before = data.document_ends[i];
    }
    if (before != tokens)
        throw InputError(file, "last document end", std::to_string(before), std::to_string(tokens));
    for (std::size_t i = 0; i < tokens; ++i)
        if (data.tokens[i] >= vocab)
            throw InputError(file, "token " + std::to_string(i), std::to_string(data.tokens[i]),
                             "an id below the vocabulary size " + std::to_string(vocab));
    data.digest = digest_of(data);
    return data;
}

bool is_held_out(const Packing& packing, std::uint32_t document) {
    return static_cast<double>(draw(packing.seed, "held_out", document) >> 11) * 0x1p-53 <
           packing.held_out;
}

PackedTokens pack(const TokenData& data, Part part, const Packing& packing) {
    PackedTokens out;
    out.packing = packing;
    const std::size_t num_documents = data.document_ends.size();
    const Permutation order(derive(packing.seed, "document_order"), num_documents);
    for (std::size_t i = 0; i < num_documents; ++i) {
        const auto document = static_cast<std::uint32_t>(order(i));
        const auto domain = data.document_domains[document];
        if (is_held_out(packing, document) != (part == Part::held_out)) continue;
        if (packing.only_domain >= 0 && domain != packing.only_domain) continue;
        const auto begin = document_begin(data, document), end = data.document_ends[document];
        out.tokens.insert(out.tokens.end(),
                          data.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                          data.tokens.begin() + static_cast<std::ptrdiff_t>(end));
        out.documents.insert(out.documents.end(), end - begin, document);
        out.domains.insert(out.domains.end(), end - begin, domain);
        ++out.num_documents;
    }
    // One token more than the sequences hold: the last one's target.
    out.num_sequences = out.tokens.empty() ? 0
                                           : static_cast<std::int64_t>(out.tokens.size() - 1) /
                                                 packing.sequence_length;
    if (out.num_sequences < 1)
        throw InputError(
            "--data", part == Part::train ? "training text" : "held-out text",
            std::to_string(out.tokens.size()) + " tokens",
            "more than one sequence of " + std::to_string(packing.sequence_length) + " tokens");
    const auto kept = static_cast<std::size_t>(out.num_sequences * packing.sequence_length + 1);
    out.tokens.resize(kept);
    out.documents.resize(kept);
    out.domains.resize(kept);
    return out;
}

TokenBatch read_batch(const PackedTokens& packed, std::int64_t first, int count) {
    const auto length = static_cast<std::size_t>(packed.packing.sequence_length);
    TokenBatch batch;
    batch.num_sequences = count;
    batch.sequence_length = packed.packing.sequence_length;
    for (std::int64_t i = first; i < first + count; ++i) {
        const std::int64_t epoch = i / packed.num_sequences;
        auto sequence = static_cast<std::uint64_t>(i % packed.num_sequences);
        if (packed.packing.order == DocumentOrder::shuffled)
            sequence = Permutation(
                derive(packed.packing.seed, "sequence_order", static_cast<std::uint64_t>(epoch)),
                static_cast<std::uint64_t>(packed.num_sequences))(sequence);
        const std::size_t begin = sequence * length;
        const auto copy = [&](auto& to, const auto& from, std::size_t shift = 0) {
            to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(begin + shift),
                      from.begin() + static_cast<std::ptrdiff_t>(begin + shift + length));
        };
        copy(batch.tokens, packed.tokens);
        copy(batch.targets, packed.tokens, 1);
        copy(batch.documents, packed.documents);
        copy(batch.domains, packed.domains);
    }
    return batch;
}

TokenBatch read_micro_batch(const PackedTokens& packed, const BatchShape& shape, std::int64_t step,
                            int micro_batch, int rank) {
    const std::int64_t block = std::int64_t{1} * micro_batch * shape.num_ranks + rank;
    return read_batch(packed, step * shape.global_batch_size() + block * shape.micro_batch_size,
                      shape.micro_batch_size);
}

std::vector<DocumentSpan> document_spans(const TokenBatch& batch) {
    std::vector<DocumentSpan> spans;
    const auto num_tokens = static_cast<std::int32_t>(batch.tokens.size());
    for (std::int32_t i = 0; i < num_tokens; ++i) {
        const bool border = i % batch.sequence_length == 0 ||
                            batch.documents[i] != batch.documents[i - 1] ||
                            batch.tokens[i - 1] == kEndOfDocument;
        if (border) spans.push_back({i, i, batch.documents[i]});
        spans.back().end = i + 1;
    }
    return spans;
}

std::vector<DocumentSpan> router_spans(const TokenBatch& batch, EndTokenOf end_token) {
    if (end_token == EndTokenOf::its_document) return document_spans(batch);
    std::vector<DocumentSpan> spans;
    const auto num_tokens = static_cast<std::int32_t>(batch.tokens.size());
    for (std::int32_t i = 0; i < num_tokens; ++i) {
        if (i % batch.sequence_length == 0 || batch.tokens[i] == kEndOfDocument)
            spans.push_back({i, i, batch.documents[i]});
        spans.back().end = i + 1;
        // A span is named after the text in it, not after the end token that opens it.
        if (i == spans.back().begin + 1) spans.back().document = batch.documents[i];
    }
    return spans;
}

}  // namespace moeplan
