/// Launched under mpirun by a test: exchanges whose result every rank can say beforehand. Prints
/// "ok" on rank 0.

#include <cstdio>
#include <numeric>

#include "kernels/communicator.hpp"

int main() {
    using namespace moeplan;
    Communicator world = world_communicator();
    const int rank = world.rank(), size = world.size();
    bool good = true;
    // Rank r sends r · s bytes of value 16 r + s to rank s: rank 0 sends nothing at all, and nobody
    // sends to rank 0.
    std::vector<std::int64_t> sent, received;
    std::vector<std::uint8_t> from;
    for (int s = 0; s < size; ++s) {
        sent.push_back(rank * s);
        received.push_back(s * rank);
        from.insert(from.end(), std::size_t(rank * s), std::uint8_t(16 * rank + s));
    }
    std::vector<std::uint8_t> to(
        std::size_t(std::accumulate(received.begin(), received.end(), std::int64_t{0})) + 1, 255);
    world.all_to_all_v(from.data(), sent, to.data(), received);
    std::size_t at = 0;
    for (int s = 0; s < size; ++s)
        for (int i = 0; i < s * rank; ++i) good = good && to[at++] == 16 * s + rank;
    good = good && to[at] == 255;

    // Σ r = n (n − 1) / 2; the largest is n − 1.
    good = good && world.all_reduce_sum(rank) == size * (size - 1) / 2.0 &&
           world.all_reduce_max(rank) == size - 1;
    std::vector<std::int64_t> sizes;
    const std::vector<char> all =
        world.gather_bytes(std::vector<char>(std::size_t(rank + 1), char('a' + rank)), 0, &sizes);
    if (rank == 0) {
        std::string expected;
        for (int s = 0; s < size; ++s) expected += std::string(std::size_t(s + 1), char('a' + s));
        good = good && std::string(all.begin(), all.end()) == expected;
    }
    std::vector<double> blocks(std::size_t(size), 1.0 + rank);
    double mine = 0;
    world.reduce_scatter(blocks.data(), &mine, 1, NumberFormat::f64);
    good = good && mine == size * (size + 1) / 2.0;
    const Communicator parity = world.split(rank % 2, rank);
    good = good && parity.size() == (size + 1 - rank % 2) / 2 && parity.rank() == rank / 2;
    int told = rank == size - 1 ? 42 : 0;
    world.broadcast(&told, sizeof told, size - 1);
    good = good && told == 42;
    good = world.all_reduce_max(good ? 0 : 1) == 0;
    if (rank == 0) std::puts(good ? "ok" : "wrong");
    return good ? 0 : 1;
}
