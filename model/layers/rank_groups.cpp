#include "model/layers/rank_groups.hpp"

#include <chrono>
#include <numeric>
#include <vector>

namespace moeplan {
namespace {

using Clock = std::chrono::steady_clock;

/// Device memory on the host for an exchange, and back again.
class HostCopy {
  public:
    HostCopy(Runtime& rt, const void* device, std::int64_t bytes)
        : rt_(rt), host_(static_cast<std::size_t>(bytes)) {
        if (!device || bytes == 0) return;
        rt.copy(host_.data(), device, host_.size());
        check(rt.backend.synchronise(rt.stream), "synchronise");
    }
    char* data() { return host_.data(); }
    void give_back(void* device) {
        if (host_.empty()) return;
        rt_.copy(device, host_.data(), host_.size());
        check(rt_.backend.synchronise(rt_.stream), "synchronise");
    }

  private:
    Runtime& rt_;
    std::vector<char> host_;
};

template <class Exchange>
void timed(Runtime& rt, double& seconds, Exchange exchange) {
    rt.graphs.give_up(rt.stream);
    check(rt.backend.synchronise(rt.stream), "synchronise");
    const auto begin = Clock::now();
    exchange();
    seconds += std::chrono::duration<double>(Clock::now() - begin).count();
}

std::int64_t total(const std::vector<std::int64_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

}  // namespace

RankGroups::RankGroups(const ParallelLayout& of, const Communicator& world,
                       const Communicator& devices)
    : layout(of), place(place_of(of, world.rank())) {
    const int tp = of.tensor_parallel_size, pp = of.pipeline_parallel_size,
              per_stage = world.size() / pp, inside = world.rank() % per_stage,
              experts_at = of.expert_parallel_size * of.expert_tensor_parallel_size;
    const auto split = [&](int color) { return devices.split(color, world.rank()); };
    tensor = split(world.rank() / tp);
    data = split(place.stage * tp + place.tensor);
    stage = split(place.stage);
    experts = split(world.rank() / experts_at);
    host_tensor = world.split(world.rank() / tp, world.rank());
    host_data = world.split(place.stage * tp + place.tensor, world.rank());
    host_experts = world.split(world.rank() / experts_at, world.rank());
    expert_data = split(place.stage * experts_at + inside % experts_at);
    // Stages 2i and 2i + 1 are pairs, and 2i + 1 and 2i + 2: each stage has one of both.
    Communicator even = split(place.stage / 2 * per_stage + inside),
                 odd = split((place.stage + 1) / 2 * per_stage + inside);
    next = place.stage % 2 == 0 ? std::move(even) : std::move(odd);
    previous = place.stage % 2 == 0 ? std::move(odd) : std::move(even);
    tied = split(is_first_stage() || is_last_stage() ? inside : world.rank() + per_stage);
}

void sum_over(Runtime& rt, const Communicator& group, void* data, std::int64_t count,
              NumberFormat format, double& seconds) {
    if (group.size() == 1 || count == 0) return;
    timed(rt, seconds, [&] {
        if (group.accepts(rt.backend.device)) {
            group.all_reduce(data, count, format, Reduction::sum, rt.stream);
            group.wait(rt.backend, rt.stream);
            return;
        }
        HostCopy host(rt, data, count * std::int64_t(size_of(format).value));
        group.all_reduce(host.data(), count, format);
        host.give_back(data);
    });
}

void gather_over(Runtime& rt, const Communicator& group, void* data,
                 const std::vector<std::int64_t>& bytes, double& seconds) {
    if (group.size() == 1) return;
    const std::int64_t mine = bytes[std::size_t(group.rank())],
                       before = std::accumulate(bytes.begin(), bytes.begin() + group.rank(),
                                                std::int64_t{0});
    timed(rt, seconds, [&] {
        if (group.accepts(rt.backend.device)) {
            group.all_gather_v(static_cast<char*>(data) + before, mine, data, bytes, rt.stream);
            group.wait(rt.backend, rt.stream);
            return;
        }
        HostCopy own(rt, static_cast<char*>(data) + before, mine), all(rt, nullptr, total(bytes));
        group.all_gather_v(own.data(), mine, all.data(), bytes);
        all.give_back(data);
    });
}

void scatter_sums_over(Runtime& rt, const Communicator& group, void* data, std::int64_t count,
                       NumberFormat format, double& seconds) {
    if (group.size() == 1 || count == 0) return;
    const std::int64_t bytes = count * std::int64_t(size_of(format).value);
    char* mine = static_cast<char*>(data) + bytes * group.rank();
    timed(rt, seconds, [&] {
        if (group.accepts(rt.backend.device)) {
            const Tensor sum(rt.memory, count, format);
            group.reduce_scatter(data, sum.data(), count, format, rt.stream);
            group.wait(rt.backend, rt.stream);
            rt.copy(mine, sum.data(), std::size_t(bytes));
            return;
        }
        HostCopy host(rt, data, bytes * group.size()), sum(rt, nullptr, bytes);
        group.reduce_scatter(host.data(), sum.data(), count, format);
        sum.give_back(mine);
    });
}

void exchange_over(Runtime& rt, const Communicator& group, const void* from,
                   const std::vector<std::int64_t>& sent, void* to,
                   const std::vector<std::int64_t>& received, double& seconds) {
    timed(rt, seconds, [&] {
        if (group.accepts(rt.backend.device)) {
            group.all_to_all_v(from, sent, to, received, rt.stream);
            group.wait(rt.backend, rt.stream);
            return;
        }
        HostCopy host_sent(rt, from, total(sent)), host_received(rt, nullptr, total(received));
        group.all_to_all_v(host_sent.data(), sent, host_received.data(), received);
        host_received.give_back(to);
    });
}

}  // namespace moeplan
