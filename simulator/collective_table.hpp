#pragma once
/// A collective over sizes, as nccl-tests prints it.

#include <string>
#include <vector>

#include "core/json.hpp"
#include "simulator/collective.hpp"
#include "simulator/step.hpp"

namespace moeplan {

struct CollectiveRow {
    Bytes bytes;
    Seconds time;
    BytesPerSecond algorithm_bandwidth, bus_bandwidth;   ///< S/t, and times bus_factor
    std::string algorithm;
};
struct CollectiveTable {
    Collective collective = Collective::all_reduce;
    Fidelity fidelity = Fidelity::closed_form;
    std::string engine;                    ///< closed_form, fluid or simgrid
    int num_ranks = 0;
    std::vector<CollectiveRow> rows;
};

/// What is sent in an all-to-all: "uniform", "zipf:S", or a file of n×n numbers (bytes; JSON [[…]] or lines of numbers).
struct MatrixWord {
    std::string word = "uniform";
};
/// @param bytes  what a rank sends on average; empty: the file's own bytes. @throws InputError
TrafficMatrix traffic_of(const MatrixWord& matrix, int num_ranks, std::optional<Bytes> bytes);

/// @param sizes  empty: one row, of the matrix file's own bytes
/// Flow fidelity uses SimGrid up to 256 ranks and the fluid solver, which equals it, above.
CollectiveTable collective_table(const LinkGraph& graph, Collective collective, Algorithm algorithm,
                                 const std::vector<int>& group, const std::vector<Bytes>& sizes,
                                 const MatrixWord& matrix, Fidelity fidelity, const Profile* profile);
Json to_json(const CollectiveTable& table);

/// "8G", "1KiB,1MiB", "8..1G" (doubling), "1K..1G*4": powers of two for K, M, G, as nccl-tests reads them. @throws InputError
std::vector<Bytes> read_sizes(const std::string& words);

}  // namespace moeplan
