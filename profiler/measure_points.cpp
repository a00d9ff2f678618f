#include "profiler/measure_points.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "model/check.hpp"
#include "model/kernel_work.hpp"
#include "model/op_counts.hpp"
#include "profiler/profile.hpp"

namespace moeplan {
namespace {

bool starts_with(const std::string& text, std::string_view start) {
    return text.compare(0, start.size(), start) == 0;
}

bool has_price(std::string_view kernel) {
    const auto& names = kernel_names();
    return std::find(names.begin(), names.end(), kernel) != names.end();
}

constexpr const char* kGemms[] = {"gemm", "gemm_input_gradient", "gemm_weight_gradient"};
constexpr const char* kGrouped[] = {"grouped_gemm", "grouped_gemm_input_gradient",
                                    "grouped_gemm_weight_gradient"};

/// Collects points; the first importance under which a point is added stands.
class Points {
  public:
    void add(KernelPoint point, int importance) {
        for (const double value : point.shape)
            if (!(value >= 1)) return;
        if (!has_price(point.kernel)) return;
        point.importance = importance;
        const auto [at, added] = points_.emplace(std::pair(point.kernel, point.shape), point);
        if (!added) at->second.importance = std::min(at->second.importance, importance);
    }
    void gemms(std::int64_t m, std::int64_t n, std::int64_t k, int importance) {
        for (const char* kernel : kGemms) add(gemm_point(kernel, m, n, k), importance);
    }
    void grouped(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t experts,
                 int importance) {
        for (const char* kernel : kGrouped)
            add(grouped_point(kernel, m, n, k, experts), importance);
    }
    void streamed(std::initializer_list<const char*> kernels, std::int64_t units,
                  std::int64_t width, int importance, std::int64_t top_k = 1) {
        for (const char* kernel : kernels)
            add(streamed_point(kernel, units, width, top_k), importance);
    }
    std::vector<KernelPoint> sorted() const {
        std::vector<KernelPoint> out;
        for (const auto& [key, point] : points_) out.push_back(point);
        return out;
    }

