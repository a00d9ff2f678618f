/// Explicit gradients against central differences, in f64: one loop over every layer, since the
/// whole model is checked parameter by parameter.

#include <gtest/gtest.h>

#include <cmath>

#include "model/layers/transformer.hpp"
#include "tests/model/layers/small_models.hpp"

namespace moeplan {
namespace {

using namespace testing;

MicroBatch micro_batch(Runtime& rt, int vocabulary) {
    // 2 sequences of 10 tokens; documents end inside them.
    MicroBatch batch;
    batch.num_sequences = 2;
    batch.sequence_length = 10;
    std::vector<std::int32_t> tokens, targets, positions, documents;
    for (int t = 0; t < 20; ++t) {
        tokens.push_back(
            std::int32_t(draw(Seed{3}, "token", std::uint64_t(t)) % std::uint64_t(vocabulary)));
        targets.push_back(
            std::int32_t(draw(Seed{3}, "target", std::uint64_t(t)) % std::uint64_t(vocabulary)));
        positions.push_back(t % 10);
        documents.push_back(t < 4 ? 0 : t < 10 ? 1 : t < 17 ? 2 : 3);
        batch.domains.push_back(std::uint16_t(documents.back() % 2));
    }
    batch.document_begin = {0, 4, 10, 17, 20};
    batch.document_ids = {0, 1, 2, 3};
    batch.tokens = rt.upload(tokens);
    batch.targets = rt.upload(targets);
    batch.positions = rt.upload(positions);
    batch.documents = rt.upload(documents);
    return batch;
}

/// What is descended: mean cross-entropy + Σ over layers of coefficient · loss. Counts are
/// constants of the balance loss, as in backward: a small step changes no choice, so differences
/// see the same.
double objective(Transformer& model, const MicroBatch& batch) {
    const auto result = model.evaluate(batch);
    double sum = result.loss_sum / double(batch.num_tokens());
    std::size_t layer = 0;
    for (MoeLayer* moe : model.moe_layers()) {
        sum += moe->spec().balance_coefficient * result.moe[layer].balance_loss;
        if (routing_rule(moe->spec().routing).score == ScoreKind::softmax)
            sum += moe->spec().z_loss_coefficient * result.moe[layer].z_loss;
        ++layer;
    }
    return sum;
}

void expect_gradients(const ModelSpec& spec) {
    Runtime rt(backend_for(Device::cpu), NumberFormat::f64);
    RankGroups alone;
    Transformer model(rt, spec, alone, Seed{5});
    const MicroBatch batch = micro_batch(rt, spec.vocab_size);
    double forward = 0, backward = 0;
    model.parameters().zero_gradients();
    model.train(batch, nullptr, forward, backward);
    int checked = 0;
    for (Parameter* parameter : model.parameters().all()) {
        const std::vector<double> gradient =
            rt.download(parameter->gradient.data(), parameter->count(), rt.stat);
        auto* value = static_cast<double*>(parameter->value.data());
        const std::int64_t step = std::max<std::int64_t>(1, parameter->count() / 12);
        for (std::int64_t i = 0; i < parameter->count(); i += step) {
            const double h = 2e-6, old = value[i];
            value[i] = old + h;
            const double up = objective(model, batch);
            value[i] = old - h;
            const double down = objective(model, batch);
            value[i] = old;
            // Central difference: (f(x+h) − f(x−h)) / 2h = f′ + O(h²) f‴ + O(ε/h) f: at h = 2e−6
            // the last is some 1e−10, the middle up to 1e−6 relative where the third derivative is
            // large (embeddings of 0.1).
            EXPECT_NEAR(gradient[std::size_t(i)], (up - down) / (2 * h),
                        2e-8 + 1e-5 * std::abs(gradient[std::size_t(i)]))
                << parameter->name << "[" << i << "] of " << spec.layers[0].feed_forward.index();
            ++checked;
        }
    }
    EXPECT_GT(checked, 60);
}

TEST(Gradients, DenseModelWithGroupedQueriesMatchesCentralDifferences) {
    expect_gradients(small_model());
}

TEST(Gradients, AttentionWithBiasNormsAndWindowMatchesCentralDifferences) {
    ModelSpec model = small_model(2);
    model.tied_embeddings = true;
    for (LayerSpec& layer : model.layers) {
        auto& attention = std::get<GroupedQueryAttention>(layer.attention);
        attention.bias = attention.output_bias = attention.qk_norm = true;
        layer.window = 3;
        std::get<DenseFeedForward>(layer.feed_forward).activation = Activation::gelu;
        std::get<DenseFeedForward>(layer.feed_forward).bias = true;
    }
    std::get<GroupedQueryAttention>(model.layers[1].attention).qk_norm_full = true;
    expect_gradients(model);
}

class RoutingGradients : public ::testing::TestWithParam<std::string> {};
TEST_P(RoutingGradients, MatchCentralDifferences) {
    ModelSpec model = named_model(GetParam(), 2);
    for (LayerSpec& layer : model.layers)
        std::get<MoeFeedForward>(layer.feed_forward).activation = Activation::swiglu;
    expect_gradients(model);
}
INSTANTIATE_TEST_SUITE_P(EveryRouting, RoutingGradients,
                         ::testing::Values("top_k", "mh_moe", "emo", "switch", "gshard",
                                           "gshard_raw", "x_moe", "x_moe_cosine", "sigmoid_top_k",
                                           "domain"),
                         [](const auto& info) { return info.param; });

TEST(Gradients, LayerNormsInsideAndOutsideOfExpertsMatchCentralDifferences) {
    MoeFeedForward moe = small_moe();
    moe.sub_norm = moe.bias = true;
    moe.num_shared_experts = 1;
    moe.shared_expert_hidden_size = 6;
    ModelSpec model = with_moe(small_model(2), moe);
    model.norm = Norm::layer;
    expect_gradients(model);
}

TEST(Gradients, EveryExpertFormMatchesCentralDifferences) {
    for (const Activation activation : {Activation::relu, Activation::gelu, Activation::swiglu}) {
        MoeFeedForward moe = small_moe();
        moe.activation = activation;
        moe.bias = moe.router_bias = moe.inner_residual = true;
        moe.renormalise_gates = true;
        moe.balance = BalanceScope::sequence;
        moe.capacity_factor = 0.75;
        expect_gradients(with_moe(small_model(), moe));
    }
}

}  // namespace
}  // namespace moeplan
