// One MoE layer of the trainer on a device, with nothing around it: to time (gpu_profile), and to set beside PyTorch's, whose ctypes take
// the C functions below. Each gives 0, or 1 with the words in moeplan_error(). Work goes to the default stream, as PyTorch's does.

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/kernel_rows.hpp"
#include "model/layers/moe.hpp"

namespace moeplan {
namespace {

struct LayerShape { std::int64_t tokens = 16384, hidden = 2048, heads = 4, experts = 64, top_k = 2, inner = 1408; };

class TimedLayer {
  public:
    TimedLayer(const Backend& device, NumberFormat format, const LayerShape& shape);
    void forward();
    void backward();    ///< of the last forward

  private:
    Runtime rt_;
    RankGroups alone_;
    ParameterSet parameters_;
    std::unique_ptr<MoeLayer> layer_;
    MicroBatch batch_;
    Tensor x_, dy_;
    MoeLayer::Saved saved_;
};

TimedLayer::TimedLayer(const Backend& device, NumberFormat format, const LayerShape& shape) : rt_(device, format), parameters_(rt_) {
    MoeFeedForward moe;
    moe.num_experts = int(shape.experts);
    moe.top_k = int(shape.top_k);
    moe.num_moe_heads = int(shape.heads);
    moe.expert_hidden_size = int(shape.inner);
    moe.activation = Activation::swiglu;
    moe.renormalise_gates = true;
    ModelSpec model;
    model.name = "one layer";
    model.hidden_size = int(shape.hidden);
    model.layers.resize(1);
    model.layers[0].feed_forward = moe;
    layer_ = std::make_unique<MoeLayer>(rt_, parameters_, "moe", model, moe, alone_, 0, Seed{1});
    batch_.num_sequences = 1;
    batch_.sequence_length = shape.tokens;
    batch_.document_begin = {0, std::int32_t(shape.tokens)};
    batch_.document_ids = {0};
    const auto random = [&](const char* name) {
        std::vector<double> values(static_cast<std::size_t>(shape.tokens * shape.hidden));
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = initial_number(Seed{1}, name, i);
        Tensor out = rt_.tensor(std::int64_t(values.size()));
        rt_.upload(out.data(), values, format);
        return out;
    };
    x_ = random("x");
    dy_ = random("dy");
}

void TimedLayer::forward() {
    saved_ = {};
    MoeReport report;
    const Tensor y = layer_->forward(x_, batch_, saved_, report);
}
void TimedLayer::backward() { const Tensor dx = layer_->backward(x_, dy_, batch_, saved_); }

std::string last_error;
template <class Body>
int said(Body body) {
    try {
        body();
        return 0;
    } catch (const std::exception& error) {
        last_error = error.what();
        return 1;
    }
}
}  // namespace
}  // namespace moeplan

#define MOEPLAN_EXPORTED __attribute__((visibility("default")))

extern "C" {
MOEPLAN_EXPORTED const char* moeplan_error() { return moeplan::last_error.c_str(); }
MOEPLAN_EXPORTED int moeplan_layer(std::int64_t tokens, std::int64_t hidden, std::int64_t heads, std::int64_t experts,
                                                         std::int64_t top_k, std::int64_t inner, void** out) {
    using namespace moeplan;
    return said([&] { *out = new TimedLayer(backend_for(Device::cuda), NumberFormat::bf16, {tokens, hidden, heads, experts, top_k, inner}); });
}
MOEPLAN_EXPORTED int moeplan_layer_forward(void* layer) {
    return moeplan::said([&] { static_cast<moeplan::TimedLayer*>(layer)->forward(); });
}
MOEPLAN_EXPORTED int moeplan_layer_backward(void* layer) {
    return moeplan::said([&] { static_cast<moeplan::TimedLayer*>(layer)->backward(); });
}
MOEPLAN_EXPORTED int moeplan_grouped(std::int64_t rows, std::int64_t experts, std::int64_t n, std::int64_t k, void** out) {
    using namespace moeplan;
    KernelProblem problem;
    problem.format = NumberFormat::bf16;
    problem.group_rows.assign(std::size_t(experts), std::uint32_t(rows / experts));
    problem.n = n, problem.k = k;
    return said([&] { *out = new PreparedKernel(backend_for(Device::cuda), "grouped_gemm", problem); });
}
MOEPLAN_EXPORTED int moeplan_kernel_run(void* kernel) {
    using namespace moeplan;
    return said([&] { check(static_cast<PreparedKernel*>(kernel)->run(nullptr), "run"); });
}
}
