#pragma once
/// Documents inside the tokens of a micro-batch.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "traces/routing_trace.hpp"

namespace moeplan {

/// Tokens [begin, end) of one document in one sequence. A document cut by a sequence's end goes on
/// as another piece.
struct DocumentPiece {
    std::size_t begin = 0, end = 0;
    std::uint32_t document = 0;
    bool operator==(const DocumentPiece&) const = default;
};

/// @param sequence_length  0: not known, sequences are then not told apart
std::vector<DocumentPiece> document_pieces(const RoutedTokens&, int sequence_length);

}  // namespace moeplan
