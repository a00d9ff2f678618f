/// The two examples that can be followed by hand (docs/training.md), in f64, to the six digits that
/// are written there.

#include <gtest/gtest.h>

#include <cmath>

#include "model/layers/moe.hpp"
#include "tests/model/layers/small_models.hpp"

namespace moeplan {
namespace {

using namespace testing;
constexpr double kSixDigits =
    5.1e-7;  ///< half a unit of the sixth decimal, and the rounding of the comparison

struct Layer {
    Runtime rt{backend_for(Device::cpu), NumberFormat::f64};
    RankGroups alone;
    ParameterSet parameters{rt};
    std::unique_ptr<MoeLayer> moe;
    Layer(const ModelSpec& model, const MoeFeedForward& spec) {
        moe = std::make_unique<MoeLayer>(rt, parameters, "moe", model, spec, alone, 0, Seed{1});
    }
    void set(const std::string& name, const std::vector<double>& values) {
        ASSERT_EQ(parameters.at(name).count(), std::int64_t(values.size()));
        rt.upload(parameters.at(name).value.data(), values, rt.format);
    }
    MicroBatch batch(std::int64_t tokens, std::vector<std::int32_t> document_begin) {
        MicroBatch out;
        out.num_sequences = 1;
        out.sequence_length = tokens;
        out.document_begin = std::move(document_begin);
        out.domains.assign(std::size_t(tokens), 0);
        return out;
    }
    std::vector<double> forward(const std::vector<double>& x, const MicroBatch& batch,
                                MoeReport& report, MoeChoices* choices = nullptr) {
        Tensor in = rt.tensor(std::int64_t(x.size()));
        rt.upload(in.data(), x, rt.format);
        MoeLayer::Saved saved;
        const Tensor y = moe->forward(in, batch, saved, report, choices);
        return rt.download(y.data(), y.count(), rt.format);
    }
};

void expect_near(const std::vector<double>& got, const std::vector<double>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(got[i], expected[i], kSixDigits) << "element " << i;
}

/// T = 2 tokens, d = 4, h = 2 heads, s = 2, N = 3 experts, k = 1, f = 2, two matrices, ReLU.
struct MultiHead : Layer {
    static ModelSpec model() {
        ModelSpec model = small_model(1, 4);
        return model;
    }
    static MoeFeedForward spec(bool inner_residual, std::optional<double> capacity) {
        MoeFeedForward moe;
        moe.num_experts = 3;
        moe.top_k = 1;
        moe.expert_hidden_size = 2;
        moe.num_moe_heads = 2;
        moe.activation = Activation::relu;
        moe.inner_residual = inner_residual;
        moe.capacity_factor = capacity;
        return moe;
    }
    explicit MultiHead(bool inner_residual = false, std::optional<double> capacity = {})
        : Layer(model(), spec(inner_residual, capacity)) {
        set("moe.head", {1, 0, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 1, -1});
        set("moe.merge", {1, 1, 0, 0, 0, 1, 0, 1, 1, 0, 1, 0, 0, 0, 1, 1});
        set("moe.router", {1, -3, 2, 1, 0, -1});
        set("moe.experts.up", {1, 0, 0, 1, 1, 1, 1, -1, 2, 0, 0, 1});
        set("moe.experts.down", {1, 2, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0});
    }
    std::vector<double> run(MoeReport& report, MoeChoices* choices = nullptr) {
        return forward({1, 0, 2, -1, 0, 1, 1, 1}, batch(2, {0, 2}), report, choices);
    }
};

TEST(MultiHeadExample, DroplessOutputsChoicesAndBalanceLoss) {
    // X̂ = [3 −1 1 3; 1 2 1 0] → rows t·h + j: [3 −1], [1 3], [1 2], [1 0]; logits [6 5 1], [−8 5
    // −3], [−5 4 −2], [1 2 0].
    MultiHead layer;
    MoeReport report;
    MoeChoices choices;
    expect_near(layer.run(report, &choices),
                {2.182425, 3.998650, 6.181075, 7.997299, 5.984428, 4.322696, 3.657455, 1.995723});
    EXPECT_EQ(choices.expert_ids, (std::vector<std::uint16_t>{0, 1, 1, 1}));
    for (const auto& [slot, gate] :
         {std::pair{0, 0.727475}, {1, 0.999662}, {2, 0.997405}, {3, 0.665241}})
        EXPECT_NEAR(choices.gates[std::size_t(slot)], gate, kSixDigits);
    EXPECT_EQ(report.chosen, (std::vector<std::int64_t>{1, 3, 0}));
    // N · Σ mean gate · share of choices, counts [1 3 0] of 4.
    EXPECT_NEAR(report.balance_loss, 1.830398, kSixDigits);
    EXPECT_EQ(report.dropped_units, 0);
}

TEST(MultiHeadExample, CapacityDropsTheThirdSubTokenOfExpertOne) {
    // C = k · ⌈U/N⌉ = ⌈4/3⌉ = 2: row 3 is dropped; its token keeps the other head.
    MultiHead layer(false, 1.0);
    MoeReport report;
    expect_near(layer.run(report),
                {2.182425, 3.998650, 6.181075, 7.997299, 5.984428, 2.992214, 2.992214, 0});
    EXPECT_EQ(report.dropped_units, 1);
    EXPECT_EQ(report.dropped_tokens, 0);
}

TEST(MultiHeadExample, InnerResidualAddsTheSubTokenItself) {
    MultiHead layer(true);
    MoeReport report;
    expect_near(layer.run(report),
                {4.182425, 5.998650, 10.181075, 11.997299, 8.984428, 6.322696, 5.657455, 2.995723});
}

/// EMO: documents {t0 t1 t2}, {t3 t4}, 5 routed experts, pools of 3, top-2. The router is the
/// identity, so the tokens are the logits.
struct Pooled : Layer {
    static MoeFeedForward spec(bool pools) {
        MoeFeedForward moe;
        moe.num_experts = 5;
        moe.top_k = 2;
        moe.expert_hidden_size = 2;
        moe.activation = Activation::relu;
        if (pools) {
            moe.routing = "emo";
            moe.pool = DocumentPool{3, 3};
        }
        return moe;
    }
    explicit Pooled(bool pools) : Layer(small_model(1, 5), spec(pools)) {
        std::vector<double> identity(25, 0);
        for (std::size_t i = 0; i < 5; ++i) identity[6 * i] = 1;
        set("moe.router", identity);
    }
    void run(MoeReport& report, MoeChoices& choices) {
        forward({2, 1, 0, -1, 0, 0, 2, 1, -1, -1, -1, 0, 0, 3, 1, 0, -1, 2, 1, -1, 1, 0, 0, -1, 2},
                batch(5, {0, 3, 5}), report, &choices);
    }
};

TEST(DocumentPoolExample, ChoicesGatesAndLosses) {
    // Document sums: A [.691351 .881534 .349411 .858493 .219211] → pool {0, 1, 3}; B [.302332
    // .111222 .704071 .259013 .623362] → {0, 2, 4}.
    Pooled layer(true);
    MoeReport report;
    MoeChoices choices;
    layer.run(report, choices);
    EXPECT_EQ(choices.expert_ids, (std::vector<std::uint16_t>{0, 1, 1, 0, 3, 1, 2, 0, 4, 0}));
    const std::vector<double> gates = {.705385, .259496, .843795, .114195, .936240,
                                       .046613, .843795, .114195, .665241, .244728};
    for (std::size_t i = 0; i < gates.size(); ++i)
        EXPECT_NEAR(choices.gates[i], gates[i], kSixDigits) << i;
    EXPECT_EQ(choices.pool_sizes, (std::vector<std::uint16_t>{3, 3}));
    EXPECT_EQ(report.chosen, (std::vector<std::int64_t>{4, 3, 1, 1, 1}));
    // (E/k) · Σ c P / tokens = (5/2) · Σ c · mean p̂ / 5; mean (log Σ exp over the pool)².
    EXPECT_NEAR(report.balance_loss, 1.088676, kSixDigits);
    EXPECT_NEAR(report.z_loss, 6.026106, kSixDigits);
}

TEST(DocumentPoolExample, WithoutPoolsCountsAreUniformAndTheLossIsOne) {
    Pooled layer(false);
    MoeReport report;
    MoeChoices choices;
    layer.run(report, choices);
    EXPECT_EQ(report.chosen, (std::vector<std::int64_t>{2, 2, 2, 2, 2}));
    EXPECT_NEAR(report.balance_loss, 1, 1e-12);
    EXPECT_NEAR(report.z_loss, 7.072578, kSixDigits);
}

}  // namespace
}  // namespace moeplan
