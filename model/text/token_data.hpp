#pragma once
/// Token ids of a corpus, packed into sequences of equal length: what the trainer reads.
///
/// Every document is followed by one end-of-document token, which belongs to the document it ends.
/// Documents are laid end to end in a seeded order and cut at the sequence length; a document cut
/// by that border goes on in another sequence, where it counts as a document of its own (its own
/// attention, its own pool).

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/enum_names.hpp"
#include "core/seed.hpp"

namespace moeplan {

inline constexpr std::uint16_t kEndOfDocument =
    0;  ///< token id that ends every document, in every vocabulary of ours

/// All tokens of a corpus, in the order of its documents.
struct TokenData {
    int vocab_size = 0;
    std::vector<std::uint16_t> tokens;  ///< [num_tokens], each document with its end token
    std::vector<std::uint64_t>
        document_ends;  ///< [num_documents]; one past the document's end token, rising
    std::vector<std::uint16_t> document_domains;  ///< [num_documents]; index into `domains`
    std::vector<std::string> domains;             ///< [num_domains]
    std::string digest;  ///< of the ids, ends and domains; goes into reports
    bool operator==(const TokenData&) const = default;
};

/// The tokens file of `--tokens` (docs/corpus.md): ids, document ends and domains in one
/// little-endian file.
/// @throws InputError for a file that is none, is cut short, or holds ids at or above its
/// vocabulary size
TokenData read_tokens(const std::filesystem::path& file);
void write_tokens(const std::filesystem::path& file, const TokenData&);
std::string digest_of(const TokenData&);  ///< what `digest` should be

enum class DocumentOrder : std::uint8_t {
    shuffled,    ///< sequences shuffled: pieces of one document lie far apart
    consecutive  ///< pieces of a long document follow each other
};
template <>
const EnumNames<DocumentOrder>& enum_names<DocumentOrder>();

enum class Part : std::uint8_t { train, held_out };

struct Packing {
    int sequence_length = 512;
    DocumentOrder order = DocumentOrder::shuffled;
    double held_out =
        0.05;  ///< share of documents that are never trained on, drawn document by document
    Seed seed;
    int only_domain = -1;  ///< index into `domains`; −1: all
};

/// Some sequences, ready for a forward pass.
struct TokenBatch {
    int num_sequences = 0, sequence_length = 0;
    std::vector<std::uint16_t> tokens;   ///< [num_sequences, sequence_length]
    std::vector<std::uint16_t> targets;  ///< likewise; the token that follows (behind an end token:
                                         ///< the next document's first)
    std::vector<std::uint32_t> documents;  ///< likewise; index of the document in `TokenData`
    std::vector<std::uint16_t> domains;    ///< likewise
};

/// One part of the corpus as a sequence of sequences. Shares nothing that changes: any thread may
/// read it.
struct PackedTokens {
    Packing packing;
    std::vector<std::uint16_t> tokens;     ///< [num_sequences · sequence_length + 1]
    std::vector<std::uint32_t> documents;  ///< likewise
    std::vector<std::uint16_t> domains;    ///< likewise
    std::int64_t num_sequences = 0;
    std::int64_t num_documents = 0;
};

/// @throws InputError if that part of the corpus does not fill one sequence
PackedTokens pack(const TokenData&, Part, const Packing&);

/// True for documents that are held out. Depends on the seed and the document's index alone.
bool is_held_out(const Packing&, std::uint32_t document);

/// Sequences `first` … `first + count − 1` of an endless reading: every epoch is a new order, drawn
/// from the seed
/// (`consecutive`: always the same).
TokenBatch read_batch(const PackedTokens&, std::int64_t first, int count);

/// Who reads which sequences of a step.
struct BatchShape {
    int micro_batch_size = 1, num_micro_batches = 1, num_ranks = 1;  ///< data-parallel ranks
    std::int64_t global_batch_size() const {
        return std::int64_t{1} * micro_batch_size * num_micro_batches * num_ranks;
    }
};

/// The sequences of one rank's micro-batch. A micro-batch of all ranks is contiguous in reading
/// order, so that the same global batch is read whatever the number of ranks.
TokenBatch read_micro_batch(const PackedTokens&, const BatchShape&, std::int64_t step,
                            int micro_batch, int rank);

/// Documents inside a batch as spans of tokens [begin, end), in order; a document never crosses its
/// sequence's border.
struct DocumentSpan {
    std::int32_t begin = 0, end = 0;  ///< positions in the flat [num_sequences · sequence_length]
    std::uint32_t document = 0;
    bool operator==(const DocumentSpan&) const = default;
};
std::vector<DocumentSpan> document_spans(const TokenBatch&);

/// To which span the end token counts. Attention counts it as the last of its document; the
/// published EMO code finds the router's documents by the positions of end tokens and so counts it
/// as the first of the next (OLMo-core fork, `transformer/model.py`). An end token at the very
/// begin of a sequence opens its first span.
enum class EndTokenOf : std::uint8_t { its_document, next_document };
std::vector<DocumentSpan> router_spans(const TokenBatch&, EndTokenOf);

}  // namespace moeplan
