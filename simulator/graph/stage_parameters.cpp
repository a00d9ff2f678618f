#include "simulator/graph/stage_parameters.hpp"

#include "model/op_counts.hpp"

namespace moeplan {

HeldParameters& HeldParameters::operator+=(const HeldParameters& other) {
    dense += other.dense;
    expert += other.expert;
    copied += other.copied;
    return *this;
}

std::array<GroupParameters, 2> by_group(const HeldParameters& held) {
    return {{{Group::data_context, held.dense}, {Group::expert_data, held.expert}}};
}

StageParameters::StageParameters(const StepCase& step, const PipelineShape& pipeline,
                                 const StepLoads& loads, int stage_ranks)
    : step_(step), pipeline_(pipeline), loads_(loads), stage_ranks_(stage_ranks) {}

int StageParameters::replicas_of(Group group) const {
    const ParallelLayout& l = step_.layout;
    return group == Group::data_context
               ? stage_ranks_ / l.tensor_parallel_size
               : stage_ranks_ / (l.expert_parallel_size * l.expert_tensor_parallel_size);
}

HeldParameters StageParameters::of_head() const {
    const ModelSpec& model = step_.model;
    const double tp = step_.layout.tensor_parallel_size;
    const bool own = !model.tied_embeddings || !pipeline_.ends_meet();
    HeldParameters head{(own ? static_cast<double>(model.vocab_size) * model.hidden_size / tp : 0) +
                            model.hidden_size,
                        0};
    for (int extra = 0; extra < model.num_mtp_layers; ++extra) {
        head += of_layer(static_cast<int>(model.layers.size()) - 1);
        head.dense += 2.0 * model.hidden_size * model.hidden_size;
    }
    return head;
}

HeldParameters StageParameters::of_layer(int layer) const {
    const ParallelLayout& l = step_.layout;
    const double tp = l.tensor_parallel_size;
    if (layer == kEmbedding)
        return {static_cast<double>(step_.model.vocab_size) * step_.model.hidden_size / tp, 0};
    if (layer == kHead) return of_head();
    const LayerSpec& spec = step_.model.layers[layer];
    const LayerParameters parameters = layer_parameters(step_.model, spec);
    HeldParameters out;
    out.dense =
        static_cast<double>(parameters.attention + parameters.dense + parameters.shared_experts) /
            tp +
        static_cast<double>(parameters.router + parameters.mh_projections + parameters.norms);
    if (const auto* moe = std::get_if<MoeFeedForward>(&spec.feed_forward)) {
        const double one =
            static_cast<double>(parameters.one_expert) / l.expert_tensor_parallel_size;
        out.expert = one * moe->num_experts / l.expert_parallel_size;
        if (step_.placement) {
            const LayerPlacement& here = step_.placement->of(loads_.moe_layer(layer));
            out.expert = one * slots_per_rank(here, l.expert_parallel_size);
            out.copied = one * copied_per_rank(here, l.expert_parallel_size);
        }
    }
    return out;
}

std::vector<int> StageParameters::layers_of(int lane) const {
    std::vector<int> out;
    if (pipeline_.holds_embedding(lane)) out.push_back(kEmbedding);
    for (const LayerChunk& chunk : pipeline_.chunks_of(lane))
        for (int l = chunk.first; l < chunk.first + chunk.count; ++l) out.push_back(l);
    if (pipeline_.holds_head(lane)) out.push_back(kHead);
    return out;
}

HeldParameters StageParameters::of_lane(int lane) const {
    HeldParameters all;
    for (const int layer : layers_of(lane)) all += of_layer(layer);
    return all;
}

void StageParameters::add_tensors(int layer, std::vector<GroupParameters>& out) const {
    const HeldParameters all = of_layer(layer);
    double lump = all.dense;
    const auto matrix = [&](double rows, double columns, double split) {
        out.push_back({Group::data_context, rows * columns / split});
        lump -= out.back().count;
    };
    const double hidden = step_.model.hidden_size, tp = step_.layout.tensor_parallel_size;
    if (layer < 0) {
        if (all.dense >= hidden * step_.model.vocab_size / tp)
            matrix(hidden, step_.model.vocab_size, tp);
    } else {
        const LayerSpec& spec = step_.model.layers[layer];
        if (const auto* a = std::get_if<GroupedQueryAttention>(&spec.attention)) {
            for (const int heads :
                 {a->num_attention_heads, a->num_attention_heads, a->num_kv_heads, a->num_kv_heads})
                matrix(hidden, static_cast<double>(heads) * a->head_size, tp);
        }
        const auto gated = [](Activation activation) {
            return activation == Activation::swiglu ? 2.0 : 1.0;
        };
        if (const auto* dense = std::get_if<DenseFeedForward>(&spec.feed_forward)) {
            matrix(hidden, gated(dense->activation) * dense->dense_hidden_size, tp);
            matrix(hidden, dense->dense_hidden_size, tp);
        } else {
            const auto& moe = std::get<MoeFeedForward>(spec.feed_forward);
            const double gates = gated(moe.activation);
            out.push_back({Group::expert_data, all.expert * gates / (gates + 1)});
            out.push_back({Group::expert_data, all.expert / (gates + 1)});
            if (moe.num_moe_heads > 1)
                for (int projection = 0; projection < 2; ++projection) matrix(hidden, hidden, 1);
        }
    }
    if (lump > 0) out.push_back({Group::data_context, lump});
}

std::vector<GroupParameters> StageParameters::tensors_of_lane(int lane) const {
    std::vector<GroupParameters> out;
    for (const int layer : layers_of(lane)) add_tensors(layer, out);
    std::erase_if(out, [&](const GroupParameters& tensor) {
        return !(tensor.count > 0) || replicas_of(tensor.group) < 2;
    });
    return out;
}

}  // namespace moeplan
