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

}  // namespace

Transformer::Transformer(Runtime& rt, const ModelSpec& model, RankGroups& groups, Seed seed,
                         std::optional<LayerChunk> layers, bool sharded)
    : rt_(rt),
      model_(model),
      groups_(groups),
      parameters_(rt),
      layers_(layers.value_or(LayerChunk{0, int(model.layers.size())})),
      vocabulary_(rt, groups, model.vocab_size, model.hidden_size) {
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
    parameters_.set_holders(groups, sharded);
    parameters_.set_seed(derive(seed, "parameters"));
    const std::int64_t hidden = model.hidden_size;
    const auto vector = [&](const std::string& name) {
        Parameter* weight = &parameters_.make(name, {hidden}, 0, 1, Held::by_all, 0, false);
        if (model.norm == Norm::layer)
            norm_bias_[weight] =
                &parameters_.make(name + "_bias", {hidden}, 0, 0, Held::by_all, 0, false);
        return weight;
    };
    // The embedding begins as wide as what the first layers add; the head narrow, so that the first
    // loss is ln V.
    const double embedding_deviation = model.tied_embeddings ? 0.02 : 0.1;
    if (groups.is_first_stage())
        embedding_ = &vocabulary_.make(parameters_, "embedding", embedding_deviation, true);
    for (int i = 0; i < layers_.first; ++i)
        first_moe_layer_ +=
            std::holds_alternative<MoeFeedForward>(model.layers[std::size_t(i)].feed_forward);
    blocks_.resize(std::size_t(layers_.count));
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
        const std::size_t i = b + std::size_t(layers_.first);
        const std::string name = "layers." + std::to_string(i);
        Block& block = blocks_[b];
        block.name = name;
        block.forward_name = name + ".forward";
        block.backward_name = name + ".backward";
        block.attention_norm = vector(name + ".attention_norm");
        block.attention = std::make_unique<SelfAttention>(rt, parameters_, name + ".attention",
                                                          model, model.layers[i], groups);
        block.feed_forward_norm = vector(name + ".feed_forward_norm");
        if (const auto* moe = std::get_if<MoeFeedForward>(&model.layers[i].feed_forward)) {
            block.moe = std::make_unique<MoeLayer>(rt, parameters_, name + ".moe", model, *moe,
                                                   groups, int(i), seed);
        } else {
            const auto& dense = std::get<DenseFeedForward>(model.layers[i].feed_forward);
            if (dense.dense_hidden_size < 1)
                refuse("dense_hidden_size", std::to_string(dense.dense_hidden_size), "1 or more");
            block.dense = std::make_unique<ExpertNetworks>(
                rt, parameters_, name + ".dense", hidden, dense.dense_hidden_size, dense.activation,
                dense.bias, int(model.layers.size()), Held::by_all, 1, 0, groups.tensor.rank(),
                groups.tensor.size());
        }
    }
    if (!groups.is_last_stage()) return;
    final_norm_ = vector("final_norm");
    if (!model.tied_embeddings)
        lm_head_ = &vocabulary_.make(parameters_, "lm_head", 0.02, true);
    else if (embedding_)
        lm_head_ = embedding_;
    else  // the first stage's table, once more
        lm_head_ = &vocabulary_.make(parameters_, "embedding", embedding_deviation, false);
}

std::vector<MoeLayer*> Transformer::moe_layers() {
    std::vector<MoeLayer*> out;
    for (Block& block : blocks_)
        if (block.moe) out.push_back(block.moe.get());
    return out;
}

bool Transformer::has_global_balance() const {
    return std::any_of(model_.layers.begin(), model_.layers.end(), [](const LayerSpec& layer) {
        const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward);
        return moe && moe->balance == BalanceScope::global;
    });
}

