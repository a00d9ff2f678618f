/// Prints, as JSON, what our layers and whole models compute in small cases, with all that is
/// needed to compute the same elsewhere: shapes, tokens, documents, numbers of the draws.
/// reference.py reads it and compares.

#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "core/json.hpp"
#include "model/layers/transformer.hpp"
#include "model/micro_batch.hpp"
#include "tests/model/layers/small_models.hpp"

namespace moeplan {
namespace {

using namespace testing;

/// Name → model. Together they hold every routing, expert form, attention form and balance scope.
std::map<std::string, ModelSpec> cases() {
    std::map<std::string, ModelSpec> out;
    for (const char* kind : {"top_k", "mh_moe", "emo", "switch", "gshard", "gshard_raw", "x_moe",
                             "x_moe_cosine", "sigmoid_top_k", "domain"})
        out[kind] = named_model(kind);
    const auto change_moe = [](ModelSpec model,
                               const std::function<void(MoeFeedForward&)>& change) {
        for (LayerSpec& layer : model.layers) change(std::get<MoeFeedForward>(layer.feed_forward));
        return model;
    };
    out["top_k_renormalised_swiglu"] = change_moe(out["top_k"], [](MoeFeedForward& moe) {
        moe.renormalise_gates = true;
        moe.activation = Activation::swiglu;
        moe.balance = BalanceScope::sequence;
    });
    out["top_k_bias_gelu_capacity"] = change_moe(out["top_k"], [](MoeFeedForward& moe) {
        moe.activation = Activation::gelu;
        moe.bias = moe.router_bias = true;
        moe.capacity_factor = 0.75;
        moe.routed_scale = 1.5;
    });
    out["mh_moe_inner_residual"] = change_moe(out["mh_moe"], [](MoeFeedForward& moe) {
        moe.inner_residual = true;
        moe.head_bias = false;
        moe.num_moe_heads = 4;
        moe.capacity_factor = 1.0;
    });
    out["mh1_form"] = change_moe(out["mh_moe"], [](MoeFeedForward& moe) {
        moe.routing = "x_moe";
        moe.router_size = 4;
        moe.top_k = 1;
        moe.activation = Activation::gelu;
        moe.bias = moe.sub_norm = true;
    });
    out["mh1_form"].norm = Norm::layer;
    out["shared_expert_sub_norm"] = change_moe(out["emo"], [](MoeFeedForward& moe) {
        moe.sub_norm = true;
        moe.activation = Activation::swiglu;
    });
    ModelSpec dense = small_model(2, 16, 64);
    out["dense_swiglu"] = dense;
    dense.tied_embeddings = true;
    for (LayerSpec& layer : dense.layers) {
        auto& attention = std::get<GroupedQueryAttention>(layer.attention);
        attention.bias = attention.output_bias = attention.qk_norm = true;
        layer.window = 5;
        auto& feed_forward = std::get<DenseFeedForward>(layer.feed_forward);
        feed_forward.activation = Activation::gelu;
        feed_forward.bias = true;
    }
    std::get<GroupedQueryAttention>(dense.layers[1].attention).qk_norm_full = true;
    std::get<DenseFeedForward>(dense.layers[1].feed_forward).activation = Activation::relu;
    out["dense_every_attention_option"] = dense;
    return out;
}

Json numbers(Runtime& rt, const Tensor& tensor) {
    return rt.download(tensor.data(), tensor.count(), tensor.format());
}

Json batch_as_json(const TokenBatch& batch, std::int64_t index, double weight) {
    Json out;
    out["index"] = index;
    out["weight"] = weight;
    out["sequences"] = batch.num_sequences;
    out["length"] = batch.sequence_length;
    out["tokens"] = batch.tokens;
    out["targets"] = batch.targets;
    out["domains"] = batch.domains;
    for (const DocumentSpan& span : document_spans(batch))
        out["document_begin"].push_back(span.begin);
    return out;
}

Json losses_of(const TrainOptions& options) {
    Communicator alone;
    Json out = Json::array();
    for (const StepRecord& step : train(options, alone).steps)
        out.push_back({{"loss", step.loss},
                       {"gradient_norm", step.gradient_norm},
                       {"balance_loss", step.balance_loss},
                       {"learning_rate", step.learning_rate}});
    return out;
}

/// Four steps of AdamW, in both formats, and the text they read.
Json whole_model(const ModelSpec& model) {
    TrainOptions options = small_run(model, 4, 24, 2, 2);
    options.optimizer.learning_rate = 1e-2;
    options.optimizer.warmup_steps = 2;
    Json out;
    out["model"] = to_json(model);
    out["seed"] = std::to_string(options.seed.value);
    out["clip"] = options.optimizer.clip;
    out["weight_decay"] = options.optimizer.weight_decay;
    out["betas"] = {options.optimizer.beta1, options.optimizer.beta2};
    out["epsilon"] = options.optimizer.epsilon;
    out["selection_bias_rate"] = options.optimizer.selection_bias_rate;
    const int batches = options.schedule.num_micro_batches;
    const BatchShape shape{options.schedule.micro_batch_size, batches, 1};
    for (int step = 0; step < options.steps; ++step) {
        Json text = Json::array();
        for (int m = 0; m < batches; ++m)
            text.push_back(batch_as_json(read_micro_batch(*options.data, shape, step, m, 0),
                                         std::int64_t(step) * batches + m, 1.0 / batches));
        out["text"].push_back(text);
    }
    for (const NumberFormat format : {NumberFormat::f32, NumberFormat::f64}) {
        options.format = format;
        out[format == NumberFormat::f32 ? "f32" : "f64"] = losses_of(options);
    }
    return out;
}

/// One pass of one layer over numbers from the hash: y, and the gradients of Σ y · dy (with the
/// layer's own losses) by x and by every parameter.
Json one_layer(const ModelSpec& model, const std::string& part) {
    Runtime rt(backend_for(Device::cpu), NumberFormat::f32);
    RankGroups alone;
    ParameterSet parameters(rt);
    const Seed seed{5};
    parameters.set_seed(derive(seed, "parameters"));
    const TokenBatch text = read_batch(*small_text(model.vocab_size, 24), 3, 2);
    const MicroBatch batch = on_device(rt, text, 9, 1);
    const std::int64_t count = batch.num_tokens() * model.hidden_size;
    const auto from_hash = [&](const char* name) {
        Tensor out = rt.tensor(count);
        std::vector<double> values(static_cast<std::size_t>(count));
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = initial_number(seed, name, i);
        rt.upload(out.data(), values, rt.format);
        return out;
    };
    const Tensor x = from_hash("x"), dy = from_hash("dy");
    const LayerSpec& layer = model.layers.back();
    Tensor y, dx;
    if (part == "attention") {
        SelfAttention attention(rt, parameters, "layer", model, layer, alone);
        SelfAttention::Saved saved;
        y = attention.forward(x, batch, saved);
        dx = attention.backward(x, dy, batch, saved);
    } else if (part == "dense") {
        const auto& spec = std::get<DenseFeedForward>(layer.feed_forward);
        ExpertNetworks dense(rt, parameters, "layer", model.hidden_size, spec.dense_hidden_size,
                             spec.activation, spec.bias, int(model.layers.size()));
        ExpertNetworks::Saved saved;
        y = dense.forward_all(x.data(), batch.num_tokens(), saved);
        dx = dense.backward_all(x.data(), dy, batch.num_tokens(), saved);
    } else {
        MoeLayer moe(rt, parameters, "layer", model, std::get<MoeFeedForward>(layer.feed_forward),
                     alone, 1, seed);
        MoeLayer::Saved saved;
        MoeReport report;
        y = moe.forward(x, batch, saved, report);
        if (moe.spec().balance == BalanceScope::global)  // whose step is this micro-batch alone
            moe.weigh_balance(saved, report, saved.balance_counts, double(saved.scope_units));
        dx = moe.backward(x, dy, batch, saved);
    }
    Json out;
    out["model"] = to_json(model);
    out["part"] = part;
    out["seed"] = std::to_string(seed.value);
    out["batch"] = batch_as_json(text, batch.index, batch.loss_weight);
    out["y"] = numbers(rt, y);
    out["dx"] = numbers(rt, dx);
    for (const Parameter* parameter : parameters.all())
        out["gradients"][parameter->name] = numbers(rt, parameter->gradient);
    return out;
}

}  // namespace
}  // namespace moeplan

int main() {
    using namespace moeplan;
    try {
        Json out;
        for (const auto& [name, model] : cases()) {
            out["models"][name] = whole_model(model);
            out["layers"][name + ".attention"] = one_layer(model, "attention");
            const bool experts = first_moe(model) != nullptr;
            out["layers"][name + (experts ? ".moe" : ".dense")] =
                one_layer(model, experts ? "moe" : "dense");
        }
        std::printf("%s\n", out.dump().c_str());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "parity_cases: %s\n", error.what());
        return 1;
    }
}
