#include "simulator/graph/stage_passes.hpp"

namespace moeplan {
namespace {

std::size_t index_of(BackwardPart part) { return static_cast<std::size_t>(part); }

}  // namespace

StagePasses::StagePasses(const StepCase& step, std::vector<Work>& works, bool splits_backward)
    : make_(step, works),
      splits_backward_(splits_backward),
      embedding_forward_(make_.embedding(true)),
      embedding_backward_(make_.embedding(false)),
      head_forward_(make_.head(true, BackwardPart::both)) {
    head_backward_[index_of(BackwardPart::both)] = make_.head(false, BackwardPart::both);
    if (!splits_backward) return;
    for (const BackwardPart part : {BackwardPart::input, BackwardPart::weight})
        head_backward_[index_of(part)] = make_.head(false, part);
}

const StagePasses::OfLayer& StagePasses::of(const LayerSpec& layer) {
    for (const auto& [spec, made] : layers_)
        if (spec == layer) return *made;
    auto made = std::make_unique<OfLayer>();
    made->forward = make_.forward(layer);
    made->backward[index_of(BackwardPart::both)] = make_.backward(layer, BackwardPart::both);
    if (splits_backward_)
        for (const BackwardPart part : {BackwardPart::input, BackwardPart::weight})
            made->backward[index_of(part)] = make_.backward(layer, part);
    layers_.emplace_back(layer, std::move(made));
    return *layers_.back().second;
}

const LayerPass& StagePasses::mtp_projection_forward() {
    if (!mtp_forward_) mtp_forward_ = make_.mtp_projection(true, BackwardPart::both);
    return *mtp_forward_;
}

const LayerPass& StagePasses::mtp_projection_backward(BackwardPart part) {
    auto& made = mtp_backward_[index_of(part)];
    if (!made) made = make_.mtp_projection(false, part);
    return *made;
}

}  // namespace moeplan