  private:
    std::map<std::pair<std::string, std::vector<double>>, KernelPoint> points_;
};

struct AttentionSizes {
    std::int64_t heads = 0, kv_heads = 0, head_size = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> projections;  ///< (n, k) of each
};

AttentionSizes attention_sizes(const Attention& attention, std::int64_t hidden,
                               std::int64_t tensor) {
    AttentionSizes out;
    if (const auto* gqa = std::get_if<GroupedQueryAttention>(&attention)) {
        out.heads = std::max<std::int64_t>(1, gqa->num_attention_heads / tensor);
        out.kv_heads = std::max<std::int64_t>(1, gqa->num_kv_heads / tensor);
        out.head_size = gqa->head_size;
        // Our trainer projects queries, keys and values one by one; others fuse them.
        out.projections = {{out.heads * out.head_size, hidden},
                           {out.kv_heads * out.head_size, hidden},
                           {(out.heads + 2 * out.kv_heads) * out.head_size, hidden},
                           {hidden, out.heads * out.head_size}};
        return out;
    }
    const auto& latent = std::get<LatentAttention>(attention);
    out.heads = out.kv_heads = std::max<std::int64_t>(1, latent.num_attention_heads / tensor);
    const std::int64_t query = latent.nope_size + latent.rope_size;
    out.head_size = (query + latent.value_size) / 2;
    if (latent.q_lora_rank > 0)
        out.projections = {{latent.q_lora_rank, hidden}, {out.heads * query, latent.q_lora_rank}};
    else
        out.projections = {{out.heads * query, hidden}};
    out.projections.push_back({latent.kv_lora_rank + latent.rope_size, hidden});
    out.projections.push_back(
        {out.heads * (latent.nope_size + latent.value_size), latent.kv_lora_rank});
    out.projections.push_back({hidden, out.heads * latent.value_size});
    return out;
}

void add_activation(Points& points, Activation activation, std::int64_t rows, std::int64_t inner,
                    int importance) {
    switch (activation) {
        case Activation::swiglu:
            return points.streamed({"swiglu_forward", "swiglu_backward"}, rows, inner, importance);
        case Activation::gelu:
            return points.streamed({"gelu_forward", "gelu_backward"}, rows, inner, importance);
        case Activation::relu:
            return points.streamed({"relu_forward", "relu_backward"}, rows, inner, importance);
    }
}

void add_moe(Points& points, const MoeFeedForward& moe, std::int64_t hidden, std::int64_t tokens,
             const ParallelLayout& layout, int importance) {
    const std::int64_t heads = std::max(1, moe.num_moe_heads), width = hidden / heads;
    const std::int64_t units = tokens * heads, rows = units * moe.top_k;
    const std::int64_t experts = std::max(1, moe.num_experts / layout.expert_parallel_size);
    const std::int64_t inner =
        std::max(1, moe.expert_hidden_size / layout.expert_tensor_parallel_size);
    const std::int64_t matrices = moe.activation == Activation::swiglu ? 2 : 1;
    if (heads > 1) points.gemms(tokens, hidden, hidden, importance);
    points.gemms(units, moe.num_experts, moe.router_size > 0 ? moe.router_size : width, importance);
    if (moe.router_size > 0) points.gemms(units, moe.router_size, width, importance);
    points.streamed({"router_forward", "router_backward"}, units, moe.num_experts, importance,
                    moe.top_k);
    if (moe.pool) points.streamed({"document_pool"}, units, moe.num_experts, importance);
    points.streamed({"permutation_map"}, units, 1, importance, moe.top_k);
    points.streamed(
        {"permute_forward", "permute_backward", "unpermute_forward", "unpermute_backward"}, units,
        width, importance, moe.top_k);
    add_activation(points, moe.activation, rows, inner, importance);
    // Loads: the step has what routing gives it, so the whole range is worth measuring.
    const std::int64_t mean =
        std::max<std::int64_t>(1, rows / moe.num_experts * layout.expert_parallel_size);
    const std::int64_t most = std::max<std::int64_t>(1, rows);
    for (const auto& [n, k] : {std::pair{matrices * inner, width}, std::pair{width, inner}}) {
        points.grouped(mean, n, k, experts, importance);
        for (const std::int64_t sixteenths : {1, 4, 8, 32, 64})
            points.grouped(std::clamp<std::int64_t>(mean * sixteenths / 16, 1, most), n, k, experts,
                           importance + 1);
    }
    if (moe.num_shared_experts > 0) {
        const std::int64_t shared =
            static_cast<std::int64_t>(moe.num_shared_experts) * moe.shared_expert_hidden_size;
        points.gemms(tokens, matrices * shared, hidden, importance);
        points.gemms(tokens, hidden, shared, importance);
        add_activation(points, moe.activation, tokens, shared, importance);
    }
    if (moe.sub_norm)
        points.streamed({"rms_norm_forward", "rms_norm_backward"}, rows, inner, importance);
}

/// The optimizer walks all parameters of the rank, one tensor after another: what counts is how
/// many there are in all, since none of them is in a cache when its turn comes. 64 Mi at most:
/// beyond, the time a byte no longer changes.
void add_optimizer(Points& points, std::int64_t count, int importance) {
    count = std::clamp<std::int64_t>(count, 1, std::int64_t{1} << 26);
    points.streamed({"adamw", "gradient_norm"}, 1, count, importance);
    // Tensor by tensor, of about 1 MiB: one large block would be written past the caches.
    const std::int64_t tensors = std::max<std::int64_t>(1, count >> 18);
    points.streamed({"zero"}, tensors, count / tensors, importance);
}

/// Parameters that one rank holds, replicas of data parallelism whole.
std::int64_t parameters_of_rank(const ModelSpec& model, const ParallelLayout& layout) {
    const std::int64_t tensor = layout.tensor_parallel_size;
    std::int64_t out = static_cast<std::int64_t>(model.hidden_size) * model.vocab_size *
                       (model.tied_embeddings ? 1 : 2) / tensor;
    for (const LayerSpec& layer : model.layers) {
        const LayerParameters p = layer_parameters(model, layer);
        out += (p.attention + p.dense + p.shared_experts) / tensor + p.router + p.mh_projections +
               p.norms;
        if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward))
            out += p.one_expert * moe->num_experts / layout.expert_parallel_size /
                   layout.expert_tensor_parallel_size;
    }
    return out / layout.pipeline_parallel_size;
}

