#include "simulator/network/shared_links.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace moeplan {
namespace {

/// Shares that differ by rounding alone are one bottleneck, completions that do are one event.
constexpr double kSame = 1e-13;
/// Keeps rates above zero where rounding ate a link's last share.
constexpr double kLeast = 1e-30;

}  // namespace

SharedLinks::SharedLinks(std::size_t num_links)
    : on_link_(num_links),
      left_(num_links),
      pressure_(num_links),
      waiting_(num_links),
      link_seen_(num_links) {}

std::uint32_t SharedLinks::add(const std::vector<Use>& uses, double amount, double weight,
                               std::uint64_t owner) {
    assert(!uses.empty() && amount > 0 && weight > 0);
    std::uint32_t id;
    if (free_.empty()) {
        id = static_cast<std::uint32_t>(entities_.size());
        entities_.emplace_back();
        entity_seen_.push_back(0);
    } else {
        id = free_.back();
        free_.pop_back();
    }
    Entity& entity = entities_[id];
    entity.uses = uses;
    entity.remaining = amount;
    entity.weight = weight;
    entity.rate = 0;
    entity.owner = owner;
    entity.order = added_++;
    entity.place = static_cast<std::uint32_t>(active_.size());
    active_.push_back(id);
    for (const Use& use : uses) {
        on_link_[use.link].push_back(id);
        dirty_.push_back(use.link);
    }
    return id;
}

void SharedLinks::settle(double now) {
    for (const auto start : dirty_) {
        if (link_seen_[start]) continue;
        std::vector<std::uint32_t> component;
        links_.clear();
        links_.push_back(start);
        link_seen_[start] = 1;
        for (std::size_t i = 0; i < links_.size(); ++i)
            for (const auto id : on_link_[links_[i]]) {
                if (entity_seen_[id]) continue;
                entity_seen_[id] = 1;
                component.push_back(id);
                for (const Use& use : entities_[id].uses)
                    if (!link_seen_[use.link]) {
                        link_seen_[use.link] = 1;
                        links_.push_back(use.link);
                    }
            }
        if (!component.empty()) fill(component, now);
        for (const auto id : component) entity_seen_[id] = 0;
        // Links stay marked until all dirty ones are done, so that no component is filled twice.
        for (std::size_t i = 1; i < links_.size(); ++i) dirty_links_.push_back(links_[i]);
        dirty_links_.push_back(start);
    }
    for (const auto link : dirty_links_) link_seen_[link] = 0;
    dirty_links_.clear();
    dirty_.clear();
}

void SharedLinks::fill(const std::vector<std::uint32_t>& component, double now) {
    // links_ holds the component's links; pressure_ = Σ usage · weight of the users that still
    // rise, waiting_ their number (a sum of differences need not come back to zero).
    for (const auto link : links_) left_[link] = 1, pressure_[link] = 0, waiting_[link] = 0;
    for (const auto id : component) {
        Entity& entity = entities_[id];
        if (entity.rate > 0)
            entity.remaining = std::max(0.0, entity.remaining - entity.rate * (now - entity.since));
        entity.rate = 0;
        for (const Use& use : entity.uses) {
            pressure_[use.link] += use.usage * entity.weight;
            ++waiting_[use.link];
        }
    }
    std::vector<std::uint32_t> open = links_;
    for (std::size_t stopped = 0; stopped < component.size();) {
        double level = std::numeric_limits<double>::infinity();
        std::erase_if(open, [&](std::uint32_t link) { return waiting_[link] == 0; });
        for (const auto link : open) level = std::min(level, left_[link] / pressure_[link]);
        assert(std::isfinite(level) && !open.empty());
        level = std::max(level, kLeast);
        for (const auto link : open) {
            if (waiting_[link] == 0 || left_[link] > pressure_[link] * level * (1 + kSame))
                continue;
            for (const auto id : on_link_[link]) {
                Entity& entity = entities_[id];
                if (entity.rate > 0) continue;
                entity.rate = level * entity.weight;
                ++stopped;
                for (const Use& use : entity.uses) {
                    left_[use.link] = std::max(0.0, left_[use.link] - use.usage * entity.rate);
                    pressure_[use.link] =
                        std::max(kLeast, pressure_[use.link] - use.usage * entity.weight);
                    --waiting_[use.link];
                }
            }
        }
    }
    for (const auto id : component) {
        Entity& entity = entities_[id];
        entity.since = now;
        entity.finish = now + entity.remaining / entity.rate;
    }
}

double SharedLinks::next_finish() const {
    double next = std::numeric_limits<double>::infinity();
    for (const auto id : active_) next = std::min(next, entities_[id].finish);
    return next;
}

void SharedLinks::take_finished(double time, std::vector<std::uint64_t>& owners) {
    std::vector<std::uint32_t> done;
    for (const auto id : active_) {
        const Entity& entity = entities_[id];
        if (entity.finish <= time + kSame * std::max(std::abs(time), entity.finish - entity.since))
            done.push_back(id);
    }
    std::sort(done.begin(), done.end(),
              [&](auto a, auto b) { return entities_[a].order < entities_[b].order; });
    for (const auto id : done) {
        Entity& entity = entities_[id];
        owners.push_back(entity.owner);
        for (const Use& use : entity.uses) {
            auto& users = on_link_[use.link];
            const auto at = std::find(users.begin(), users.end(), id);
            *at = users.back();
            users.pop_back();
            dirty_.push_back(use.link);
        }
        active_[entity.place] = active_.back();
        entities_[active_[entity.place]].place = entity.place;
        active_.pop_back();
        free_.push_back(id);
    }
}

}  // namespace moeplan
