#pragma once
/// Max-min fair shares of links among entities that each use several: progressive filling. One
/// solver for both fidelities: an entity is a flow (the fluid model) or a whole collective (the
/// closed form).

#include <cstdint>
#include <limits>
#include <vector>

namespace moeplan {

/// Every link has capacity 1. An entity advancing at rate x takes usage·x of each of its links;
/// rates are filled as x = weight·λ, all λ rising together, until a link is full: those on it stop
/// there, the others rise on.
class SharedLinks {
  public:
    explicit SharedLinks(std::size_t num_links);

    struct Use {
        std::uint32_t link;
        double usage;
    };
    /// @param amount  work: it takes amount / rate seconds
    std::uint32_t add(const std::vector<Use>& uses, double amount, double weight,
                      std::uint64_t owner);

    /// Rates of all that share a link, directly or through others, with what came or went since the
    /// last call.
    void settle(double now);
    /// When the next entity finishes, at the rates settled; infinity if none is active.
    double next_finish() const;
    /// Removes those that finish at `time` (within its rounding) and appends their owners, in order
    /// of their addition.
    void take_finished(double time, std::vector<std::uint64_t>& owners);
    std::size_t num_active() const { return active_.size(); }
    double rate(std::uint32_t entity) const { return entities_[entity].rate; }

  private:
    struct Entity {
        std::vector<Use> uses;
        double remaining = 0, weight = 1, rate = 0, since = 0, finish = 0;
        std::uint64_t owner = 0, order = 0;
        std::uint32_t place = 0;  // in active_
    };
    void fill(const std::vector<std::uint32_t>& component, double now);

    std::vector<Entity> entities_;
    std::vector<std::uint32_t> free_, active_;
    std::vector<std::vector<std::uint32_t>> on_link_;  // [links] entities
    std::vector<std::uint32_t> dirty_;                 // links whose users changed
    std::uint64_t added_ = 0;
    // Scratch, kept between calls.
    std::vector<double> left_, pressure_;
    std::vector<std::uint32_t> waiting_;
    std::vector<char> link_seen_, entity_seen_;
    std::vector<std::uint32_t> links_, dirty_links_;
};

}  // namespace moeplan
