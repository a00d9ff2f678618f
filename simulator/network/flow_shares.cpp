#include "simulator/network/flow_shares.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>
#include <utility>

namespace moeplan {
namespace {

constexpr std::uint32_t kNone = 0xFFFFFFFF;
constexpr double kNever = std::numeric_limits<double>::infinity();
/// Shares that differ by rounding alone are one bottleneck, completions that do are one event.
constexpr double kSame = 1e-13;
/// Keeps rates above zero where rounding ate a link's last share.
constexpr double kLeast = 1e-30;
/// Weight that is rounding of sums, against a link's whole weight.
constexpr double kNothing = 1e-9;
/// Levels may descend by this much before an order of filling counts as wrong.
constexpr double kDescent = 1e-11;
/// How far beyond the last order of filling the next link is looked for.
constexpr std::size_t kWindow = 16;

/// A matrix pays where most pairs of links have flows, and where there are few links.
bool worth_a_matrix(std::size_t links, std::size_t flows) {
    return links <= 64 || (links <= 2048 && links * links <= 16 * flows);
}

}  // namespace

FlowShares::FlowShares(std::vector<double> capacity)
    : capacity_(std::move(capacity)),
      part_of_(capacity_.size(), kNone),
      local_(capacity_.size(), kNone) {}

void FlowShares::add(std::span<const std::uint32_t> links, double bytes, double weight,
                     std::uint64_t owner) {
    assert(!links.empty() && bytes > 0 && weight > 0);
    arrivals_.push_back({static_cast<std::uint32_t>(arrival_links_.size()),
                         static_cast<std::uint32_t>(links.size()), bytes, weight, owner, added_++});
    arrival_links_.insert(arrival_links_.end(), links.begin(), links.end());
}

// ------------------------------------------------------------------------------------------------
// parts

/// λ of a flow: of the link where it stops.
double FlowShares::lowest_level(const Part& part, const std::uint32_t* ends) {
    double lowest = std::min(part.level[ends[0]], part.level[ends[1]]);
    for (std::size_t e = 2; e < part.stride; ++e) lowest = std::min(lowest, part.level[ends[e]]);
    return lowest;
}

std::uint32_t FlowShares::new_part(double now) {
    std::uint32_t id;
    if (free_.empty()) {
        id = static_cast<std::uint32_t>(parts_.size());
        parts_.emplace_back();
    } else {
        id = free_.back();
        free_.pop_back();
        const std::uint32_t version = parts_[id].version;
        parts_[id] = Part{};
        parts_[id].version = version + 1;
    }
    parts_[id].since = now;
    return id;
}

void FlowShares::mark(std::uint32_t part) {
    if (parts_[part].dirty) return;
    parts_[part].dirty = true;
    dirty_.push_back(part);
}

void FlowShares::release(std::uint32_t part) {
    for (const auto link : parts_[part].links)
        if (part_of_[link] == part) part_of_[link] = local_[link] = kNone;
    const std::uint32_t version = parts_[part].version;
    parts_[part] = Part{};
    parts_[part].version = version + 1;
    parts_[part].alive = false;
    free_.push_back(part);
}

std::uint32_t FlowShares::local(std::uint32_t part, std::uint32_t link) {
    if (part_of_[link] != part) {
        part_of_[link] = part;
        local_[link] = static_cast<std::uint32_t>(parts_[part].links.size());
        parts_[part].links.push_back(link);
    }
    return local_[link];
}

void FlowShares::append(std::uint32_t id, std::span<const std::uint32_t> links, double left,
                        double weight, std::uint64_t owner, std::uint64_t order) {
    Part& part = parts_[id];
    if (links.size() > part.stride) {
        const std::size_t wider = links.size();
        std::vector<std::uint32_t> ends;
        ends.reserve(part.num_flows() * wider);
        for (std::size_t f = 0; f < part.num_flows(); ++f)
            for (std::size_t e = 0; e < wider; ++e)
                ends.push_back(part.ends[f * part.stride + std::min(e, part.stride - 1)]);
        part.ends = std::move(ends);
        part.stride = wider;
    }
    for (std::size_t e = 0; e < part.stride; ++e)
        part.ends.push_back(local(id, links[std::min(e, links.size() - 1)]));
    part.left.push_back(left);
    part.weight.push_back(weight);
    part.owner.push_back(owner);
    part.order.push_back(order);
    part.changed = true;
}

void FlowShares::drop(Part& part, std::size_t flow) {
    const std::size_t last = part.num_flows() - 1, stride = part.stride;
    if (part.dense) {
        const std::size_t n = part.links.size(), a = part.ends[flow * stride],
                          b = part.ends[flow * stride + 1];
        part.between[a * n + b] -= part.weight[flow];
        part.total[a] -= part.weight[flow];
        if (a != b) {
            part.between[b * n + a] -= part.weight[flow];
            part.total[b] -= part.weight[flow];
        }
    }
    part.left[flow] = part.left[last];
    part.weight[flow] = part.weight[last];
    part.owner[flow] = part.owner[last];
    part.order[flow] = part.order[last];
    for (std::size_t e = 0; e < stride; ++e)
        part.ends[flow * stride + e] = part.ends[last * stride + e];
    part.left.pop_back();
    part.weight.pop_back();
    part.owner.pop_back();
    part.order.pop_back();
    part.ends.resize(last * stride);
    ++part.removed;
}

void FlowShares::advance(Part& part, double now) {
    const double passed = now - part.since;
    part.since = now;
    if (!(passed > 0) || part.level.empty()) return;
    const std::uint32_t* ends = part.ends.data();
    for (std::size_t f = 0; f < part.num_flows(); ++f, ends += part.stride)
        part.left[f] = std::max(0.0, part.left[f] - lowest_level(part, ends) * passed);
}

std::uint32_t FlowShares::merged(std::uint32_t a, std::uint32_t b, double now) {
    if (parts_[a].num_flows() < parts_[b].num_flows()) std::swap(a, b);
    advance(parts_[a], now);
    advance(parts_[b], now);
    const Part other = std::move(parts_[b]);
    parts_[b] = Part{};
    parts_[b].version = other.version;
    for (const auto link : other.links) part_of_[link] = local_[link] = kNone;
    for (const auto link : other.links) local(a, link);
    std::vector<std::uint32_t> links;
    for (std::size_t f = 0; f < other.num_flows(); ++f) {
        links.clear();
        for (std::size_t e = 0; e < other.stride; ++e) {
            const auto link = other.links[other.ends[f * other.stride + e]];
            if (links.empty() || links.back() != link) links.push_back(link);
        }
        append(a, links, other.left[f], other.weight[f], other.owner[f], other.order[f]);
    }
    parts_[a].removed += other.removed;
    const bool was_dirty = other.dirty;
    release(b);
    if (was_dirty) std::erase(dirty_, b);
    parts_[a].changed = true;
    return a;
}

/// Flows that no longer meet go their own ways.
void FlowShares::split(std::uint32_t id, double now) {
    parts_[id].removed = 0;
    std::vector<std::uint32_t> root(parts_[id].links.size());
    std::iota(root.begin(), root.end(), 0u);
    const auto find = [&](std::uint32_t link) {
        while (root[link] != link) link = root[link] = root[root[link]];
        return link;
    };
    const std::size_t stride = parts_[id].stride;
    {
        const auto& ends = parts_[id].ends;
        for (std::size_t f = 0; f < parts_[id].num_flows(); ++f)
            for (std::size_t e = 1; e < stride; ++e) {
                const auto a = find(ends[f * stride]), b = find(ends[f * stride + e]);
                if (a != b) root[std::max(a, b)] = std::min(a, b);
            }
        bool one = true;
        std::size_t used = 0;
        std::vector<char> seen(root.size(), 0);
        for (const auto end : ends) {
            one = one && find(end) == find(ends.front());
            used += !seen[end];
            seen[end] = 1;
        }
        if (one && used == root.size()) return;
    }
    advance(parts_[id], now);
    const Part whole = std::move(parts_[id]);
    parts_[id] = Part{};
    parts_[id].version = whole.version;
    for (const auto link : whole.links) part_of_[link] = local_[link] = kNone;
    release(id);
    std::vector<std::uint32_t> part(whole.links.size(), kNone), links;
    for (std::size_t f = 0; f < whole.num_flows(); ++f) {
        auto& here = part[find(whole.ends[f * stride])];
        if (here == kNone) {
            here = new_part(now);
            mark(here);
        }
        links.clear();
        for (std::size_t e = 0; e < stride; ++e) {
            const auto link = whole.links[whole.ends[f * stride + e]];
            if (links.empty() || links.back() != link) links.push_back(link);
        }
        append(here, links, whole.left[f], whole.weight[f], whole.owner[f], whole.order[f]);
    }
}

// ------------------------------------------------------------------------------------------------
// shares

/// The matrix of a part whose flows or links are new: links in two rows that only meet each other,
/// where that is so (senders' ports and receivers'), so that half of every row is left out.
void FlowShares::prepare(Part& part) {
    part.changed = false;
    part.dense = part.stride == 2 && worth_a_matrix(part.links.size(), part.num_flows());
    part.level.assign(part.links.size(), kNever);
    if (!part.dense) {
        part.between.clear();
        return;
    }
    const std::size_t n = part.links.size();
    // Side 0: links that are some flow's first and no flow's second.
    std::vector<std::uint32_t> place(n), order(n);
    std::vector<char> second(n, 0);
    for (std::size_t f = 0; f < part.num_flows(); ++f) second[part.ends[2 * f + 1]] = 1;
    std::iota(order.begin(), order.end(), 0u);
    std::stable_partition(order.begin(), order.end(), [&](std::uint32_t k) { return !second[k]; });
    std::vector<std::uint32_t> links(n);
    for (std::size_t i = 0; i < n; ++i) {
        place[order[i]] = static_cast<std::uint32_t>(i);
        links[i] = part.links[order[i]];
        local_[links[i]] = static_cast<std::uint32_t>(i);
    }
    part.links = std::move(links);
    for (auto& end : part.ends) end = place[end];
    part.between.assign(n * n, 0);
    part.total.assign(n, 0);
    part.first.assign(n, static_cast<std::uint32_t>(n));
    part.last.assign(n, 0);
    for (std::size_t f = 0; f < part.num_flows(); ++f) {
        const std::uint32_t a = part.ends[2 * f], b = part.ends[2 * f + 1];
        const auto join = [&](std::uint32_t k, std::uint32_t o) {
            part.between[k * n + o] += part.weight[f];
            part.total[k] += part.weight[f];
            part.first[k] = std::min(part.first[k], o);
            part.last[k] = std::max(part.last[k], o + 1);
        };
        join(a, b);
        if (a != b) join(b, a);
    }
    // The first order of filling: by each link's fair share if it were alone.
    part.sequence.resize(n);
    std::iota(part.sequence.begin(), part.sequence.end(), 0u);
    std::stable_sort(part.sequence.begin(), part.sequence.end(), [&](auto a, auto b) {
        return capacity_[part.links[a]] * part.total[b] < capacity_[part.links[b]] * part.total[a];
    });
}

/// @return false if links did not fill in ascending order: the window was too narrow
bool FlowShares::fill_by_rows(Part& part, std::size_t window) {
    const std::size_t n = part.links.size();
    left_.resize(n);
    pressure_ = part.total;
    for (std::size_t k = 0; k < n; ++k) left_[k] = capacity_[part.links[k]];
    std::fill(part.level.begin(), part.level.end(), kNever);
    double *left = left_.data(), *pressure = pressure_.data();
    double last = 0;
    std::size_t next = 0;
    sequence_.clear();
    candidates_.clear();
    while (true) {
        while (candidates_.size() < window && next < n)
            candidates_.push_back(part.sequence[next++]);
        if (candidates_.empty()) break;
        std::size_t best = kNone;
        double lowest = kNever;
        for (std::size_t i = 0; i < candidates_.size();) {
            const std::uint32_t k = candidates_[i];
            if (pressure[k] <= kNothing * part.total[k]) {  // none of its flows still rises
                sequence_.push_back(k);
                candidates_[i] = candidates_.back();
                candidates_.pop_back();
                continue;
            }
            const double level = left[k] / pressure[k];
            if (level < lowest) lowest = level, best = i;
            ++i;
        }
        if (best == kNone) continue;
        if (lowest < last * (1 - kDescent) && window < n) return false;
        last = std::max({lowest, last, kLeast});
        const std::uint32_t k = candidates_[best];
        candidates_[best] = candidates_.back();
        candidates_.pop_back();
        sequence_.push_back(k);
        part.level[k] = last;
        pressure[k] = 0;
        const double* row = part.between.data() + k * n;
        for (std::size_t o = part.first[k]; o < part.last[k]; ++o) {
            left[o] -= last * row[o];
            pressure[o] -= row[o];
        }
    }
    part.sequence.swap(sequence_);
    return true;
}

/// The same flow by flow, for those that use more links than two, or few of many.
void FlowShares::fill_by_flows(Part& part) {
    const std::size_t n = part.links.size(), flows = part.num_flows(), stride = part.stride;
    const auto each_end = [&](std::size_t flow, auto&& visit) {
        for (std::size_t e = 0; e < stride; ++e) {
            const std::uint32_t k = part.ends[flow * stride + e];
            if (e > 0 && part.ends[flow * stride + e - 1] == k) break;  // padding
            visit(k);
        }
    };
    users_first_.assign(n + 1, 0);
    left_.resize(n);
    pressure_.assign(n, 0);
    for (std::size_t k = 0; k < n; ++k) left_[k] = capacity_[part.links[k]];
    for (std::size_t f = 0; f < flows; ++f)
        each_end(f, [&](std::uint32_t k) {
            ++users_first_[k + 1];
            pressure_[k] += part.weight[f];
        });
    for (std::size_t k = 0; k < n; ++k) users_first_[k + 1] += users_first_[k];
    users_.resize(users_first_[n]);
    sequence_.assign(users_first_.begin(), users_first_.end() - 1);
    for (std::size_t f = 0; f < flows; ++f)
        each_end(f,
                 [&](std::uint32_t k) { users_[sequence_[k]++] = static_cast<std::uint32_t>(f); });
    std::fill(part.level.begin(), part.level.end(), kNever);
    stopped_.assign(flows, 0);
    std::vector<std::uint32_t> waiting(n), open;
    for (std::uint32_t k = 0; k < n; ++k) {
        waiting[k] = users_first_[k + 1] - users_first_[k];
        if (waiting[k] > 0) open.push_back(k);
    }
    while (!open.empty()) {
        double level = kNever;
        for (const auto k : open) level = std::min(level, left_[k] / pressure_[k]);
        level = std::max(level, kLeast);
        for (const auto k : open) {
            if (waiting[k] == 0 || left_[k] > pressure_[k] * level * (1 + kSame)) continue;
            part.level[k] = level;
            for (std::uint32_t u = users_first_[k]; u < users_first_[k + 1]; ++u) {
                const std::uint32_t f = users_[u];
                if (stopped_[f]) continue;
                stopped_[f] = 1;
                each_end(f, [&](std::uint32_t o) {
                    left_[o] = std::max(0.0, left_[o] - level * part.weight[f]);
                    pressure_[o] = std::max(kLeast, pressure_[o] - part.weight[f]);
                    --waiting[o];
                });
            }
        }
        std::erase_if(open, [&](std::uint32_t k) { return waiting[k] == 0; });
    }
}

void FlowShares::fill(Part& part) {
    if (!part.dense)
        fill_by_flows(part);
    else if (!fill_by_rows(part, kWindow))
        fill_by_rows(part, part.links.size());

    // The time to the next end: products alone, with 1/λ of each link.
    const std::size_t n = part.links.size(), stride = part.stride;
    inverse_.resize(n);
    for (std::size_t k = 0; k < n; ++k) inverse_[k] = 1 / part.level[k];
    const double* inverse = inverse_.data();
    const std::uint32_t* ends = part.ends.data();
    double soonest = kNever;
    std::size_t first = 0;
    for (std::size_t f = 0; f < part.num_flows(); ++f, ends += stride) {
        double slowest = std::max(inverse[ends[0]], inverse[ends[1]]);
        for (std::size_t e = 2; e < stride; ++e) slowest = std::max(slowest, inverse[ends[e]]);
        const double lasts = part.left[f] * slowest;
        if (lasts < soonest) soonest = lasts, first = f;
    }
    assert(std::isfinite(soonest));
    part.next = part.since + part.left[first] / lowest_level(part, &part.ends[first * stride]);
}

// ------------------------------------------------------------------------------------------------
// time

void FlowShares::settle(double now) {
    for (const Arrival& flow : arrivals_) {
        const std::span<const std::uint32_t> links(arrival_links_.data() + flow.first, flow.count);
        std::uint32_t here = kNone;
        for (const auto link : links)
            if (const auto part = part_of_[link]; part != kNone)
                here = here == kNone || here == part ? part : merged(here, part, now);
        if (here == kNone)
            here = new_part(now);
        else
            advance(parts_[here], now);
        append(here, links, flow.bytes / flow.weight, flow.weight, flow.owner, flow.order);
        mark(here);
    }
    arrivals_.clear();
    arrival_links_.clear();
    for (std::size_t i = 0; i < dirty_.size(); ++i) {
        const std::uint32_t id = dirty_[i];
        if (!parts_[id].alive || !parts_[id].dirty) continue;
        if (parts_[id].num_flows() == 0) {
            release(id);
            continue;
        }
        if (parts_[id].removed > 0 &&
            (parts_[id].changed || 4 * parts_[id].removed > parts_[id].num_flows()))
            split(id, now);  // its pieces are marked, and come at the end of dirty_
        Part& part = parts_[id];
        if (!part.alive || !part.dirty) continue;
        part.dirty = false;
        advance(part, now);
        if (part.changed) prepare(part);
        fill(part);
        due_.push({part.next, id, ++part.version});
    }
    dirty_.clear();
}

double FlowShares::next_finish() {
    while (!due_.empty() && (!parts_[due_.top().part].alive ||
                             parts_[due_.top().part].version != due_.top().version))
        due_.pop();
    return due_.empty() ? kNever : due_.top().time;
}

void FlowShares::take_finished(double time, std::vector<std::uint64_t>& owners) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> done;  // order, owner
    while (true) {
        const double next = next_finish();
        if (due_.empty()) break;
        const std::uint32_t id = due_.top().part;
        Part& part = parts_[id];
        const double grain = kSame * std::max(std::abs(time), next - part.since);
        if (next > time + grain) break;
        due_.pop();
        const double passed = time - part.since, until = passed + grain;
        finished_.clear();
        const std::uint32_t* ends = part.ends.data();
        for (std::size_t f = 0; f < part.num_flows(); ++f, ends += part.stride) {
            const double rate = lowest_level(part, ends);
            if (part.left[f] <= rate * until)
                finished_.push_back(static_cast<std::uint32_t>(f));
            else
                part.left[f] -= rate * passed;
        }
        part.since = time;
        for (auto f = finished_.rbegin(); f != finished_.rend(); ++f) {
            done.emplace_back(part.order[*f], part.owner[*f]);
            drop(part, *f);
        }
        mark(id);
    }
    std::sort(done.begin(), done.end());
    for (const auto& [order, owner] : done) owners.push_back(owner);
}

}  // namespace moeplan
