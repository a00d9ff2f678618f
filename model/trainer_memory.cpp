#include "model/trainer_memory.hpp"

#include <algorithm>
#include <cmath>

#include "model/stage_layers.hpp"

namespace moeplan {
namespace {

constexpr double kHeadRows = 1024;  ///< tokens whose logits are in memory at once
constexpr double kWord = 4;         ///< an f32 statistic or an i32 index

/// Elements, by the ranks over which a sharded optimizer spreads them
/// (model/layers/parameters.hpp).
struct Held {
    double data = 0, stage = 0, expert = 0;
};

double gated(Activation activation) { return activation == Activation::swiglu ? 2 : 1; }

/// What a layer keeps from forward to backward, and what its backward pass takes besides.
struct LayerBytes {
    double kept = 0;
    double working = 0;   ///< most at once, less what it has freed of `kept` by then
    double exchange = 0;  ///< the same where rows go to experts and come back
};

class Trainer {
  public:
    Trainer(const ModelSpec& model, const ParallelLayout& layout, const StepSchedule& schedule,
            double hot_rank_load)
        : model_(model), layout_(layout), schedule_(schedule), load_(hot_rank_load) {}

    StageMemory stage(int index, const LayerChunk& layers) const {
        const bool first = index == 0, last = index == layout_.pipeline_parallel_size - 1;
        StageMemory out;
        out.stage = index;
        out.rank = index * layout_.tensor_parallel_size * layout_.data_parallel_size;
        weights(layers, first, last, out);
        activations(index, layers, last, out);
        return out;
    }

  private:
    void weights(const LayerChunk& layers, bool first, bool last, StageMemory& out) const {
        Held held;
        const double table = std::ceil(model_.vocab_size / tp()) * d();
        if (first) held.data += table;
        if (last) held.data += norm() + (model_.tied_embeddings && first ? 0 : table);
        for (int i = layers.first; i < layers.first + layers.count; ++i)
            add_layer(model_.layers[std::size_t(i)], held);
        const bool sharded = schedule_.sharding != Sharding::none;
        const double data = sharded ? layout_.data_parallel_size : 1,
                     stage = sharded ? layout_.data_parallel_size * tp() : 1,
                     expert = sharded ? expert_data_parallel_size(layout_) : 1;
        const double all = held.data + held.stage + held.expert,
                     updated = held.data / data + held.stage / stage + held.expert / expert;
        const double master = schedule_.precision == Precision::fp32 ? 0 : kWord;
        out.weights = Bytes{all * a()};
        out.gradients = Bytes{all * kWord};
        out.optimizer = Bytes{updated * (2 * kWord + master)};
    }

    void add_layer(const LayerSpec& layer, Held& held) const {
        held.data += 2 * norm();
        if (const auto* gqa = std::get_if<GroupedQueryAttention>(&layer.attention)) {
            const double q = query(*gqa), kv = key(*gqa);
            held.data +=
                2 * d() * (q + kv) + (gqa->bias ? q + 2 * kv : 0) + (gqa->output_bias ? d() : 0);
            if (gqa->qk_norm_full)
                held.data += q + kv;
            else if (gqa->qk_norm)
                held.stage += 2.0 * gqa->head_size;
        }
        const auto network = [](double inner, double width, double gates, bool bias,
                                bool sub_norm = false) {
            return (gates + 1) * inner * width + (bias ? gates * inner + width : 0) +
                   (sub_norm ? 2 * inner : 0);
        };
        if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
            held.data += network(dense->dense_hidden_size / tp(), d(), gated(dense->activation),
                                 dense->bias);
            return;
        }
        const auto& moe = std::get<MoeFeedForward>(layer.feed_forward);
        const double width = d() / moe.num_moe_heads, experts = moe.num_experts;
        if (moe.num_moe_heads > 1) held.stage += 2 * d() * d() + (moe.head_bias ? 2 * d() : 0);
        held.stage +=
            (moe.router_size > 0 ? moe.router_size * (width + experts) : experts * width) +
            (moe.router_bias ? experts : 0);
        held.expert += experts / layout_.expert_parallel_size *
                       network(moe.expert_hidden_size / etp(), width, gated(moe.activation),
                               moe.bias, moe.sub_norm);
        if (moe.num_shared_experts > 0)
            held.data +=
                network(double(moe.num_shared_experts) * moe.shared_expert_hidden_size / tp(), d(),
                        gated(moe.activation), moe.bias, moe.sub_norm);
    }

    LayerBytes layer_bytes(const LayerSpec& layer) const {
        const double t = tokens(), hidden = t * d() * a();
        LayerBytes out;
        out.kept = 4 * hidden + 2 * t * kWord;  // into and out of both norms; their scales
        if (const auto* gqa = std::get_if<GroupedQueryAttention>(&layer.attention)) {
            const double q = query(*gqa), kv = key(*gqa), heads = gqa->num_attention_heads / tp();
            out.kept += t * ((2 * q + 2 * kv) * a() + heads * kWord);  // q, k, v, out, logsumexp
            if (gqa->qk_norm || gqa->qk_norm_full)
                out.kept +=
                    t * ((q + kv) * a() +
                         (gqa->qk_norm_full ? 2 : heads + gqa->num_kv_heads / tp()) * kWord);
        }
        if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
            const double inner = t * dense->dense_hidden_size / tp() * a();
            out.kept += (gated(dense->activation) + 1) * inner;
            out.working = std::max(inner, hidden - inner);
            out.exchange = out.working;
            return out;
        }
        moe_bytes(std::get<MoeFeedForward>(layer.feed_forward), out);
        return out;
    }

