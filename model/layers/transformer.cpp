#include "model/layers/transformer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/errors.hpp"

namespace moeplan {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr double kNormEpsilon = 1e-6;
constexpr std::int64_t kHeadRows = 1024;  ///< tokens whose logits are in memory at once

}  // namespace

Transformer::Transformer(Runtime& rt, const ModelSpec& model, ExpertGroup& group, Seed seed)
    : rt_(rt), model_(model), parameters_(rt) {
    const auto refuse = [&](const char* field, const std::string& value, const char* expected) {
        throw InputError(model.name, field, value, expected);
    };
    if (model.hidden_size < 1)
        refuse("hidden_size", std::to_string(model.hidden_size), "1 or more");
    if (model.vocab_size < 2) refuse("vocab_size", std::to_string(model.vocab_size), "2 or more");
    if (model.layers.empty()) refuse("layers", "none", "1 or more");
    if (model.num_mtp_layers != 0)
        refuse("num_mtp_layers", std::to_string(model.num_mtp_layers),
               "0: training has no multi-token prediction yet");
    parameters_.set_seed(derive(seed, "parameters"));
    const std::int64_t hidden = model.hidden_size, vocabulary = model.vocab_size;
    const auto vector = [&](const std::string& name) {
        Parameter* weight = &parameters_.make(name, {hidden}, 0, 1, Held::by_all, 0, false);
        if (model.norm == Norm::layer)
            norm_bias_[weight] =
                &parameters_.make(name + "_bias", {hidden}, 0, 0, Held::by_all, 0, false);
        return weight;
    };
    // The embedding begins as wide as what the first layers add; the head narrow, so that the first
    // loss is ln V.
    embedding_ =
        &parameters_.make("embedding", {vocabulary, hidden}, model.tied_embeddings ? 0.02 : 0.1);
    blocks_.resize(model.layers.size());
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
        const std::string name = "layers." + std::to_string(i);
        Block& block = blocks_[i];
        block.attention_norm = vector(name + ".attention_norm");
        block.attention = std::make_unique<SelfAttention>(rt, parameters_, name + ".attention",
                                                          model, model.layers[i]);
        block.feed_forward_norm = vector(name + ".feed_forward_norm");
        if (const auto* moe = std::get_if<MoeFeedForward>(&model.layers[i].feed_forward)) {
            block.moe = std::make_unique<MoeLayer>(rt, parameters_, name + ".moe", model, *moe,
                                                   group, int(i), seed);
        } else {
            const auto& dense = std::get<DenseFeedForward>(model.layers[i].feed_forward);
            if (dense.dense_hidden_size < 1)
                refuse("dense_hidden_size", std::to_string(dense.dense_hidden_size), "1 or more");
            block.dense = std::make_unique<ExpertNetworks>(
                rt, parameters_, name + ".dense", hidden, dense.dense_hidden_size, dense.activation,
                dense.bias, int(model.layers.size()));
        }
    }
    final_norm_ = vector("final_norm");
    lm_head_ = model.tied_embeddings ? embedding_
                                     : &parameters_.make("lm_head", {vocabulary, hidden}, 0.02);
}

std::vector<MoeLayer*> Transformer::moe_layers() {
    std::vector<MoeLayer*> out;
    for (Block& block : blocks_)
        if (block.moe) out.push_back(block.moe.get());
    return out;
}

Tensor Transformer::embed(const MicroBatch& batch) {
    Tensor x = rt_.tensor(batch.num_tokens() * model_.hidden_size);
    rt_.run(rt_.kernels.embedding_forward,
            EmbeddingForward{batch.tokens.ids(), embedding_->value.data(), x.data(),
                             batch.num_tokens(), model_.hidden_size, model_.vocab_size, rt_.format},
            "embedding_forward");
    return x;
}

Tensor Transformer::norm(const Tensor& x, Parameter* weight, Tensor& scale, std::int64_t rows) {
    Tensor y = rt_.tensor(x.count());
    scale = rt_.statistic(rows);
    RmsNormForward call{x.data(), weight->value.data(), y.data(),     scale.data(),
                        rows,     model_.hidden_size,   kNormEpsilon, rt_.format};
    if (norm_bias_.empty()) {
        rt_.run(rt_.kernels.rms_norm_forward, call, "rms_norm_forward");
        return y;
    }
    Tensor centred = rt_.tensor(x.count());  // LayerNorm: model/layers/norm.hpp
    centre_rows(rt_, x.data(), centred.data(), rows, model_.hidden_size);
    call.x = centred.data();
    call.epsilon = kLayerNormEpsilon;
    rt_.run(rt_.kernels.rms_norm_forward, call, "rms_norm_forward");
    add_bias(rt_, y.data(), norm_bias_.at(weight)->value.data(), rows, model_.hidden_size);
    return y;
}