void add_step(Points& points, const ModelSpec& model, const ParallelLayout& layout,
              std::int64_t batch, std::int64_t sequence, int importance) {
    const std::int64_t hidden = model.hidden_size,
                       tokens = batch * sequence / layout.context_parallel_size;
    const std::int64_t tensor = layout.tensor_parallel_size;
    for (const LayerSpec& layer : model.layers) {
        const AttentionSizes attention = attention_sizes(layer.attention, hidden, tensor);
        for (const auto& [n, k] : attention.projections) points.gemms(tokens, n, k, importance);
        for (const char* kernel : {"attention_forward", "attention_backward"})
            points.add(attention_point(kernel, batch, sequence, attention.heads, attention.kv_heads,
                                       attention.head_size, layer.window.value_or(0)),
                       importance);
        for (const char* kernel : {"rope_forward", "rope_backward"})
            points.add(rope_point(kernel, tokens, attention.heads + attention.kv_heads,
                                  attention.head_size),
                       importance);
        points.streamed({"rms_norm_forward", "rms_norm_backward", "residual_add", "copy"}, tokens,
                        hidden, importance);
        if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward)) {
            add_moe(points, *moe, hidden, tokens, layout, importance);
        } else {
            const auto& dense = std::get<DenseFeedForward>(layer.feed_forward);
            const std::int64_t inner = std::max<std::int64_t>(1, dense.dense_hidden_size / tensor);
            points.gemms(tokens, (dense.activation == Activation::swiglu ? 2 : 1) * inner, hidden,
                         importance);
            points.gemms(tokens, hidden, inner, importance);
            add_activation(points, dense.activation, tokens, inner, importance);
        }
    }
    points.streamed({"embedding_forward", "embedding_backward"}, tokens, hidden, importance);
    points.gemms(tokens, std::max<std::int64_t>(1, model.vocab_size / tensor), hidden, importance);
    points.streamed({"cross_entropy_forward", "cross_entropy_backward"}, tokens,
                    model.vocab_size / tensor, importance);
}

}  // namespace

bool KernelPoint::operator<(const KernelPoint& other) const {
    return std::tie(kernel, shape) < std::tie(other.kernel, other.shape);
}

std::vector<std::string> shape_columns(const std::string& kernel) {
    if (starts_with(kernel, "grouped_gemm")) return {"m", "n", "k", "num_experts"};
    if (starts_with(kernel, "gemm")) return {"m", "n", "k"};
    if (starts_with(kernel, "attention"))
        return {"batch", "sequence", "num_heads", "num_kv_heads", "head_size"};
    return {"bytes", "width"};
}

KernelPoint gemm_point(const std::string& kernel, std::int64_t m, std::int64_t n, std::int64_t k) {
    KernelPoint point{kernel, "gemm", {}, {double(m), double(n), double(k)}, 0};
    KernelProblem& problem = point.problem;
    if (kernel == "gemm_input_gradient") {  // dx[m, k] = dy[m, n] · w[n, k]
        problem.m = m, problem.n = k, problem.k = n;
        problem.transpose_b = false;
    } else if (kernel == "gemm_weight_gradient") {  // dw[n, k] = dy[m, n]ᵀ · x[m, k]
        problem.m = n, problem.n = k, problem.k = m;
        problem.transpose_a = true, problem.transpose_b = false;
        problem.accumulate = true;  // to those of the micro-batches before
    } else {  // y[m, n] = x[m, k] · w[n, k]ᵀ
        problem.m = m, problem.n = n, problem.k = k;
    }
    return point;
}

