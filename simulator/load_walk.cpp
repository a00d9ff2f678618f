/// The closed form of a whole step: a heap of events, and shares of links only where exchanges
/// meet.

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <stdexcept>
#include <unordered_map>

#include "core/seed.hpp"
#include "simulator/network/shared_links.hpp"
#include "simulator/walker.hpp"

namespace moeplan {
namespace {

/// Links that the same exchanges use are one *bundle*: whether two exchanges meet is a question of
/// a few bundles, not of hundreds of links.
class Bundles {
  public:
    Bundles(const StepGraph& graph, StepNetwork& network) {
        std::vector<char> used(graph.exchanges.size(), 0);
        for (const Op& op : graph.ops)
            if (op.exchange) used[op.demand] = 1;
        std::vector<std::uint64_t> users(network.links().links.size(), 0);  // a sum of their hashes
        first_.assign(graph.exchanges.size() + 1, 0);
        std::uint64_t stage_id = 0;
        for (std::uint32_t d = 0; d < graph.exchanges.size(); ++d) {
            first_[d] = static_cast<std::uint32_t>(stage_id);
            if (!used[d]) continue;
            for (const ExchangeStage& stage : network.loads(d).stages) {
                const std::uint64_t hash = mix(stage_id++);
                for (const LinkLoad& load : stage.loads) users[load.link] += hash;
            }
        }
        first_.back() = static_cast<std::uint32_t>(stage_id);
        std::unordered_map<std::uint64_t, std::uint32_t> index;
        std::vector<std::uint32_t> bundle(users.size(), 0);
        for (std::size_t link = 0; link < users.size(); ++link)
            bundle[link] = index.try_emplace(users[link], static_cast<std::uint32_t>(index.size()))
                               .first->second;
        count_ = index.size();
        of_.resize(stage_id);
        std::vector<std::uint64_t> seen(count_, 0);
        stage_id = 0;
        for (std::uint32_t d = 0; d < graph.exchanges.size(); ++d) {
            if (!used[d]) continue;
            for (const ExchangeStage& stage : network.loads(d).stages) {
                auto& list = of_[stage_id++];
                for (const LinkLoad& load : stage.loads)
                    if (seen[bundle[load.link]] != stage_id) {
                        seen[bundle[load.link]] = stage_id;
                        list.push_back(bundle[load.link]);
                    }
            }
        }
    }
    std::size_t count() const { return count_; }
    const std::vector<std::uint32_t>& of(std::uint32_t demand, std::size_t stage) const {
        return of_[first_[demand] + stage];
    }

  private:
    std::size_t count_ = 0;
    std::vector<std::uint32_t> first_;            // [demands + 1]
    std::vector<std::vector<std::uint32_t>> of_;  // [stages of demands]
};

class LoadWalker : public Walker {
  public:
    LoadWalker(const StepGraph& graph, const JobPrices& prices, StepNetwork& network)
        : Walker(graph, prices, network),
          bundles_(graph, network),
          on_bundle_(bundles_.count()),
          links_(network.links().links.size()),
          uses_of_(graph.exchanges.size(), 0) {}

    Timeline run() {
        begin();
        std::vector<std::uint64_t> owners;
        while (true) {
            links_.settle(now_);
            const double shared = links_.next_finish();
            while (!due_.empty() && due_.top().kind == Kind::end &&
                   playing_[due_.top().what].version != due_.top().version)
                due_.pop();  // it met another since
            const double alone =
                due_.empty() ? std::numeric_limits<double>::infinity() : due_.top().time;
            if (alone == std::numeric_limits<double>::infinity() && shared == alone) break;
            now_ = std::max(now_, std::min(alone, shared));
            if (shared <= alone) {
                owners.clear();
                links_.take_finished(now_, owners);
                for (const auto slot : owners) end_stage(static_cast<std::uint32_t>(slot));
                continue;
            }
            // all that is due at this instant, before shares are settled again
            while (!due_.empty() && due_.top().time <= now_) {
                const Due due = due_.top();
                due_.pop();
                ++line_.events;
                switch (due.kind) {
                    case Kind::hold:
                        hold(due.what, due.time);
                        break;
                    case Kind::job:
                        Walker::due(due.time, due.what, due.version);
                        drain();
                        break;
                    case Kind::begin:
                        begin_transfer(due.what);
                        break;
                    case Kind::end:
                        if (playing_[due.what].version == due.version) end_stage(due.what);
                }
            }
        }
        if (active_ > 0) throw std::logic_error("closed form: exchanges without an end");
        count_loads();
        return take();
    }

  private:
    struct Playing {
        const Exchange* exchange = nullptr;
        std::uint32_t op = 0, stage = 0, version = 0;
        double since = 0;  // when its transfer began
        bool shared = false;
    };
    enum class Kind : std::uint8_t { hold, end, begin, job };
    struct Due {
        double time;
        std::uint64_t order;
        std::uint32_t what, version;  // of playing_; hold: an op; job: a lane
        Kind kind;
        bool operator>(const Due& other) const {
            if (time != other.time) return time > other.time;
            if (kind != other.kind) return kind > other.kind;
            return order > other.order;
        }
    };