/// Adds to dx: the residual's gradient is there already.
void Transformer::norm_backward(const Tensor& x, Parameter* weight, const Tensor& scale,
                                const Tensor& dy, Tensor& dx, std::int64_t rows) {
    RmsNormBackward call{
        x.data(), weight->value.data(), scale.data(), dy.data(), dx.data(), weight->gradient.data(),
        rows,     model_.hidden_size,   true,         rt_.format};
    if (norm_bias_.empty())
        return rt_.run(rt_.kernels.rms_norm_backward, call, "rms_norm_backward");
    Tensor centred = rt_.tensor(x.count()), dcentred = rt_.tensor(x.count());
    centre_rows(rt_, x.data(), centred.data(), rows, model_.hidden_size);
    call.x = centred.data();
    call.dx = dcentred.data();
    call.accumulate = false;
    add_bias_gradient(rt_, dy.data(), norm_bias_.at(weight)->gradient.data(), rows,
                      model_.hidden_size);
    rt_.run(rt_.kernels.rms_norm_backward, call, "rms_norm_backward");
    centre_rows(rt_, dcentred.data(), dcentred.data(), rows, model_.hidden_size);
    add(rt_, dx.data(), dcentred.data(), dx.data(), dx.count());
}

Tensor Transformer::block_forward(Block& block, Tensor x, const MicroBatch& batch, Saved& saved,
                                  Result& result, std::vector<MoeChoices>* choices,
                                  const AfterMoe& after_moe) {
    const std::int64_t rows = batch.num_tokens();
    saved.in = std::move(x);
    saved.attention_in = norm(saved.in, block.attention_norm, saved.attention_scale, rows);
    saved.middle = block.attention->forward(saved.attention_in, batch, saved.attention);
    add(rt_, saved.in.data(), saved.middle.data(), saved.middle.data(), saved.in.count());
    saved.feed_forward_in =
        norm(saved.middle, block.feed_forward_norm, saved.feed_forward_scale, rows);
    Tensor y;
    if (block.moe) {
        result.moe.emplace_back();
        if (choices) choices->emplace_back();
        MoeObserved observed;
        do {
            y = block.moe->forward(saved.feed_forward_in, batch, saved.moe, result.moe.back(),
                                   choices ? &choices->back() : nullptr,
                                   after_moe ? &observed : nullptr);
            if (after_moe)
                observed.residual =
                    rt_.download(saved.middle.data(), saved.middle.count(), rt_.format);
        } while (after_moe && after_moe(result.moe.size() - 1, *block.moe, observed));
    } else {
        y = block.dense->forward_all(saved.feed_forward_in.data(), rows, saved.dense);
    }
    add(rt_, saved.middle.data(), y.data(), y.data(), y.count());
    return y;
}

void Transformer::block_backward(Block& block, Tensor& dx, const MicroBatch& batch, Saved& saved) {
    const std::int64_t rows = batch.num_tokens();
    {
        const Tensor d =
            block.moe
                ? block.moe->backward(saved.feed_forward_in, dx, batch, saved.moe)
                : block.dense->backward_all(saved.feed_forward_in.data(), dx, rows, saved.dense);
        norm_backward(saved.middle, block.feed_forward_norm, saved.feed_forward_scale, d, dx, rows);
    }
    {
        const Tensor d = block.attention->backward(saved.attention_in, dx, batch, saved.attention);
        norm_backward(saved.in, block.attention_norm, saved.attention_scale, d, dx, rows);
    }
    saved = {};
}