    void moe_bytes(const MoeFeedForward& moe, LayerBytes& out) const {
        const double h = moe.num_moe_heads, units = tokens() * h, own = units / tp(),
                     hidden = tokens() * d() * a(), own_hidden = hidden / tp(), k = moe.top_k,
                     experts = moe.num_experts;
        const bool alone = layout_.expert_parallel_size * etp() == 1;
        // Rows that leave (nothing is padded to the capacity), and rows of our experts.
        const double sent = own * k * std::min(1.0, moe.capacity_factor.value_or(1.0)),
                     rows = sent * etp() * (alone ? 1 : std::max(1.0, load_)),
                     width = d() / h * a(), inner = moe.expert_hidden_size / etp() * a();
        out.kept += units * (experts + 1) * kWord;          // probabilities, logsumexp
        out.kept += (2 * units * k + 2 * own * k) * kWord;  // ids, gates; rows of slots and back
        if (moe.router_size > 0) out.kept += (units + experts) * moe.router_size * a();
        if (h > 1) out.kept += hidden + own_hidden;  // before the router; before the merge
        if (!alone) out.kept += 2 * rows * kWord;
        out.kept += rows * (width + (gated(moe.activation) + 1) * inner) + sent * width;
        if (moe.sub_norm) out.kept += rows * (inner + kWord);  // centred rows, their scales
        if (moe.num_shared_experts > 0)
            out.kept += tokens() * (moe.num_shared_experts * moe.shared_expert_hidden_size / tp() *
                                        (gated(moe.activation) + 1 + moe.sub_norm) * a() +
                                    moe.sub_norm * kWord);
        // Backward: gradients of the merge's input, of the gates, of the returned rows (which are
        // freed then), of the inner tensors (which are freed then), of the experts' input.
        const double before = own * k * kWord,
                     returned = sent * width;  // merge: its input is freed
        const double combine = before + returned,
                     inside = before + rows * width + rows * inner - returned,
                     behind = before + 2 * rows * width - returned - rows * inner;
        out.working = std::max({combine, inside, behind});
        const double copies = etp() > 1 ? sent * etp() * width : 0,
                     dispatch = before + copies + 2 * rows * width;  // returned is freed
        out.exchange = alone ? out.working : std::max(out.working, dispatch);
    }

    void activations(int index, const LayerChunk& layers, bool last, StageMemory& out) const {
        const double t = tokens(), hidden = t * d() * a();
        const double vocabulary = std::ceil(model_.vocab_size / tp());
        std::vector<LayerBytes> of_layers;
        double kept = 4 * t * kWord;  // ids of tokens, targets, positions and documents
        for (int i = layers.first; i < layers.first + layers.count; ++i) {
            of_layers.push_back(layer_bytes(model_.layers[std::size_t(i)]));
            kept += of_layers.back().kept;
        }
        const int passes = passes_of(index);
        // Other passes wait whole while one goes backward.
        const double waiting = (passes - 1) * (kept + (last ? hidden : 0));
        double peak = last ? kept + 3 * hidden + t * kWord +
                                 std::min(kHeadRows, t) * (vocabulary * a() + 2 * kWord)
                           : kept + hidden;
        double with_exchange = peak;
        for (std::size_t i = of_layers.size(); i-- > 0;) {
            peak = std::max(peak, kept + hidden + of_layers[i].working);
            with_exchange = std::max(with_exchange, kept + hidden + of_layers[i].exchange);
            kept -= of_layers[i].kept;
        }
        with_exchange = std::max(with_exchange, peak);
        out.activations = Bytes{waiting + peak};
        out.dispatch = Bytes{with_exchange - peak};
    }

    int passes_of(int index) const {
        const int m = schedule_.num_micro_batches;
        for (const LayerSpec& layer : model_.layers) {
            const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward);
            // Its counts are of the whole step: all forward passes come first.
            if (moe && moe->balance == BalanceScope::global) return m;
        }
        return schedule_.pipeline == Pipeline::gpipe
                   ? m
                   : std::min(m, layout_.pipeline_parallel_size - index);
    }

    double a() const { return schedule_.precision == Precision::fp32 ? 4 : 2; }
    double d() const { return model_.hidden_size; }
    double norm() const { return model_.norm == Norm::layer ? 2 * d() : d(); }
    double tp() const { return layout_.tensor_parallel_size; }
    double etp() const { return layout_.expert_tensor_parallel_size; }
    double tokens() const { return double(schedule_.micro_batch_size) * schedule_.sequence_length; }
    double query(const GroupedQueryAttention& gqa) const {
        return double(gqa.num_attention_heads) * gqa.head_size / tp();
    }
    double key(const GroupedQueryAttention& gqa) const {
        return double(gqa.num_kv_heads) * gqa.head_size / tp();
    }

    const ModelSpec& model_;
    const ParallelLayout& layout_;
    const StepSchedule& schedule_;
    double load_;
};

}  // namespace

std::vector<StageMemory> trainer_memory_by_stage(const ModelSpec& model,
                                                 const ParallelLayout& layout,
                                                 const StepSchedule& schedule,
                                                 double hot_rank_load) {
    const Trainer trainer(model, layout, schedule, hot_rank_load);
    const auto chunks = stage_chunks(int(model.layers.size()), layout, schedule);
    std::vector<StageMemory> out;
    for (std::size_t s = 0; s < chunks.size(); ++s)
        out.push_back(trainer.stage(int(s), chunks[s].front()));
    return out;
}

}  // namespace moeplan