KernelPoint grouped_point(const std::string& kernel, std::int64_t rows, std::int64_t n,
                          std::int64_t k, std::int64_t num_experts) {
    KernelPoint point{
        kernel, "grouped_gemm", {}, {double(rows), double(n), double(k), double(num_experts)}, 0};
    point.problem.group_rows.assign(
        static_cast<std::size_t>(std::max<std::int64_t>(0, num_experts)),
        static_cast<std::uint32_t>(rows));
    point.problem.n = n, point.problem.k = k;
    if (kernel == "grouped_gemm_input_gradient")
        point.problem.product = GroupedProduct::data_gradient;
    if (kernel == "grouped_gemm_weight_gradient")
        point.problem.product = GroupedProduct::weight_gradient;
    return point;
}

KernelPoint attention_point(const std::string& kernel, std::int64_t batch, std::int64_t sequence,
                            std::int64_t num_heads, std::int64_t num_kv_heads,
                            std::int64_t head_size, std::int64_t window) {
    KernelPoint point{kernel,
                      kernel,
                      {},
                      {double(batch), double(sequence), double(num_heads), double(num_kv_heads),
                       double(head_size)},
                      0};
    point.problem.batch = batch, point.problem.sequence = sequence,
    point.problem.num_heads = num_heads;
    point.problem.num_kv_heads = num_kv_heads, point.problem.head_size = head_size,
    point.problem.window = window;
    return point;
}

KernelPoint streamed_point(const std::string& kernel, std::int64_t units, std::int64_t width,
                           std::int64_t top_k) {
    KernelPoint point{kernel, kernel, {}, {}, 0};
    KernelProblem& problem = point.problem;
    problem.rows = units, problem.width = width, problem.top_k = top_k;
    double items = double(units) * double(width);
    if (starts_with(kernel, "router") || kernel == "document_pool") {
        problem.num_experts = width;
        problem.num_documents = std::max<std::int64_t>(1, units / 128);
    } else if (kernel == "permutation_map") {
        problem.num_experts = 8;
        items = double(units) * double(top_k);
    } else if (starts_with(kernel, "permute") || starts_with(kernel, "unpermute")) {
        problem.num_experts = 8;
        items *= double(top_k);
    } else if (kernel == "rms_norm_backward") {
        problem.accumulate = true;  // the residual's gradient is there already
    } else if (starts_with(kernel, "rope")) {  // one head; rope_point has more
        problem.num_heads = 1, problem.head_size = width;
    }
    if (!has_price(kernel)) return point;  // no bytes are agreed on: Points::add drops it
    point.shape = {streamed_bytes(kernel, items, {4}).value,
                   kernel_depends_on_width(kernel) ? double(width) : 1};
    return point;
}

KernelPoint rope_point(const std::string& kernel, std::int64_t tokens, std::int64_t num_heads,
                       std::int64_t head_size) {
    KernelPoint point = streamed_point(kernel, tokens * num_heads, head_size);
    point.problem.rows = tokens;
    point.problem.num_heads = num_heads;
    return point;
}

Bytes working_set_of(const ModelSpec& model, const ParallelLayout& layout,
                     const StepSchedule& schedule) {
    Bytes most;
    for (const StageMemory& stage : memory_by_stage(model, layout, schedule, 1))
        most = std::max(most, stage.total());
    return most;
}

