#pragma once
/// Max-min fair shares of links among flows, for very many of them: the fluid model's solver.
///
/// All flows rise together (by their weights) until a link is full; the flows on it stop there, the
/// others rise on. A flow's rate is so weight · min over its links of the level λ at which the link
/// was full. Only λ of a hundred links has to be found anew when one of ten thousand flows ends:
/// with W[k][o] the weight of the flows between links k and o, a link that fills at λ takes λ·W[k][o]
/// from every other one, a row of a matrix at a time. Links fill in nearly the order of the last
/// time, so the next one is looked for among the first few of that order; levels that then do not
/// ascend prove it wrong, and all are searched.
///
/// Flows that meet, directly or through others, are a *part*; parts know nothing of each other.

#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <span>
#include <vector>

namespace moeplan {

class FlowShares {
  public:
    /// @param capacity  [links] bytes a second
    explicit FlowShares(std::vector<double> capacity);

    /// Takes part from the next settle() on.
    /// @param links  each once, at least one
    void add(std::span<const std::uint32_t> links, double bytes, double weight,
             std::uint64_t owner);
    /// Rates of all that came, or that shared a link with what came or went, since the last call.
    void settle(double now);
    /// When the next flow finishes at the rates settled; infinity if none is active.
    double next_finish();
    /// Removes those that finish at `time` (within its rounding) and appends their owners, in order
    /// of their addition.
    void take_finished(double time, std::vector<std::uint64_t>& owners);

  private:
    struct Part {
        std::vector<std::uint32_t> links;  // of the graph
        // Flows, side by side; `ends` are indices of `links`, `stride` of them a flow, the last one
        // repeated where a flow has fewer.
        std::vector<double> left;  // bytes over weight: what λ alone eats
        std::vector<double> weight;
        std::vector<std::uint32_t> ends;
        std::vector<std::uint64_t> owner, order;
        std::size_t stride = 2;
        double since = 0;          // `left` is of then
        double next = std::numeric_limits<double>::infinity();
        std::vector<double> level;  // [links]; infinity: no flow stops there
        bool alive = true, dirty = false, changed = true;  // changed: flows or links came
        std::uint32_t version = 0;
        std::size_t removed = 0;  // since its connection was last looked at
        // Matrix form: weight between two links, [links, links]; columns first[k] … last[k] of a
        // row may be non-zero.
        bool dense = false;
        std::vector<double> between, total;
        std::vector<std::uint32_t> first, last;
        std::vector<std::uint32_t> sequence;  // links in the order in which they filled

        std::size_t num_flows() const { return left.size(); }
    };
    struct Due {
        double time;
        std::uint32_t part, version;
        bool operator>(const Due& other) const {
            return time != other.time ? time > other.time : part > other.part;
        }
    };

    static double lowest_level(const Part& part, const std::uint32_t* ends);
    std::uint32_t new_part(double now);
    void advance(Part& part, double now);
    std::uint32_t merged(std::uint32_t a, std::uint32_t b, double now);
    std::uint32_t local(std::uint32_t part, std::uint32_t link);
    void append(std::uint32_t part, std::span<const std::uint32_t> links, double left,
                double weight, std::uint64_t owner, std::uint64_t order);
    void drop(Part& part, std::size_t flow);
    void mark(std::uint32_t part);
    void split(std::uint32_t part, double now);
    void release(std::uint32_t part);
    void prepare(Part& part);
    void fill(Part& part);
    bool fill_by_rows(Part& part, std::size_t window);
    void fill_by_flows(Part& part);

    std::vector<double> capacity_;
    std::vector<std::uint32_t> part_of_, local_;  // [links]
    std::vector<Part> parts_;
    std::vector<std::uint32_t> free_, dirty_;
    std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
    std::uint64_t added_ = 0;
    struct Arrival {
        std::uint32_t first, count;
        double bytes, weight;
        std::uint64_t owner, order;
    };
    std::vector<Arrival> arrivals_;
    std::vector<std::uint32_t> arrival_links_;
    // Scratch, kept between calls.
    std::vector<double> left_, pressure_, inverse_;
    std::vector<std::uint32_t> sequence_, candidates_, finished_, users_, users_first_;
    std::vector<char> stopped_;
};

}  // namespace moeplan
