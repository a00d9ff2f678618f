#include "model/pipeline.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace moeplan {
namespace {

/// Both ways at once with a neighbour, so that two stages that send to each other do not wait for
/// each other.
Tensor swap_with(Runtime& rt, const Communicator& pair, Tensor sent, std::int64_t received_count,
                 double& seconds) {
    if (pair.size() == 1) return {};
    Tensor received;
    if (received_count > 0) received = rt.tensor(received_count);
    std::vector<std::int64_t> out(2, 0), in(2, 0);
    const std::size_t other = std::size_t(1 - pair.rank());
    out[other] = sent ? std::int64_t(sent.bytes()) : 0;
    in[other] = received ? std::int64_t(received.bytes()) : 0;
    exchange_over(rt, pair, sent.data(), out, received.data(), in, seconds);
    return received;
}

/// One step of one stage.
class Stage {
  public:
    Stage(Runtime& rt, Transformer& model, RankGroups& groups, int num_micro_batches,
          std::int64_t hidden_count, bool keep_choices, const std::function<MicroBatch(int)>& begin,
          const std::function<void(int, Flight&)>& finish)
        : rt_(rt),
          model_(model),
          groups_(groups),
          keep_choices_(keep_choices),
          begin_(begin),
          finish_(finish),
          flights_(std::size_t(num_micro_batches)),
          count_(hidden_count) {}

    Tensor forward(int m, Tensor in) {
        Flight& flight = flights_[std::size_t(m)].emplace();
        flight.batch = begin_(m);
        return model_.forward(flight.batch, std::move(in), flight.pass,
                              keep_choices_ ? &flight.choices : nullptr);
    }
    Tensor backward(int m, Tensor dout) {
        std::optional<Flight>& flight = flights_[std::size_t(m)];
        Tensor din = model_.backward(flight->batch, flight->pass, std::move(dout));
        finish_(m, *flight);
        flight.reset();
        return din;
    }
    void settle_balance() {
        std::vector<Transformer::Pass*> passes;
        for (std::optional<Flight>& flight : flights_) passes.push_back(&flight->pass);
        model_.settle_balance(passes);
    }
    Tensor with_previous(Tensor sent, bool receives) {
        return swap_with(rt_, groups_.previous, std::move(sent), receives ? count_ : 0,
                         groups_.times.pipeline);
    }
    Tensor with_next(Tensor sent, bool receives) {
        return swap_with(rt_, groups_.next, std::move(sent), receives ? count_ : 0,
                         groups_.times.pipeline);
    }

  private:
    Runtime& rt_;
    Transformer& model_;
    RankGroups& groups_;
    bool keep_choices_;
    const std::function<MicroBatch(int)>& begin_;
    const std::function<void(int, Flight&)>& finish_;
    std::vector<std::optional<Flight>> flights_;
    std::int64_t count_ = 0;  ///< elements of a micro-batch's hidden states
};

}  // namespace

void run_micro_batches(Runtime& rt, Transformer& model, RankGroups& groups, int num_micro_batches,
                       std::int64_t hidden_count, PassOrder order, bool keep_choices,
                       const std::function<MicroBatch(int)>& begin,
                       const std::function<void(int, Flight&)>& finish) {
    Stage stage(rt, model, groups, num_micro_batches, hidden_count, keep_choices, begin, finish);
    // Warm up with as many forward passes as stages follow; then one forward, one backward; then
    // the backward passes that are left. Each exchange has its counterpart in the neighbour's same
    // line of this function, or in the line that mirrors it.
    const int behind = groups.layout.pipeline_parallel_size - 1 - groups.place.stage,
              warm_up = order == PassOrder::forwards_first ? num_micro_batches
                                                           : std::min(behind, num_micro_batches),
              steady = num_micro_batches - warm_up;
    for (int m = 0; m < warm_up; ++m) {
        Tensor in = stage.with_previous({}, true);
        stage.with_next(stage.forward(m, std::move(in)), false);
    }
    if (order == PassOrder::forwards_first) stage.settle_balance();
    Tensor in;
    if (steady > 0) in = stage.with_previous({}, true);
    for (int i = 0; i < steady; ++i) {
        Tensor out = stage.forward(warm_up + i, std::move(in));
        Tensor dout = stage.with_next(std::move(out), true);
        Tensor din = stage.backward(i, std::move(dout));
        in = stage.with_previous(std::move(din), i + 1 < steady);
    }
    for (int m = steady; m < num_micro_batches; ++m) {
        Tensor dout = stage.with_next({}, true);
        stage.with_previous(stage.backward(m, std::move(dout)), false);
    }
}

Tensor receive_hidden(Runtime& rt, RankGroups& groups, std::int64_t count) {
    return swap_with(rt, groups.previous, {}, count, groups.times.pipeline);
}

void send_hidden(Runtime& rt, RankGroups& groups, Tensor hidden) {
    swap_with(rt, groups.next, std::move(hidden), 0, groups.times.pipeline);
}

}  // namespace moeplan