Parameter* Transformer::tied_embedding() const {
    if (!model_.tied_embeddings || groups_.tied.size() == 1) return nullptr;
    return embedding_ ? embedding_ : lm_head_;
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

/// norm(x + delta). The sum takes delta's place.
Tensor Transformer::add_norm(const Tensor& x, Tensor& delta, Parameter* weight, Tensor& scale,
                             std::int64_t rows) {
    if (!norm_bias_.empty()) {
        add(rt_, x.data(), delta.data(), delta.data(), x.count());
        return norm(delta, weight, scale, rows);
    }
    Tensor y = rt_.tensor(x.count());
    scale = rt_.statistic(rows);
    rt_.run(rt_.kernels.residual_rms_norm_forward,
            ResidualRmsNormForward{x.data(), delta.data(), weight->value.data(), delta.data(),
                                   y.data(), scale.data(), rows, model_.hidden_size, kNormEpsilon,
                                   rt_.format},
            "residual_rms_norm_forward");
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

void Transformer::enter(Tensor x, Saved& first, std::int64_t rows) {
    first.in = std::move(x);
    if (!blocks_.empty())
        first.attention_in =
            norm(first.in, blocks_.front().attention_norm, first.attention_scale, rows);
}

/// @param saved  of this block, entered: by `enter`, or by the block before
/// @param next   entered with this block's output; of the last block its `in` alone
void Transformer::block_forward(std::size_t index, const MicroBatch& batch, Saved& saved,
                                Saved& next, Result& result, std::vector<MoeChoices>* choices,
                                const AfterMoe& after_moe) {
    const std::int64_t rows = batch.num_tokens();
    Block& block = blocks_[index];
    const CachingAllocator::Purpose purpose(rt_.memory, "activations", block.name);
    Tensor y;
    rt_.stretch(block.forward_name, [&] {
        saved.middle = block.attention->forward(saved.attention_in, batch, saved.attention);
        saved.feed_forward_in = add_norm(saved.in, saved.middle, block.feed_forward_norm,
                                         saved.feed_forward_scale, rows);
        if (block.dense)
            y = block.dense->forward_all(saved.feed_forward_in.data(), rows, saved.dense);
    });
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
        sum_over(rt_, groups_.tensor, y.data(), y.count(), y.format(), groups_.times.tensor);
    }
    if (index + 1 < blocks_.size())
        next.attention_in = add_norm(saved.middle, y, blocks_[index + 1].attention_norm,
                                     next.attention_scale, rows);
    else
        add(rt_, saved.middle.data(), y.data(), y.data(), y.count());
    next.in = std::move(y);
}

void Transformer::block_backward(Block& block, Tensor& dx, const MicroBatch& batch, Saved& saved) {
    const std::int64_t rows = batch.num_tokens();
    const CachingAllocator::Purpose purpose(rt_.memory, "gradients of activations", block.name);
    Tensor d;
    if (block.moe) d = block.moe->backward(saved.feed_forward_in, dx, batch, saved.moe);
    rt_.stretch(block.backward_name, [&] {
        if (block.dense) {
            d = block.dense->backward_all(saved.feed_forward_in.data(), dx, rows, saved.dense);
            sum_over(rt_, groups_.tensor, d.data(), d.count(), d.format(), groups_.times.tensor);
        }
        norm_backward(saved.middle, block.feed_forward_norm, saved.feed_forward_scale, d, dx, rows);
        d.reset();
        d = block.attention->backward(saved.attention_in, dx, batch, saved.attention);
        norm_backward(saved.in, block.attention_norm, saved.attention_scale, d, dx, rows);
    });
    saved = {};
}

Tensor Transformer::forward(const MicroBatch& batch, Tensor in, Pass& pass,
                            std::vector<MoeChoices>* choices) {
    const auto begin = Clock::now();
    pass.blocks.resize(blocks_.size());
    Saved last;
    const auto saved = [&](std::size_t i) -> Saved& {
        return i < blocks_.size() ? pass.blocks[i] : last;
    };
    enter(embedding_ && groups_.is_first_stage() ? vocabulary_.embed(*embedding_, batch)
                                                 : std::move(in),
          saved(0), batch.num_tokens());
    for (std::size_t i = 0; i < blocks_.size(); ++i)
        block_forward(i, batch, saved(i), saved(i + 1), pass.result, choices);
    Tensor x = std::move(last.in);
    check(rt_.backend.synchronise(rt_.stream), "synchronise");
    pass.forward_seconds += seconds_since(begin);
    if (!groups_.is_last_stage()) return x;
    pass.last = std::move(x);
    return {};
}

/// The head's forward and backward pass; the gradient of the last layer's output.
Tensor Transformer::head_backward(const MicroBatch& batch, Pass& pass) {
    const auto begin = Clock::now();
    const std::int64_t rows = batch.num_tokens();
    Tensor scale;
    Tensor hidden = norm(pass.last, final_norm_, scale, rows);
    Tensor dhidden = rt_.tensor(hidden.count());
    double head_backward = 0;
    for (const double loss : vocabulary_.loss(*lm_head_, hidden, batch, &dhidden, head_backward))
        pass.result.loss_sum += loss;
    hidden.reset();
    pass.forward_seconds += seconds_since(begin) - head_backward;
    const auto turn = Clock::now();
    Tensor dx = rt_.tensor(pass.last.count());
    rt_.zero(dx);
    norm_backward(pass.last, final_norm_, scale, dhidden, dx, rows);
    pass.last.reset();
    pass.backward_seconds += seconds_since(turn) + head_backward;
    return dx;
}

Tensor Transformer::backward(const MicroBatch& batch, Pass& pass, Tensor dout) {
    Tensor dx = groups_.is_last_stage() ? head_backward(batch, pass) : std::move(dout);
    const auto begin = Clock::now();
    for (std::size_t i = blocks_.size(); i-- > 0;)
        block_backward(blocks_[i], dx, batch, pass.blocks[i]);
    if (groups_.is_first_stage()) {
        vocabulary_.embed_backward(*embedding_, batch, dx);
        dx.reset();
    }
    check(rt_.backend.synchronise(rt_.stream), "synchronise");
    pass.backward_seconds += seconds_since(begin);
    return dx;
}

void Transformer::settle_balance(const std::vector<Pass*>& passes) {
    // Counts and units of every global layer of the stage, in one message.
    std::vector<double> counts;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
        const MoeLayer* moe = blocks_[i].moe.get();
        if (!moe || moe->spec().balance != BalanceScope::global) continue;
        std::vector<double> of_layer(std::size_t(moe->spec().num_experts) + 1, 0);
        for (const Pass* pass : passes) {
            const MoeLayer::Saved& saved = pass->blocks[i].moe;
            for (std::size_t e = 0; e < saved.balance_counts.size(); ++e)
                of_layer[e] += saved.balance_counts[e];
            of_layer.back() += double(saved.scope_units);
        }
        counts.insert(counts.end(), of_layer.begin(), of_layer.end());
    }
    if (counts.empty()) return;
    const auto begin = Clock::now();
    groups_.host_data.all_reduce(counts.data(), std::int64_t(counts.size()), NumberFormat::f64);
    groups_.times.balance += seconds_since(begin);
    std::size_t at = 0, layer = 0;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
        MoeLayer* moe = blocks_[i].moe.get();
        if (!moe) continue;
        if (moe->spec().balance == BalanceScope::global) {
            const auto first = counts.begin() + std::ptrdiff_t(at);
            const std::vector<double> of_layer(first, first + moe->spec().num_experts);
            at += of_layer.size();
            for (Pass* pass : passes)
                moe->weigh_balance(pass->blocks[i].moe, pass->result.moe[layer], of_layer,
                                   counts[at]);
            ++at;
        }
        ++layer;
    }
}