std::vector<KernelPoint> points_of_model(const ModelSpec& model, const ParallelLayout& layout,
                                         const StepSchedule& schedule) {
    Points points;
    const std::int64_t batch = schedule.micro_batch_size, sequence = schedule.sequence_length;
    add_step(points, model, layout, batch, sequence, 0);
    add_step(points, model, layout, 2 * batch, sequence, 2);
    if (batch % 2 == 0)
        add_step(points, model, layout, batch / 2, sequence, 2);
    else if (sequence % 2 == 0)
        add_step(points, model, layout, batch, sequence / 2, 2);
    const std::int64_t count = parameters_of_rank(model, layout);
    add_optimizer(points, count, 0);
    add_optimizer(points, count / 4, 1);
    add_optimizer(points, count * 2, 2);
    // Copies of activations and of gradients.
    points.streamed({"copy"}, 1, std::min<std::int64_t>(count / 2, 1 << 25), 0);
    for (const std::int64_t count : {1 << 18, 1 << 21, 1 << 23})
        points.streamed({"copy"}, 1, count, 2);
    return points.sorted();
}

std::vector<KernelPoint> points_of_grid() {
    Points points;
    const std::int64_t sides[] = {64, 128, 256, 512, 1024};
    for (const std::int64_t n : sides)
        for (const std::int64_t k : sides)
            for (const std::int64_t m : {16, 64, 256, 1024, 2048}) {
                if (m * n * k > (std::int64_t{1} << 30)) continue;
                points.gemms(m, n, k, (n + k) % 3 == 0 ? 0 : 1);
            }
    for (const std::int64_t m : {256, 1024}) {
        points.gemms(m, 4096, 256, 0);  // a vocabulary
        points.gemms(m, 8, 256, 1);     // a router
        points.gemms(m, 32, 128, 1);
    }
    for (const auto& [n, k] : {std::pair{128, 64},
                               {256, 128},
                               {512, 128},
                               {512, 256},
                               {1024, 256},
                               {128, 256},
                               {256, 512},
                               {128, 128},
                               {256, 256},
                               {64, 128}})
        for (const std::int64_t m : {4, 16, 64, 128, 256, 512, 1024})
            points.grouped(m, n, k, 8, m == 64 || m == 256 ? 0 : 1);
    for (const char* kernel : {"attention_forward", "attention_backward"})
        for (const std::int64_t head_size : {32, 64})
            for (const std::int64_t sequence : {64, 128, 256, 512})
                points.add(attention_point(kernel, std::max<std::int64_t>(1, 512 / sequence),
                                           sequence, 4, 4, head_size, 0),
                           sequence == 128 ? 0 : 1);
    for (const std::int64_t units : {64, 256, 1024, 4096}) {
        for (const std::int64_t width : {128, 256})
            points.streamed(
                {"rms_norm_forward", "rms_norm_backward", "residual_add", "swiglu_forward",
                 "swiglu_backward", "gelu_forward", "gelu_backward", "relu_forward",
                 "relu_backward", "embedding_forward", "embedding_backward", "copy"},
                units, width, units == 1024 ? 0 : 1);
        for (const std::int64_t width : {64, 128, 256})
            points.streamed(
                {"permute_forward", "permute_backward", "unpermute_forward", "unpermute_backward"},
                units, width, units == 1024 ? 0 : 1, 2);
        for (const std::int64_t experts : {8, 16, 32})
            points.streamed({"router_forward", "router_backward", "document_pool"}, units, experts,
                            units == 1024 ? 0 : 1, 2);
        points.streamed({"permutation_map"}, units, 1, 1, 2);
        for (const std::int64_t head_size : {32, 64})
            for (const char* kernel : {"rope_forward", "rope_backward"})
                points.add(rope_point(kernel, units, 4, head_size), 1);
        if (units <= 1024)
            for (const std::int64_t vocabulary : {1024, 4096})
                points.streamed({"cross_entropy_forward", "cross_entropy_backward"}, units,
                                vocabulary, units == 1024 ? 0 : 1);
    }
    for (const std::int64_t count : {1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24})
        add_optimizer(points, count, 1);
    return points.sorted();
}

}  // namespace moeplan
