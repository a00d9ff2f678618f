/// One training step in bf16 against fp32 on one core, by turns: 6 layers of width 256, 8 experts,
/// top-2, sequences of 256. Prints the best step of each, their ratio, and the conditions.
///
///     build/benchmarks/benchmark_precision [ROUNDS]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "model/train.hpp"

namespace moeplan {
namespace {

TrainOptions example() {
    ModelSpec model;
    model.name = "6 layers of 256";
    model.hidden_size = 256;
    model.vocab_size = 2048;
    LayerSpec layer;
    layer.attention =
        GroupedQueryAttention{.num_attention_heads = 4, .num_kv_heads = 4, .head_size = 64};
    MoeFeedForward moe;
    moe.num_experts = 8;
    moe.top_k = 2;
    moe.expert_hidden_size = 512;
    moe.activation = Activation::swiglu;
    layer.feed_forward = moe;
    model.layers.assign(6, layer);
    TrainOptions options;
    options.model = model;
    options.schedule.sequence_length = 256;
    options.schedule.micro_batch_size = 8;
    options.steps = 4;
    options.optimizer.learning_rate = 1e-3;
    Packing packing;
    packing.sequence_length = 256;
    packing.held_out = 0;
    options.data = std::make_shared<PackedTokens>(
        pack(synthetic_tokens(model.vocab_size, 200'000, 4, Seed{1}), Part::train, packing));
    return options;
}

/// The best step of a few, without the first: it finds memory.
double step_time(NumberFormat format) {
    TrainOptions options = example();
    options.format = format;
    Communicator alone;
    const TrainResult result = train(options, alone);
    double best = std::numeric_limits<double>::infinity();
    for (std::size_t i = 1; i < result.steps.size(); ++i)
        best = std::min(best, result.steps[i].times.total.value);
    return best;
}

}  // namespace
}  // namespace moeplan

int main(int count, char** words) {
    using namespace moeplan;
    const int rounds = count > 1 ? std::max(1, std::atoi(words[1])) : 3;
    double full = std::numeric_limits<double>::infinity(), half = full;
    for (int i = 0; i < rounds; ++i) {
        full = std::min(full, step_time(NumberFormat::f32));
        half = std::min(half, step_time(NumberFormat::bf16));
    }
    const DeviceFacts& cpu = *backend_for(Device::cpu).facts;
    std::printf("%s, %s, one thread, best of %d turns of 3 steps of 2048 tokens\n", cpu.name,
                cpu.driver, rounds);
    std::printf("fp32 %.1f ms a step, bf16 %.1f ms: %.2f times as fast\n", full * 1e3, half * 1e3,
                full / half);
}
