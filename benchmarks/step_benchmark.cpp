/// What a step costs to ask for: built, priced, walked at closed form, reported, and bounded.
///
/// DeepSeek-V3 on 2,048 H100 (16 stages, experts over 64 GPUs) has Zipf-like loads of its own in
/// each of 58 layers and every micro-batch; the dense models have hundreds of micro-batches that
/// are all alike, as published sweeps have.

#include <benchmark/benchmark.h>

#include "benchmarks/peak_memory.hpp"
#include "core/memory_steps.hpp"
#include "simulator/step_graph.hpp"
#include "simulator/step_walk.hpp"

namespace moeplan {
namespace {

StepCase deepseek(int num_micro_batches) {
    StepCase step;
    step.model = load_model("deepseek-v3");
    step.cluster = load_cluster("dgx-h100:256");
    step.layout.pipeline_parallel_size = 16;
    step.layout.data_parallel_size = 128;
    step.layout.expert_parallel_size = 64;
    step.schedule.sequence_length = 4096;
    step.schedule.num_micro_batches = num_micro_batches;
    step.schedule.precision = Precision::fp8;
    step.schedule.dispatcher = Dispatcher::deduplicating;
    step.profile = std::make_shared<const Profile>(load_profile("h100-sxm"));
    step.routing = SyntheticRouting{"zipf", 0.6, 0};
    return step;
}

/// GPT-3's shape in small: `layers` layers of `hidden`, on 80 GB A100.
StepCase dense(int hidden, int layers, int tensor, int stages, int replicas, int micro_batches,
               int chunks = 1) {
    StepCase step;
    step.model.name = "gpt";
    step.model.hidden_size = hidden;
    step.model.vocab_size = 51200;
    step.model.tied_embeddings = true;
    LayerSpec layer;
    const int heads = hidden / 128;
    layer.attention = GroupedQueryAttention{
        .num_attention_heads = heads, .num_kv_heads = heads, .head_size = 128};
    layer.feed_forward =
        DenseFeedForward{.dense_hidden_size = 4 * hidden, .activation = Activation::gelu};
    step.model.layers.assign(static_cast<std::size_t>(layers), layer);
    step.cluster =
        load_cluster("dgx-a100-80:" + std::to_string((tensor * stages * replicas + 7) / 8));
    step.layout.tensor_parallel_size = tensor;
    step.layout.pipeline_parallel_size = stages;
    step.layout.data_parallel_size = replicas;
    step.schedule.sequence_length = 2048;
    step.schedule.num_micro_batches = micro_batches;
    step.schedule.virtual_pipeline_size = chunks;
    if (chunks > 1) step.schedule.pipeline = Pipeline::interleaved;
    step.schedule.sharding = Sharding::none;
    step.schedule.recompute.full = true;
    step.profile = std::make_shared<const Profile>(load_profile("a100-sxm-80"));
    return step;
}

void build(benchmark::State& state) {
    const StepCase step = deepseek(static_cast<int>(state.range(0)));
    for (auto _ : state) {
        const StepGraph graph = build_step_graph(step);
        state.counters["ops"] = static_cast<double>(graph.ops.size());
        benchmark::DoNotOptimize(graph.ops.data());
    }
}
BENCHMARK(build)->Arg(16)->Unit(benchmark::kMillisecond);

/// Another profile for a graph and a network that are there.
void price_again(benchmark::State& state) {
    const StepCase step = deepseek(static_cast<int>(state.range(0)));
    const StepGraph graph = build_step_graph(step);
    StepNetwork network(step, graph);
    walk(graph, step, price_jobs(graph, step), network, NetworkModel::closed_form);
    for (auto _ : state)
        benchmark::DoNotOptimize(
            walk(graph, step, price_jobs(graph, step), network, NetworkModel::closed_form)
                .step_time);
}
BENCHMARK(price_again)->Arg(16)->Unit(benchmark::kMillisecond);

void price_jobs_alone(benchmark::State& state) {
    const StepCase step = deepseek(static_cast<int>(state.range(0)));
    const StepGraph graph = build_step_graph(step);
    for (auto _ : state) benchmark::DoNotOptimize(price_jobs(graph, step).jobs.data());
}
BENCHMARK(price_jobs_alone)->Arg(16)->Unit(benchmark::kMillisecond);

void exchanges(benchmark::State& state) {
    const StepCase step = deepseek(static_cast<int>(state.range(0)));
    const StepGraph graph = build_step_graph(step);
    for (auto _ : state) {
        StepNetwork network(step, graph);
        for (std::uint32_t d = 0; d < graph.exchanges.size(); ++d)
            benchmark::DoNotOptimize(network.alone(d));
    }
}
BENCHMARK(exchanges)->Arg(16)->Unit(benchmark::kMillisecond);

void whole_step(benchmark::State& state) {
    const StepCase step = deepseek(static_cast<int>(state.range(0)));
    for (auto _ : state) state.counters["step_s"] = estimate_step(step).step_time.value;
    state.counters["peak_MB"] = peak_megabytes();
}
BENCHMARK(whole_step)->Arg(16)->Arg(120)->Unit(benchmark::kMillisecond);

/// The same by flows, each sharing links by itself.
/// @param range(1)  different micro-batches' routings; 0: all
void flows(benchmark::State& state) {
    StepCase step = deepseek(static_cast<int>(state.range(0)));
    step.distinct_micro_batches = static_cast<int>(state.range(1));
    for (auto _ : state) state.counters["step_s"] = simulate_step(step).step_time.value;
    state.counters["peak_MB"] = peak_megabytes();
}
BENCHMARK(flows)->Args({16, 0})->Args({120, 8})->Iterations(1)->Unit(benchmark::kSecond);

void bound(benchmark::State& state) {
    const StepCase step = deepseek(static_cast<int>(state.range(0)));
    for (auto _ : state) benchmark::DoNotOptimize(lower_bound(step));
}
BENCHMARK(bound)->Arg(16)->Unit(benchmark::kMicrosecond);

void dense_step(benchmark::State& state) {
    const auto at = [&](int i) { return static_cast<int>(state.range(i)); };
    const StepCase step = dense(at(0), at(1), at(2), at(3), at(4), at(5), at(6));
    for (auto _ : state) state.counters["step_s"] = estimate_step(step).step_time.value;
}
BENCHMARK(dense_step)
    ->ArgNames({"hidden", "layers", "tp", "pp", "dp", "micro_batches", "chunks"})
    ->Args({3072, 30, 2, 1, 4, 128, 1})
    ->Args({3072, 30, 1, 1, 8, 512, 1})
    ->Args({6144, 40, 8, 1, 32, 32, 1})
    ->Args({6144, 40, 8, 4, 8, 256, 1})
    ->Args({12288, 96, 8, 16, 4, 384, 1})
    ->Args({12288, 96, 8, 16, 4, 384, 6})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace moeplan

/// As the commands have it.
int main(int argc, char** argv) {
    moeplan::take_memory_in_large_steps();
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
}
