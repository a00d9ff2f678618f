#include "profiler/measure_stretches.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "profiler/measure.hpp"

namespace moeplan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostRanks = 64;
constexpr int kWindows = 201;  // drawn; odd, so that the median is one of them

std::vector<std::vector<double>> of_all_ranks(const Communicator& ranks,
                                              const std::vector<double>& mine) {
    if (ranks.size() == 1) return {mine};
    std::vector<char> bytes(mine.size() * sizeof(double));
    std::memcpy(bytes.data(), mine.data(), bytes.size());
    std::vector<std::int64_t> sizes;
    const std::vector<char> all = ranks.gather_bytes(bytes, 0, &sizes);
    std::vector<std::vector<double>> out;
    if (ranks.rank() != 0) return out;
    const char* at = all.data();
    for (const std::int64_t size : sizes) {
        auto& series = out.emplace_back(static_cast<std::size_t>(size) / sizeof(double));
        std::memcpy(series.data(), at, static_cast<std::size_t>(size));
        at += size;
    }
    return out;
}

/// The same without what slowed all ranks alike: in each part as long as a window, the mean over the
/// ranks of their median pieces becomes that of the whole series. Such spells make steps longer, but
/// nobody waits in them, and ranks are drawn from different times.
std::vector<std::vector<double>> evened(std::vector<std::vector<double>> pieces,
                                        std::size_t in_window, std::size_t shortest, double piece) {
    for (std::size_t first = 0; first < shortest; first += in_window) {
        double local = 0;
        for (const auto& series : pieces)
            local += summarise({series.begin() + static_cast<std::ptrdiff_t>(first),
                                series.begin() + static_cast<std::ptrdiff_t>(
                                                     std::min(first + in_window, shortest))})
                         .median.value;
        const double scale = piece * static_cast<double>(pieces.size()) / local;
        for (auto& series : pieces) {
            // what one rank has beyond the shortest series goes with the last part
            const bool last = first + in_window >= shortest;
            const std::size_t end = last ? series.size() : first + in_window;
            for (std::size_t i = first; i < end; ++i) series[i] *= scale;
        }
    }
    return pieces;
}

/// Ends of the pieces of one rank: a stretch is a difference.
std::vector<double> ends_of(const std::vector<double>& pieces) {
    std::vector<double> out(1, 0.0);
    for (const double piece : pieces) out.push_back(out.back() + piece);
    return out;
}

/// Seconds of `count` stretches of `length` pieces, each on the slowest of `num_ranks` ranks.
/// @param first  whose series the first of them has
double window_of(const std::vector<std::vector<double>>& ends, int num_ranks, std::size_t length,
                 std::size_t count, std::size_t first, Seed seed) {
    std::vector<const double*> ranks;
    for (int r = 0; r < num_ranks; ++r) {
        const auto& series = ends[(first + static_cast<std::size_t>(r)) % ends.size()];
        const std::size_t places = series.size() - length * count;
        ranks.push_back(series.data() +
                        draw(seed, "place", static_cast<std::uint64_t>(r)) % places);
    }
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
        double slowest = 0;
        for (const double* end : ranks)
            slowest = std::max(slowest, end[(i + 1) * length] - end[i * length]);
        sum += slowest;
    }
    return sum;
}

/// Median of all stretches of this length on one rank, in the mean over the ranks.
double typical(const std::vector<std::vector<double>>& ends, std::size_t length) {
    double sum = 0;
    for (const auto& series : ends) {
        std::vector<double> stretches;
        for (std::size_t i = length; i < series.size(); ++i)
            stretches.push_back(series[i] - series[i - length]);
        sum += summarise(std::move(stretches)).median.value;
    }
    return sum / static_cast<double>(ends.size());
}

}  // namespace

StretchCurve stretches_of(const std::vector<std::vector<double>>& pieces, Seconds window,
                          Seed seed) {
    StretchCurve out{"measured on this machine, all ranks at once, see conditions",
                     window,
                     {"num_ranks", "stretch_s", "slowest", "typical"},
                     {}};
    std::size_t shortest = pieces.empty() ? 0 : pieces.front().size();
    for (const auto& series : pieces) shortest = std::min(shortest, series.size());
    if (shortest == 0) return out;
    std::vector<std::vector<double>> ends;
    for (const auto& series : pieces) ends.push_back(ends_of(series));
    const double piece = typical(ends, 1);
    const auto in_window =
        std::max<std::size_t>(1, static_cast<std::size_t>(std::llround(window.value / piece)));
    ends.clear();
    for (const auto& series : evened(pieces, in_window, shortest, piece))
        ends.push_back(ends_of(series));
    for (std::size_t length = 1; length <= in_window && length <= shortest; length *= 2) {
        const std::size_t count = std::max<std::size_t>(1, std::min(in_window, shortest) / length);
        const double undisturbed = piece * static_cast<double>(length);
        const double of_one = typical(ends, length) / undisturbed;
        for (int ranks = 1; ranks <= kMostRanks; ranks *= 2) {
            std::vector<double> windows;
            for (std::uint64_t w = 0; w < kWindows; ++w)
                windows.push_back(window_of(ends, ranks, length, count, static_cast<std::size_t>(w),
                                            derive(seed, "window", w)));
            const double slowest = summarise(std::move(windows)).median.value /
                                   (undisturbed * static_cast<double>(count));
            out.rows.push_back({static_cast<double>(ranks), undisturbed, slowest, of_one});
        }
    }
    return out;
}

StretchTimer::StretchTimer(const Backend& backend, const Communicator& ranks, Seed seed)
    : ranks_(ranks), seed_(seed), pace_(backend, ranks, seed) {
    pieces_.reserve(std::size_t{1} << 16);  // what grows would count as a disturbance
}

void StretchTimer::go_on(Seconds time) {
    if (ranks_.size() > 1) ranks_.barrier();
    const auto begin = Clock::now();
    for (auto last = begin; last - begin < std::chrono::duration<double>(time.value);) {
        pace_.piece();
        const auto now = Clock::now();
        pieces_.push_back(std::chrono::duration<double>(now - last).count());
        last = now;
    }
}

StretchCurve StretchTimer::curve(Seconds window) const {
    return stretches_of(of_all_ranks(ranks_, pieces_), window, seed_);
}

}  // namespace moeplan
