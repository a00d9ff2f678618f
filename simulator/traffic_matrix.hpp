#pragma once
/// Bytes that each rank of a group sends to each other one.

#include <cstddef>
#include <vector>

#include "core/units.hpp"

namespace moeplan {

struct TrafficMatrix {
    int num_ranks = 0;
    std::vector<Bytes>
        sent;  ///< [source, destination]; the diagonal stays on its GPU and crosses no link

    explicit TrafficMatrix(int ranks = 0)
        : num_ranks(ranks),
          sent(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)) {}
    Bytes& at(int source, int destination) {
        return sent[static_cast<std::size_t>(source) * static_cast<std::size_t>(num_ranks) +
                    static_cast<std::size_t>(destination)];
    }
    Bytes at(int source, int destination) const {
        return sent[static_cast<std::size_t>(source) * static_cast<std::size_t>(num_ranks) +
                    static_cast<std::size_t>(destination)];
    }
    bool operator==(const TrafficMatrix&) const = default;
};

/// The way back: combine returns what dispatch sent.
inline TrafficMatrix transposed(const TrafficMatrix& traffic) {
    TrafficMatrix out(traffic.num_ranks);
    for (int a = 0; a < traffic.num_ranks; ++a)
        for (int b = 0; b < traffic.num_ranks; ++b) out.at(b, a) = traffic.at(a, b);
    return out;
}

}  // namespace moeplan