    void exchange(std::uint32_t i) override {
        const std::uint32_t demand = graph_.ops[i].demand;
        const Exchange& exchange = network_.loads(demand);
        if (exchange.stages.empty()) {
            finish(i, met(i));
            return;
        }
        ++uses_of_[demand];
        ++active_;
        std::uint32_t slot;
        if (free_.empty()) {
            slot = static_cast<std::uint32_t>(playing_.size());
            playing_.emplace_back();
        } else {
            slot = free_.back();
            free_.pop_back();
        }
        Playing& playing = playing_[slot];
        playing.exchange = &exchange;
        playing.op = i;
        playing.stage = 0;
        const double from = std::max(met(i), now_);
        if (graph_.ops[i].beside) {
            if (from > now_)
                due_.push({from, order_++, i, 0, Kind::hold});
            else
                hold(i, now_);
        }
        await(slot, from);
    }
    void call_at(double time, std::uint32_t lane, std::uint32_t version) override {
        due_.push({std::max(time, now_), order_++, lane, version, Kind::job});
    }
    void await(std::uint32_t slot, double from) {
        const Playing& playing = playing_[slot];
        due_.push({from + playing.exchange->stages[playing.stage].latency.value, order_++, slot,
                   playing.version, Kind::begin});
    }
    const std::vector<std::uint32_t>& bundles_of(const Playing& playing) const {
        return bundles_.of(graph_.ops[playing.op].demand, playing.stage);
    }

    void begin_transfer(std::uint32_t slot) {
        Playing& playing = playing_[slot];
        const ExchangeStage& stage = playing.exchange->stages[playing.stage];
        if (stage.loads.empty()) {
            end_stage(slot);
            return;
        }
        bool alone = true;
        for (const auto bundle : bundles_of(playing)) {
            for (const auto other : on_bundle_[bundle]) {
                alone = false;
                if (!playing_[other].shared) share(other);
            }
            on_bundle_[bundle].push_back(slot);
        }
        playing.since = now_;
        playing.shared = false;
        if (alone)
            due_.push({now_ + stage.transfer.value, order_++, slot, playing.version, Kind::end});
        else
            share(slot);
    }
    /// From here on it advances at the rate that the links leave it.
    void share(std::uint32_t slot) {
        Playing& playing = playing_[slot];
        const ExchangeStage& stage = playing.exchange->stages[playing.stage];
        const double left = stage.transfer.value - (now_ - playing.since);
        if (!(left > 0)) return;  // it ends at this very instant
        playing.shared = true;
        ++playing.version;
        uses_.clear();
        for (const LinkLoad& load : stage.loads)
            uses_.push_back({load.link, load.bytes /
                                            (network_.links().links[load.link].bandwidth *
                                             playing.exchange->efficiency) /
                                            stage.transfer});
        links_.add(uses_, left, playing.exchange->weight, slot);
    }
    void end_stage(std::uint32_t slot) {
        Playing& playing = playing_[slot];
        if (!playing.exchange->stages[playing.stage].loads.empty())
            for (const auto bundle : bundles_of(playing)) {
                auto& here = on_bundle_[bundle];
                *std::find(here.begin(), here.end(), slot) = here.back();
                here.pop_back();
            }
        playing.shared = false;
        ++playing.version;
        if (playing.stage + 1 < playing.exchange->stages.size()) {
            ++playing.stage;
            await(slot, now_);
            return;
        }
        const std::uint32_t op = playing.op;
        free_.push_back(slot);
        --active_;
        if (graph_.ops[op].beside) release(op, now_);
        finish(op, std::max(line_.begin[op], now_));
        drain();
    }
    void count_loads() {
        line_.carried.assign(network_.links().links.size(), Bytes{});
        for (std::uint32_t d = 0; d < uses_of_.size(); ++d) {
            if (uses_of_[d] == 0) continue;
            for (const ExchangeStage& stage : network_.loads(d).stages)
                for (const LinkLoad& load : stage.loads)
                    line_.carried[load.link] += load.bytes * static_cast<double>(uses_of_[d]);
        }
    }

    Bundles bundles_;
    std::vector<std::vector<std::uint32_t>> on_bundle_;  // [bundles] who transfers there
    SharedLinks links_;
    std::vector<std::uint64_t> uses_of_;  // [demands]
    std::vector<Playing> playing_;
    std::vector<std::uint32_t> free_;
    std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
    std::vector<SharedLinks::Use> uses_;
    double now_ = 0;
    std::uint64_t order_ = 0, active_ = 0;
};

}  // namespace

Timeline walk_by_loads(const StepGraph& graph, const JobPrices& prices, StepNetwork& network) {
    return LoadWalker(graph, prices, network).run();
}

}  // namespace moeplan