void Transformer::head(const Tensor& hidden, const MicroBatch& batch, Tensor* dhidden,
                       Result& result, bool keep_token_loss, double& backward_seconds) {
    const std::int64_t tokens = batch.num_tokens(), width = model_.hidden_size,
                       vocabulary = model_.vocab_size;
    const double scale = batch.loss_weight / double(tokens);
    Tensor losses = rt_.statistic(tokens), sums = rt_.statistic(std::min(kHeadRows, tokens)),
           logits = rt_.tensor(std::min(kHeadRows, tokens) * vocabulary);
    for (std::int64_t first = 0; first < tokens; first += kHeadRows) {
        const std::int64_t rows = std::min(kHeadRows, tokens - first);
        const void* x = at(hidden.data(), first * width, rt_.format);
        const std::int32_t* targets = batch.targets.ids() + first;
        linear_forward(rt_, x, lm_head_->value.data(), logits.data(), rows, width, vocabulary);
        rt_.run(rt_.kernels.cross_entropy_forward,
                CrossEntropyForward{logits.data(), targets, at(losses.data(), first, rt_.stat),
                                    sums.data(), rows, vocabulary, rt_.format},
                "cross_entropy_forward");
        if (!dhidden) continue;
        const auto begin = Clock::now();
        rt_.run(rt_.kernels.cross_entropy_backward,
                CrossEntropyBackward{logits.data(), sums.data(), targets, logits.data(), rows,
                                     vocabulary, scale, rt_.format},
                "cross_entropy_backward");
        linear_backward(rt_, x, lm_head_->value.data(), logits.data(),
                        at(dhidden->data(), first * width, rt_.format), lm_head_->gradient.data(),
                        rows, width, vocabulary);
        backward_seconds += seconds_since(begin);
    }
    std::vector<double> token_loss = rt_.download(losses.data(), tokens, rt_.stat);
    for (const double loss : token_loss) result.loss_sum += loss;
    if (keep_token_loss) result.token_loss = std::move(token_loss);
}

Transformer::Result Transformer::train(const MicroBatch& batch, std::vector<MoeChoices>* choices,
                                       double& forward_seconds, double& backward_seconds) {
    const auto begin = Clock::now();
    const std::int64_t rows = batch.num_tokens();
    Result result;
    std::vector<Saved> saved(blocks_.size());
    Tensor x = embed(batch);
    for (std::size_t i = 0; i < blocks_.size(); ++i)
        x = block_forward(blocks_[i], std::move(x), batch, saved[i], result, choices);
    Tensor scale;
    Tensor hidden = norm(x, final_norm_, scale, rows);
    Tensor dhidden = rt_.tensor(hidden.count());
    double head_backward = 0;
    head(hidden, batch, &dhidden, result, false, head_backward);
    check(rt_.backend.synchronise(rt_.stream), "synchronise");
    forward_seconds += seconds_since(begin) - head_backward;

    const auto turn = Clock::now();
    hidden.reset();
    Tensor dx = rt_.tensor(x.count());
    rt_.zero(dx);
    norm_backward(x, final_norm_, scale, dhidden, dx, rows);
    x.reset();
    dhidden.reset();
    for (std::size_t i = blocks_.size(); i-- > 0;) block_backward(blocks_[i], dx, batch, saved[i]);
    rt_.run(rt_.kernels.embedding_backward,
            EmbeddingBackward{batch.tokens.ids(), dx.data(), embedding_->gradient.data(), rows,
                              model_.hidden_size, model_.vocab_size, rt_.format},
            "embedding_backward");
    check(rt_.backend.synchronise(rt_.stream), "synchronise");
    backward_seconds += seconds_since(turn) + head_backward;
    return result;
}

Transformer::Result Transformer::evaluate(const MicroBatch& batch, std::vector<MoeChoices>* choices,
                                          const AfterMoe& after_moe) {
    Result result;
    Tensor x = embed(batch);
    for (Block& block : blocks_) {
        Saved saved;
        x = block_forward(block, std::move(x), batch, saved, result, choices, after_moe);
    }
    Tensor scale;
    const Tensor hidden = norm(x, final_norm_, scale, batch.num_tokens());
    double unused = 0;
    head(hidden, batch, nullptr, result, true, unused);
    return result;
}

std::string Transformer::first_bad_part(const MicroBatch& batch) {
    const auto bad = [&](const Tensor& tensor) {
        for (const double value : rt_.download(tensor.data(), tensor.count(), tensor.format()))
            if (!std::isfinite(value)) return true;
        return false;
    };
    Result result;
    Tensor x = embed(batch);
    if (bad(x)) return "embedding";
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
        Saved saved;
        x = block_forward(blocks_[i], std::move(x), batch, saved, result, nullptr);
        const std::string name = "layers." + std::to_string(i);
        if (bad(saved.middle)) return name + ".attention";
        if (blocks_[i].moe && !(std::isfinite(result.moe.back().balance_loss) &&
                                std::isfinite(result.moe.back().z_loss)))
            return name + ".moe.router";
        if (bad(x)) return name + (blocks_[i].moe ? ".moe" : ".dense");
    }
    Tensor scale;
    if (bad(norm(x, final_norm_, scale, batch.num_tokens()))) return "final_norm";
    for (const Parameter* parameter : parameters_.all())
        if (bad(parameter->value)) return parameter->name;
    return "lm_head";
}

}  // namespace moeplan