Transformer::Result Transformer::train(const MicroBatch& batch, std::vector<MoeChoices>* choices,
                                       double& forward_seconds, double& backward_seconds) {
    Pass pass;
    forward(batch, {}, pass, choices);
    settle_balance({&pass});
    backward(batch, pass, {});
    forward_seconds += pass.forward_seconds;
    backward_seconds += pass.backward_seconds;
    return std::move(pass.result);
}

Transformer::Result Transformer::evaluate(const MicroBatch& batch, std::vector<MoeChoices>* choices,
                                          const AfterMoe& after_moe, Tensor in, Tensor* out) {
    Result result;
    Saved saved;
    enter(groups_.is_first_stage() ? vocabulary_.embed(*embedding_, batch) : std::move(in), saved,
          batch.num_tokens());
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
        Saved next;
        block_forward(i, batch, saved, next, result, choices, after_moe);
        MoeLayer* moe = blocks_[i].moe.get();
        if (moe && moe->spec().balance == BalanceScope::global)  // of this batch alone
            moe->weigh_balance(saved.moe, result.moe.back(), saved.moe.balance_counts,
                               double(saved.moe.scope_units));
        saved = std::move(next);
    }
    Tensor x = std::move(saved.in);
    if (!groups_.is_last_stage()) {
        *out = std::move(x);
        return result;
    }
    Tensor scale;
    const Tensor hidden = norm(x, final_norm_, scale, batch.num_tokens());
    double unused = 0;
    result.token_loss = vocabulary_.loss(*lm_head_, hidden, batch, nullptr, unused);
    for (const double loss : result.token_loss) result.loss_sum += loss;
    return result;
}

std::string Transformer::first_bad_part(const MicroBatch& batch, Tensor in, Tensor* out) {
    // Every rank runs the whole pass whatever it finds: the others exchange with it.
    std::string found;
    const auto look = [&](const Tensor& tensor, const std::string& name) {
        if (!found.empty()) return;
        for (const double value : rt_.download(tensor.data(), tensor.count(), tensor.format()))
            if (!std::isfinite(value)) {
                found = name;
                return;
            }
    };
    Result result;
    Saved saved;
    enter(groups_.is_first_stage() ? vocabulary_.embed(*embedding_, batch) : std::move(in), saved,
          batch.num_tokens());
    if (groups_.is_first_stage()) look(saved.in, "embedding");
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
        Saved next;
        block_forward(i, batch, saved, next, result, nullptr);
        const std::string name = "layers." + std::to_string(i + std::size_t(layers_.first));
        look(saved.middle, name + ".attention");
        if (found.empty() && blocks_[i].moe && !std::isfinite(result.moe.back().z_loss))
            found = name + ".moe.router";
        look(next.in, name + (blocks_[i].moe ? ".moe" : ".dense"));
        saved = std::move(next);
    }
    Tensor x = std::move(saved.in);
    if (groups_.is_last_stage()) {
        Tensor scale;
        look(norm(x, final_norm_, scale, batch.num_tokens()), "final_norm");
    } else {
        *out = std::move(x);
    }
    for (const Parameter* parameter : parameters_.all()) look(parameter->value, parameter->name);
    return found;
}

}  // namespace moeplan
