// Every kernel of a device against the CPU in f64 on the same rounded inputs, over random and edge shapes. The same file runs on
// a GPU, and in three builds of the shim (tests/shim) under several schedules.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/cuda/two_sides.hpp"

namespace moeplan::test {
namespace {

class KernelLaws : public ::testing::TestWithParam<NumberFormat> {
  protected:
    void SetUp() override {
        std::string why;
        device = device_under_test(&why);
        if (!device) GTEST_SKIP() << why;
    }
    /// body(bench) under every schedule, with the same seed each time.
    template <typename F>
    void each(std::uint64_t seed, F body) {
        under_every_schedule([&] {
            Bench bench(*device, GetParam(), seed);
            body(bench);
        });
    }
    const Backend* device = nullptr;
};
std::string format_name(const ::testing::TestParamInfo<NumberFormat>& i) { return i.param == NumberFormat::f32 ? "f32" : "bf16"; }
INSTANTIATE_TEST_SUITE_P(, KernelLaws, ::testing::Values(NumberFormat::f32, NumberFormat::bf16), format_name);

std::vector<double> absolute(std::vector<double> v) {
    for (auto& x : v) x = std::abs(x);
    return v;
}

// --- rows and elements ---------------------------------------------------------------------------------------------------------

TEST_P(KernelLaws, EmbeddingRowsAreCopiedAndTheirGradientsAddedInOrder) {
    // 300 tokens over a vocabulary of 7 repeat each row some 40 times; width 24 packs, 23 does not.
    for (const std::int64_t width : {24, 23}) each(1, [&](Bench& b) {
        const std::int64_t tokens = small_shapes_only() ? 65 : 300, vocabulary = 70;
        std::vector<std::int32_t> ids(tokens);
        for (auto& t : ids) t = b.below(7) * 10;
        const Both token = b.integers(ids), table = b.random(vocabulary * width), y = b.output(tokens * width);
        b.run(&KernelSet::embedding_forward, [&](Side s) {
            return EmbeddingForward{token.as<std::int32_t>(s), table(s), y(s), tokens, width, vocabulary, b.format(s)};
        });
        b.expect_close("y", y, 0, 0);
        const Both dy = b.random(tokens * width), dtable = b.random(vocabulary * width, -1, 1, b.stat());
        b.run(&KernelSet::embedding_backward, [&](Side s) {
            return EmbeddingBackward{token.as<std::int32_t>(s), dy(s), dtable(s), tokens, width, vocabulary, b.format(s)};
        });
        b.expect_close("dtable", dtable, tokens, tokens);
    });
}

TEST_P(KernelLaws, RmsNormDividesByTheRootMeanSquare) {
    struct Shape { std::int64_t rows, width; };
    for (const auto [rows, width] : {Shape{1, 8}, Shape{129, 64}, Shape{5, 1024}, Shape{3, 37}}) each(2, [&](Bench& b) {
        const Both x = b.random(rows * width), weight = b.random(width, 0.5, 1.5), y = b.output(rows * width), r = b.output(rows, b.stat());
        b.run(&KernelSet::rms_norm_forward, [&](Side s) {
            return RmsNormForward{.x = x(s), .weight = weight(s), .y = y(s), .inverse_rms = r(s), .rows = rows, .width = width,
                                  .format = b.format(s)};
        });
        b.expect_close("y", y, width, 4);
        b.expect_close("inverse_rms", r, width, 4);
        // The gradient starts from the f32 inverse_rms on one side and f64 on the other: one more rounding.
        for (const bool accumulate : {false, true}) {
            const Both dy = b.random(rows * width), dx = b.random(rows * width), dweight = b.random(width, -1, 1, b.stat());
            b.run(&KernelSet::rms_norm_backward, [&](Side s) {
                return RmsNormBackward{x(s), weight(s), r(s), dy(s), dx(s), dweight(s), rows, width, accumulate, b.format(s)};
            });
            b.expect_close("dx", dx, width, 8);
            b.expect_close("dweight", dweight, rows, 4.0 * rows);
        }
    });
}

TEST_P(KernelLaws, RmsNormOfAResidualsSumIsThatOfTheSumAsStored) {
    struct Shape { std::int64_t rows, width; };
    for (const auto [rows, width] : {Shape{1, 8}, Shape{129, 64}, Shape{5, 1024}, Shape{3, 37}})
        for (const bool in_place : {false, true}) each(24, [&, rows = rows, width = width](Bench& b) {
            const Both a = b.random(rows * width), delta = b.random(rows * width), weight = b.random(width, 0.5, 1.5);
            const Both sum = in_place ? delta : b.output(rows * width), y = b.output(rows * width), r = b.output(rows, b.stat());
            b.run(&KernelSet::residual_rms_norm_forward, [&](Side s) {
                return ResidualRmsNormForward{a(s), delta(s), weight(s), sum(s), y(s), r(s), rows, width, 1e-6, b.format(s)};
            });
            b.expect_close("sum", sum, 1, 2);
            // The reference's sum is not rounded. The device's own norm of the device's sum, which the law above holds to the
            // reference, is the same to the last bit.
            const Both again = b.output(rows * width), r_again = b.output(rows, b.stat());
            b.run(&KernelSet::rms_norm_forward, [&](Side s) {
                return RmsNormForward{.x = sum(s), .weight = weight(s), .y = again(s), .inverse_rms = r_again(s), .rows = rows, .width = width,
                                      .format = b.format(s)};
            });
            EXPECT_EQ(b.got(y), b.got(again));
            EXPECT_EQ(b.got(r), b.got(r_again));
        });
}

TEST_P(KernelLaws, RmsNormWithoutWeightsIsWeightsOfOne) {
    each(3, [&](Bench& b) {
        const std::int64_t rows = 2, width = 16;
        const Both x = b.random(rows * width), y = b.output(rows * width), r = b.output(rows, b.stat());
        b.run(&KernelSet::rms_norm_forward, [&](Side s) {
            return RmsNormForward{.x = x(s), .y = y(s), .inverse_rms = r(s), .rows = rows, .width = width, .format = b.format(s)};
        });
        b.expect_close("y", y, width, 4);
        const Both dy = b.random(rows * width), dx = b.output(rows * width);
        b.run(&KernelSet::rms_norm_backward, [&](Side s) {
            return RmsNormBackward{x(s), nullptr, r(s), dy(s), dx(s), nullptr, rows, width, false, b.format(s)};
        });
        b.expect_close("dx", dx, width, 8);
    });
}

TEST_P(KernelLaws, AddScaleAndConvertTouchEveryElementOnce) {
    // 8 elements are one 16-byte pack of bf16; 1027 leaves a rest.
    for (const std::int64_t count : {1, 8, 1027}) each(4, [&](Bench& b) {
        const Both x = b.random(count), y = b.random(count), out = b.output(count), y2 = b.random(count), copy = b.output(count);
        b.run(&KernelSet::residual_add, [&](Side s) { return ResidualAdd{x(s), y(s), out(s), count, b.format(s)}; });
        b.expect_close("a + b", out, 1, 2);
        b.run(&KernelSet::scale, [&](Side s) { return Scale{x(s), y2(s), count, 0.5, -2, b.format(s)}; });
        b.expect_close("alpha x + beta y", y2, 2, 3);
        b.run(&KernelSet::scale, [&](Side s) { return Scale{x(s), copy(s), count, 1, 0, b.format(s)}; });
        b.expect_close("copy", copy, 0, 0);
    });
}

TEST_P(KernelLaws, ConvertRoundsToNearest) {
    each(5, [&](Bench& b) {
        const std::int64_t count = 1027;
        const Both wide = b.random(count, -100, 100, NumberFormat::f32), narrow = b.output(count), back = b.output(count, NumberFormat::f32);
        const auto full = [](Side s) { return s == Side::device ? NumberFormat::f32 : NumberFormat::f64; };
        b.run(&KernelSet::convert, [&](Side s) { return Convert{wide(s), narrow(s), count, full(s), b.format(s)}; });
        b.expect_close("narrow", narrow, 0, 0);
        b.run(&KernelSet::convert, [&](Side s) { return Convert{narrow(s), back(s), count, b.format(s), full(s)}; });
        EXPECT_EQ(b.got(back), b.got(narrow));                 // widening is exact
    });
}

TEST_P(KernelLaws, BiasesBelongToTheGroupOfARow) {
    // Groups of 3, 0, 129 and 1 rows.
    each(6, [&](Bench& b) {
        const std::vector<std::int32_t> begins = {0, 3, 3, 132, 133};
        const std::int64_t rows = 133, width = 40, groups = 4;
        const Both offsets = b.integers(begins), x = b.random(rows * width), bias = b.random(groups * width);
        b.run(&KernelSet::bias_forward, [&](Side s) { return BiasForward{x(s), bias(s), offsets.as<std::int32_t>(s), rows, width, groups, b.format(s)}; });
        b.expect_close("x + bias", x, 1, 2);
        const Both dy = b.random(rows * width), dbias = b.random(groups * width, -1, 1, b.stat());
        b.run(&KernelSet::bias_backward, [&](Side s) { return BiasBackward{dy(s), dbias(s), offsets.as<std::int32_t>(s), rows, width, groups, b.format(s)}; });
        b.expect_close("dbias", dbias, rows, rows);
    });
}

TEST_P(KernelLaws, RotationTurnsPairsByPositionAndBackwardTurnsThemBack) {
    each(7, [&](Bench& b) {
        const std::int64_t tokens = 9, heads = 3, size = 10, stride = 3 * 10 + 7;
        // Positions 100 003 and 2³⁰ − 1: the angle of the first pair is exact in f64 alone.
        const Both positions = b.integers(std::vector<std::int32_t>{0, 1, 2, 3, 100, 1073741823, 4095, 100003, 0});
        const Both x = b.random(tokens * stride);
        const auto call = [&](Side s) { return Rope{x(s), positions.as<std::int32_t>(s), tokens, heads, size, stride, 10000, b.format(s)}; };
        b.run(&KernelSet::rope_forward, call);
        b.expect_close("turned", x, 4, 2);
        b.run(&KernelSet::rope_backward, call);
        if (GetParam() == NumberFormat::f32) b.expect_close("turned back", x, 8, 2);
    });
}

TEST_P(KernelLaws, ActivationsAndTheirGradients) {
    struct Shape { std::int64_t rows, width; };
    for (const auto [rows, width] : {Shape{1, 8}, Shape{129, 16}, Shape{7, 33}}) each(8, [&](Bench& b) {
        const auto forward = [&](auto row, std::int64_t in_width) {
            const Both x = b.random(rows * in_width, -6, 6), y = b.output(rows * width);
            b.run(row, [&](Side s) { return ActivationForward{x(s), y(s), rows, width, b.format(s)}; });
            b.expect_close("y", y, 4, 36);
        };
        const auto backward = [&](auto row, std::int64_t in_width, bool in_place) {
            const Both x = b.random(rows * in_width, -6, 6), dy = b.random(rows * width), dx = in_place ? x : b.output(rows * in_width);
            b.run(row, [&](Side s) { return ActivationBackward{x(s), dy(s), dx(s), rows, width, b.format(s)}; });
            b.expect_close("dx", dx, 4, 36);
        };
        forward(&KernelSet::swiglu_forward, 2 * width), forward(&KernelSet::gelu_forward, width), forward(&KernelSet::relu_forward, width);
        for (const bool in_place : {false, true})
            backward(&KernelSet::swiglu_backward, 2 * width, in_place), backward(&KernelSet::gelu_backward, width, in_place),
                backward(&KernelSet::relu_backward, width, in_place);
    });
}

TEST_P(KernelLaws, BiasedActivationsAndTheirGradientsAreOfTheGroupOfARow) {
    // Empty groups, groups shorter and longer than the 32 rows of a block, one hot group; no groups. Width 300 is several blocks of columns.
    struct Shape { std::vector<std::int32_t> begins; std::int64_t width; };
    for (const Shape& shape : {Shape{{0, 1}, 8}, Shape{{0, 3, 3, 132, 133}, 40}, Shape{{0, 0, 129, 129}, 37}, Shape{{0, 20, 40, 45}, 300}, Shape{{}, 24}})
        for (const auto kind : {ActivationKind::swiglu, ActivationKind::gelu, ActivationKind::relu}) each(22, [&](Bench& b) {
            const bool grouped = !shape.begins.empty();
            const std::int64_t rows = grouped ? shape.begins.back() : 129, width = shape.width;
            const std::int64_t groups = grouped ? static_cast<std::int64_t>(shape.begins.size()) - 1 : 1;
            const std::int64_t inputs = kind == ActivationKind::swiglu ? 2 * width : width;
            const Both offsets = b.integers(shape.begins), x = b.random(rows * inputs, -6, 6), bias = b.random(groups * inputs);
            const auto begins = [&](Side s) { return grouped ? offsets.as<std::int32_t>(s) : nullptr; };
            const Both y = b.output(rows * width);
            b.run(&KernelSet::expert_activation_forward, [&](Side s) {
                return ExpertActivationForward{x(s), bias(s), begins(s), y(s), rows, width, groups, kind, b.format(s)};
            });
            b.expect_close("y", y, 4, 49);                    // |x + bias| ≤ 7
            for (const bool in_place : {false, true}) {
                const Both dy = b.random(rows * width), dx = in_place ? x : b.output(rows * inputs), dbias = b.random(groups * inputs, -1, 1, b.stat());
                b.run(&KernelSet::expert_activation_backward, [&](Side s) {
                    return ExpertActivationBackward{x(s), bias(s), dy(s), begins(s), dx(s), dbias(s), rows, width, groups, kind, b.format(s)};
                });
                b.expect_close("dx", dx, 4, 49);
                b.expect_close("dbias", dbias, rows, 8.0 * rows);      // |dx| ≤ 1.1 · 7 · |dy|
            }
        });
}

TEST_P(KernelLaws, WithoutABiasAnExpertsActivationIsThePlainOne) {
    each(23, [&](Bench& b) {
        const std::int64_t rows = 5, width = 24;
        for (const auto kind : {ActivationKind::swiglu, ActivationKind::gelu, ActivationKind::relu}) {
            const std::int64_t inputs = kind == ActivationKind::swiglu ? 2 * width : width;
            const Both x = b.random(rows * inputs, -6, 6), y = b.output(rows * width), plain = b.output(rows * width);
            b.run(&KernelSet::expert_activation_forward, [&](Side s) {
                return ExpertActivationForward{.x = x(s), .y = y(s), .rows = rows, .width = width, .kind = kind, .format = b.format(s)};
            });
            b.run(kind == ActivationKind::swiglu ? &KernelSet::swiglu_forward : kind == ActivationKind::gelu ? &KernelSet::gelu_forward : &KernelSet::relu_forward,
                  [&](Side s) { return ActivationForward{x(s), plain(s), rows, width, b.format(s)}; });
            EXPECT_EQ(b.got(y), b.got(plain));
            const Both dy = b.random(rows * width), dx = b.output(rows * inputs), dplain = b.output(rows * inputs);
            b.run(&KernelSet::expert_activation_backward, [&](Side s) {
                return ExpertActivationBackward{.x = x(s), .dy = dy(s), .dx = dx(s), .rows = rows, .width = width, .kind = kind, .format = b.format(s)};
            });
            b.run(kind == ActivationKind::swiglu ? &KernelSet::swiglu_backward : kind == ActivationKind::gelu ? &KernelSet::gelu_backward : &KernelSet::relu_backward,
                  [&](Side s) { return ActivationBackward{x(s), dy(s), dplain(s), rows, width, b.format(s)}; });
            EXPECT_EQ(b.got(dx), b.got(dplain));
        }
    });
}

// --- routing ------------------------------------------------------------------------------------------------------------------------

/// Σ log_sum_exp² in f64 of values that the device has in f32: each is off by what its law allows, its square by 2·|value| times that.
void expect_sum_of_squares(const Bench& b, const Both& z, const Both& log_sum_exp, std::int64_t experts) {
    double allowed = 0;
    for (const double v : b.expected(log_sum_exp))
        allowed += 2 * std::abs(v) * (kRoundoffF32 * std::abs(v) + kAccumulation * std::sqrt(double(experts)) * kRoundoffF32 * 10);
    EXPECT_NEAR(b.got(z)[0], b.expected(z)[0], allowed);
}

struct RouterShape {
    const char* name;
    std::int64_t units, num_experts, top_k;
    std::int64_t num_groups = 0, top_k_groups = 0;
    ScoreKind score = ScoreKind::softmax;
    bool renormalise = false, masked = false, biased = false;
};
const RouterShape kRouters[] = {
    {"one row", 1, 4, 1},
    {"129 rows", 129, 8, 2},
    {"64 experts", 33, 64, 8},
    {"512 experts", 17, 512, 8, 0, 0, ScoreKind::softmax, true},
    {"an odd count of experts", 40, 127, 7, 0, 0, ScoreKind::softmax, false, true},
    {"sigmoid with groups and a bias", 33, 64, 6, 8, 3, ScoreKind::sigmoid, true, false, true},
    {"pool smaller than top_k", 9, 12, 5, 0, 0, ScoreKind::softmax, true, true},
};

TEST_P(KernelLaws, RouterChoosesTheBestAndItsGradientMatches) {
    for (const RouterShape& r : kRouters) {
        SCOPED_TRACE(r.name);
        each(9, [&](Bench& b) {
            const NumberFormat f32 = NumberFormat::f32;
            const std::int64_t units = small_shapes_only() ? std::min<std::int64_t>(r.units, 17) : r.units, experts = r.num_experts, k = r.top_k;
            const std::int64_t num_masks = 3;
            std::vector<std::uint8_t> open(num_masks * experts);
            for (std::int64_t i = 0; i < num_masks * experts; ++i) open[i] = i / experts == 2 ? i % experts < 3 : b.below(2) || i % experts < k;
            std::vector<std::int32_t> which(units);
            for (auto& w : which) w = b.below(num_masks);
            const Both logits = b.random(units * experts, -4, 4, f32), allowed = b.integers(open), mask_of_unit = b.integers(which);
            const Both bias = b.random(experts, -0.1, 0.1, f32), p = b.output(units * experts, f32), lse = b.output(units, f32);
            const Both ids = b.integers(std::vector<std::int32_t>(units * k, -7)), gates = b.output(units * k, f32), sums = b.output(experts, f32);
            const Both z = b.output(1, NumberFormat::f64);
            const auto format = [&](Side s) { return s == Side::device ? f32 : NumberFormat::f64; };
            b.run(&KernelSet::router_forward, [&](Side s) {
                RouterForward a;
                a.logits = logits(s);
                if (r.masked) a.allowed = allowed.as<std::uint8_t>(s), a.mask_of_unit = mask_of_unit.as<std::int32_t>(s);
                if (r.biased) a.selection_bias = bias(s);
                a.probabilities = p(s), a.log_sum_exp = lse(s), a.expert_ids = ids.as<std::int32_t>(s), a.gates = gates(s);
                a.probability_sums = sums(s), a.z_sum = z.as<double>(s), a.units = units, a.num_experts = experts, a.top_k = k, a.num_groups = r.num_groups;
                a.top_k_groups = r.top_k_groups, a.score = r.score, a.renormalise = r.renormalise, a.gate_scale = 2.5, a.format = format(s);
                return a;
            });
            b.expect_same<std::int32_t>("expert_ids", ids);
            b.expect_close("probabilities", p, experts, b.expected(p));
            b.expect_close("log_sum_exp", lse, experts, 10);
            b.expect_close("gates", gates, experts, 2.5);
            b.expect_close("probability_sums", sums, units + experts, absolute(b.expected(sums)));
            expect_sum_of_squares(b, z, lse, experts);

            const Both dgates = b.random(units * k, -1, 1, f32), dprobability = b.random(num_masks * experts, -1, 1, f32);
            const Both dlogits = b.output(units * experts, f32);
            for (const bool extras : {false, true}) {
                b.run(&KernelSet::router_backward, [&](Side s) {
                    RouterBackward a;
                    a.probabilities = p(s), a.log_sum_exp = lse(s), a.expert_ids = ids.as<std::int32_t>(s), a.gates = gates(s), a.dgates = dgates(s);
                    if (extras) a.dprobability = dprobability(s), a.dprobability_row = mask_of_unit.as<std::int32_t>(s), a.z_scale = 0.01;
                    a.dlogits = dlogits(s), a.units = units, a.num_experts = experts, a.top_k = k, a.score = r.score;
                    a.renormalise = r.renormalise, a.gate_scale = 2.5, a.format = format(s);
                    return a;
                });
                b.expect_close("dlogits", dlogits, experts, 10);
            }
        });
    }
}

struct RouteShape {
    RouterShape router;
    std::int64_t width;
};
const RouteShape kRoutes[] = {
    {{"one row", 1, 4, 1}, 8},
    {{"129 rows", 129, 8, 2}, 40},
    {{"16 sub-tokens a token", 9 * 16, 24, 8}, 8},
    {{"512 experts", 40, 512, 8, 0, 0, ScoreKind::softmax, true}, 16},
    {{"1000 experts", 3, 1000, 8}, 8},
    {{"an odd count of experts and an odd width", 70, 127, 7, 0, 0, ScoreKind::softmax, false, true}, 37},
    {{"sigmoid with groups and a bias", 70, 64, 6, 8, 3, ScoreKind::sigmoid, true, false, true}, 24},
    {{"probabilities alone", 33, 12, 0}, 72},
};

TEST_P(KernelLaws, RoutesChooseAsTheirLogitsSay) {
    for (const auto& [r, width_] : kRoutes) {
        SCOPED_TRACE(r.name);
        const std::int64_t width = width_;
        each(21, [&](Bench& b) {
            const NumberFormat f32 = NumberFormat::f32;
            const std::int64_t units = r.units, experts = r.num_experts, k = r.top_k, num_masks = 3;
            // Eighths times sixteenths: logits are multiples of 1/128, exact in f32 in whatever order they are added, so that both sides
            // choose the same experts; many tie, and the lower one wins.
            std::vector<double> x_values(units * width), weights(experts * width), bias_values(experts);
            for (auto& v : x_values) v = (b.below(17) - 8) / 8.0;
            for (auto& v : weights) v = (b.below(17) - 8) / 16.0;
            for (auto& v : bias_values) v = (b.below(17) - 8) / 16.0;
            std::vector<std::uint8_t> open(num_masks * experts);
            for (std::int64_t i = 0; i < num_masks * experts; ++i) open[i] = i / experts == 2 ? i % experts < 3 : b.below(2) || i % experts < k;
            std::vector<std::int32_t> which(units);
            for (auto& w : which) w = b.below(num_masks);
            const Both x = b.values(x_values, GetParam()), weight = b.values(weights, f32), bias = b.values(bias_values, f32);
            const Both allowed = b.integers(open), mask_of_unit = b.integers(which), selection_bias = b.random(experts, -0.1, 0.1, f32);
            const Both ids = b.integers(std::vector<std::int32_t>(units * k, -7)), gates = b.output(units * k, f32);
            for (const bool everything : {true, false}) {     // bias, logits and sums are each asked for, or none of them
                const Both logits = b.output(units * experts, f32), p = b.output(units * experts, f32), lse = b.output(units, f32);
                const Both sums = b.output(experts, f32), z = b.output(1, NumberFormat::f64);
                b.run(&KernelSet::route_forward, [&](Side s) {
                    RouteForward a;
                    a.x = x(s), a.weight = weight(s), a.width = width, a.x_format = b.format(s);
                    RouterForward& c = a.router;
                    if (everything) a.bias = bias(s), a.logits = logits(s), c.probability_sums = sums(s), c.z_sum = z.as<double>(s), c.log_sum_exp = lse(s);
                    if (r.masked) c.allowed = allowed.as<std::uint8_t>(s), c.mask_of_unit = mask_of_unit.as<std::int32_t>(s);
                    if (r.biased) c.selection_bias = selection_bias(s);
                    c.probabilities = p(s), c.expert_ids = k ? ids.as<std::int32_t>(s) : nullptr, c.gates = gates(s), c.units = units;
                    c.num_experts = experts, c.top_k = k, c.num_groups = r.num_groups, c.top_k_groups = r.top_k_groups, c.score = r.score;
                    c.renormalise = r.renormalise, c.gate_scale = 2.5, c.format = s == Side::device ? f32 : NumberFormat::f64;
                    return a;
                });
                b.expect_same<std::int32_t>("expert_ids", ids);
                b.expect_close("probabilities", p, experts, b.expected(p));
                b.expect_close("gates", gates, experts, 2.5);
                if (!everything) continue;
                b.expect_close("logits", logits, 0, 0);
                b.expect_close("log_sum_exp", lse, experts, 10);
                b.expect_close("probability_sums", sums, units + experts, absolute(b.expected(sums)));
                expect_sum_of_squares(b, z, lse, experts);
            }
        });
    }
}

TEST_P(KernelLaws, EqualScoresGoToTheLowerExpert) {
    each(10, [&](Bench& b) {
        const std::int64_t units = 3, experts = 70, k = 8;
        const Both logits = b.values(std::vector<double>(units * experts, 0.25), NumberFormat::f32), p = b.output(units * experts, NumberFormat::f32);
        const Both ids = b.integers(std::vector<std::int32_t>(units * k, -7)), gates = b.output(units * k, NumberFormat::f32);
        b.run(&KernelSet::router_forward, [&](Side s) {
            RouterForward a;
            a.logits = logits(s), a.probabilities = p(s), a.expert_ids = ids.as<std::int32_t>(s), a.gates = gates(s);
            a.units = units, a.num_experts = experts, a.top_k = k, a.format = s == Side::device ? NumberFormat::f32 : NumberFormat::f64;
            return a;
        });
        const auto got = b.integers_on<std::int32_t>(ids, Side::device);
        for (std::int64_t u = 0; u < units; ++u)
            for (std::int64_t j = 0; j < k; ++j) EXPECT_EQ(got[u * k + j], j);
    });
}

TEST_P(KernelLaws, ANotANumberInTheRouterIsSeen) {
    each(11, [&](Bench& b) {
        const std::int64_t units = 2, experts = 40, k = 2;
        std::vector<double> v(units * experts, 0.5);
        v[experts + 3] = std::numeric_limits<double>::quiet_NaN();
        const Both logits = b.values(v, NumberFormat::f32), p = b.output(units * experts, NumberFormat::f32);
        const Both ids = b.integers(std::vector<std::int32_t>(units * k, -7)), gates = b.output(units * k, NumberFormat::f32);
        RouterForward a;
        a.logits = logits.device, a.probabilities = p.device, a.expert_ids = ids.as<std::int32_t>(Side::device), a.gates = gates.device;
        a.units = units, a.num_experts = experts, a.top_k = k;
        ASSERT_EQ(device->kernels->router_forward(&a, nullptr).code, kOk);
        ASSERT_EQ(device->synchronise(nullptr).code, kOk);
        const auto got = b.got(p);
        EXPECT_FALSE(std::isnan(got[0]));
        EXPECT_TRUE(std::isnan(got[experts]));
        for (const auto id : b.integers_on<std::int32_t>(ids, Side::device)) EXPECT_TRUE(id >= -1 && id < experts) << id;
    });
}

TEST_P(KernelLaws, APoolHoldsTheBestExpertsOfADocument) {
    // Documents of 1, 129, 1 and 20 units (one-token documents); pools of 1, 5, all, none but one.
    for (const std::int64_t experts : {127, 8}) each(12, [&](Bench& b) {
        const std::vector<std::int32_t> begins = {0, 1, 130, 131, 151}, sizes = {1, 5, 4096, 7};
        const std::int64_t units = 151, documents = 4;
        const Both p = b.random(units * experts, 0, 1, NumberFormat::f32), begin = b.integers(begins), size = b.integers(sizes);
        const Both scores = b.output(documents * experts, NumberFormat::f32), allowed = b.integers(std::vector<std::uint8_t>(documents * experts, 9));
        b.run(&KernelSet::document_pool, [&](Side s) {
            return DocumentPoolMask{p(s), begin.as<std::int32_t>(s), size.as<std::int32_t>(s), scores(s), allowed.as<std::uint8_t>(s), units, experts,
                                    documents, s == Side::device ? NumberFormat::f32 : NumberFormat::f64};
        });
        b.expect_close("scores", scores, 129, absolute(b.expected(scores)));
        b.expect_same<std::uint8_t>("allowed", allowed);
    });
}

std::vector<std::int32_t> expert_choices(Bench& b, const char* kind, std::int64_t units, std::int64_t k, std::int64_t experts) {
    std::vector<std::int32_t> ids(units * k);
    for (std::int64_t u = 0; u < units; ++u)
        for (std::int64_t j = 0; j < k; ++j) {
            std::int32_t& e = ids[u * k + j];
            if (std::string(kind) == "one hot expert") e = static_cast<std::int32_t>(experts - 1);
            else if (std::string(kind) == "half the experts empty") e = b.below((experts + 1) / 2) * 2 % static_cast<std::int32_t>(experts);
            else e = b.below(experts);
            if (std::string(kind) == "some dropped" && b.below(5) == 0) e = -1;
        }
    return ids;
}

TEST_P(KernelLaws, RowsAreSortedByExpertInOrderOfSlots) {
    struct Shape { const char* kind; std::int64_t units, k, experts, capacity; };
    const std::int64_t many = small_shapes_only() ? 300 : 3000;
    for (const auto& [kind, units, k, experts, capacity] :
         {Shape{"uniform", 1, 1, 4, 0}, Shape{"uniform", 129, 8, 512, 0}, Shape{"uniform", many, 2, 64, 0}, Shape{"one hot expert", many, 1, 8, 0},
          Shape{"half the experts empty", 129, 2, 9, 0}, Shape{"some dropped", many, 2, 16, 0}, Shape{"uniform", many, 2, 8, 20},
          Shape{"one hot expert", 129, 3, 5, 100}, Shape{"some dropped", many, 3, 8, 7}, Shape{"uniform", 0, 2, 8, 0}}) {
        SCOPED_TRACE(kind);
        each(13, [&, kind = kind, units = units, k = k, experts = experts, capacity = capacity](Bench& b) {
            const Both ids = b.integers(expert_choices(b, kind, units, k, experts));
            const Both rows = b.integers(std::vector<std::int32_t>(experts, -9)), offsets = b.integers(std::vector<std::int32_t>(experts + 1, -9));
            const Both row_of_slot = b.integers(std::vector<std::int32_t>(units * k, -9)), slot_of_row = b.integers(std::vector<std::int32_t>(units * k, -9));
            b.run(&KernelSet::permutation_map, [&](Side s) {
                return PermutationMap{ids.as<std::int32_t>(s), rows.as<std::int32_t>(s), offsets.as<std::int32_t>(s), row_of_slot.as<std::int32_t>(s),
                                      slot_of_row.as<std::int32_t>(s), units, k, experts, capacity};
            });
            b.expect_same<std::int32_t>("rows_per_expert", rows);
            b.expect_same<std::int32_t>("offsets", offsets);
            b.expect_same<std::int32_t>("row_of_slot", row_of_slot);
            b.expect_same<std::int32_t>("slot_of_row", slot_of_row, b.integers_on<std::int32_t>(offsets, Side::reference)[experts]);
        });
    }
}

TEST_P(KernelLaws, RowsGoToTheirExpertsAndComeBackWeighted) {
    // h = 16 sub-tokens of 8 values each: 9 tokens are 144 units; k = 8; width 40 packs, 37 does not.
    struct Shape { std::int64_t units, k, width; };
    for (const auto [units, k, width] : {Shape{1, 1, 8}, Shape{144, 8, 8}, Shape{129, 2, 40}, Shape{33, 3, 37}}) each(14, [&, units = units, k = k, width = width](Bench& b) {
        const std::int64_t experts = 6;
        const auto choices = expert_choices(b, "some dropped", units, k, experts);
        std::vector<std::int32_t> row_of(units * k, -1), slot_of;
        for (std::int32_t e = 0; e < experts; ++e)
            for (std::int64_t slot = 0; slot < units * k; ++slot)
                if (choices[slot] == e) row_of[slot] = static_cast<std::int32_t>(slot_of.size()), slot_of.push_back(static_cast<std::int32_t>(slot));
        const std::int64_t rows = static_cast<std::int64_t>(slot_of.size());
        const Both row_of_slot = b.integers(row_of), slot_of_row = b.integers(slot_of), x = b.random(units * width), sent = b.output(rows * width);
        b.run(&KernelSet::permute_forward, [&](Side s) { return PermuteForward{x(s), slot_of_row.as<std::int32_t>(s), sent(s), rows, width, k, b.format(s)}; });
        b.expect_close("sent", sent, 0, 0);
        const Both back = b.random(rows * width), gates = b.random(units * k, 0, 1, b.stat());
        for (const bool accumulate : {false, true}) {
            const Both y = b.random(units * width), dx = b.random(units * width);
            b.run(&KernelSet::unpermute_forward, [&](Side s) {
                return UnpermuteForward{back(s), row_of_slot.as<std::int32_t>(s), gates(s), y(s), units, width, k, accumulate, b.format(s)};
            });
            b.expect_close("combined", y, k + 1, k + 1);
            b.run(&KernelSet::permute_backward, [&](Side s) {
                return PermuteBackward{back(s), row_of_slot.as<std::int32_t>(s), dx(s), units, width, k, accumulate, b.format(s)};
            });
            b.expect_close("dx", dx, k + 1, k + 1);
        }
        const Both dy = b.random(units * width), drows = b.output(rows * width), dgates = b.output(units * k, b.stat());
        b.run(&KernelSet::unpermute_backward, [&](Side s) {
            return UnpermuteBackward{back(s), dy(s), row_of_slot.as<std::int32_t>(s), gates(s), drows(s), dgates(s), units, width, k, b.format(s)};
        });
        b.expect_close("drows", drows, 1, 1);
        b.expect_close("dgates", dgates, width, width);
    });
}

// --- products ---------------------------------------------------------------------------------------------------------------------------

TEST_P(KernelLaws, GemmHonoursTransposesStridesAndScales) {
    for (int variant = 0; variant < 8; ++variant) each(15, [&](Bench& b) {
        const bool ta = variant & 1, tb = variant & 2, wide = variant & 4;
        const std::int64_t m = 13, n = 6, k = 9, lda = (ta ? m : k) + 3, ldb = (tb ? k : n) + 1, ldc = n + 2;
        const NumberFormat out = wide ? b.stat() : GetParam();
        const Both x = b.random(lda * (ta ? k : m)), y = b.random(ldb * (tb ? n : k)), c = b.random(ldc * m, -1, 1, out);
        b.run(&KernelSet::gemm, [&](Side s) {
            return GemmCall{x(s), y(s), c(s), m, n, k, lda, ldb, ldc, ta, tb, 0.5, variant % 3 == 0 ? 0.0 : 1.5, b.format(s),
                            s == Side::device ? out : NumberFormat::f64};
        });
        b.expect_close("c", c, k, k);
    });
}

TEST_P(KernelLaws, ExpertsMultiplyTheirOwnRows) {
    // 129 rows on one hot expert, two empty ones, one row on the last; and few rows each, which launch together.
    for (const std::vector<std::int32_t>& begins : {std::vector<std::int32_t>{0, 0, 129, 129, 130}, std::vector<std::int32_t>{0, 3, 3, 5, 9}})
        for (const bool offsets_on_host : {true, false})
            for (const auto product : {GroupedProduct::forward, GroupedProduct::data_gradient, GroupedProduct::weight_gradient})
                for (const char* launches : {"loop", "grouped", "the faster"}) {
                    setenv("MOEPLAN_GROUPED_GEMM", launches, 1);
                    Bench b(*device, GetParam(), 16);
                    const std::int64_t experts = 4, rows = begins[4], n = 10, k = 7;
                    const bool weights = product == GroupedProduct::weight_gradient;
                    const Both offsets = b.integers(begins), x = b.random(rows * k), y = b.random(rows * n);
                    const Both w = b.random(experts * n * k, -1, 1, weights ? b.stat() : GetParam());
                    b.run(&KernelSet::grouped_gemm, [&](Side s) {
                        return GroupedGemmCall{x(s), w(s), y(s), offsets.as<std::int32_t>(s), offsets_on_host ? begins.data() : nullptr, experts, rows, n,
                                               k, product, b.format(s)};
                    });
                    b.expect_close("product", product == GroupedProduct::forward ? y : weights ? w : x, 130, 130);
                    unsetenv("MOEPLAN_GROUPED_GEMM");
                }
}

struct AttentionCase { const char* name; std::int64_t batch, sequence, heads, kv_heads, size, window; bool documents, fused; };
const AttentionCase kAttention[] = {
    {"one token", 1, 1, 1, 1, 8, 0, false, false},
    {"causal", 2, 33, 2, 2, 8, 0, false, false},
    {"grouped queries in one fused tensor", 1, 40, 4, 2, 6, 0, true, true},
    {"documents", 2, 37, 2, 1, 4, 0, true, false},
    {"a window", 1, 50, 2, 2, 4, 7, true, false},
};

TEST_P(KernelLaws, AttentionSeesEarlierTokensOfItsDocument) {
    for (const AttentionCase& c : kAttention) {
        SCOPED_TRACE(c.name);
        Bench b(*device, GetParam(), 17);
        const std::int64_t tokens = c.batch * c.sequence, width = (c.heads + 2 * c.kv_heads) * c.size;
        const std::int64_t q_stride = c.fused ? width : c.heads * c.size, kv_stride = c.fused ? width : c.kv_heads * c.size;
        std::vector<std::int32_t> document(tokens);            // one-token documents among longer ones
        for (std::int64_t b0 = 0, id = 5; b0 < tokens; ++b0) {
            if (b0 % c.sequence == 0 || b.below(6) == 0 || b0 % c.sequence == 3) ++id;
            document[b0] = static_cast<std::int32_t>(id);
        }
        const Both qkv = b.random(tokens * width), k = c.fused ? qkv : b.random(tokens * kv_stride), v = c.fused ? qkv : b.random(tokens * kv_stride);
        const Both documents = b.integers(document), out = b.output(tokens * c.heads * c.size), lse = b.output(tokens * c.heads, b.stat());
        const auto call = [&](Side s) {
            const auto moved = [&](const Both& t, std::int64_t elements) -> void* {
                return t.as<char>(s) + elements * static_cast<std::int64_t>(bytes_of(s == Side::device ? t.format : NumberFormat::f64));
            };
            AttentionForward a;
            a.q = qkv(s), a.k = moved(k, c.fused ? c.heads * c.size : 0), a.v = moved(v, c.fused ? (c.heads + c.kv_heads) * c.size : 0);
            a.q_stride = q_stride, a.k_stride = a.v_stride = kv_stride, a.out = out(s), a.log_sum_exp = lse(s);
            a.documents = c.documents ? documents.as<std::int32_t>(s) : nullptr, a.batch = c.batch, a.sequence = c.sequence;
            a.num_heads = c.heads, a.num_kv_heads = c.kv_heads, a.head_size = c.size, a.window = c.window, a.scale = 1 / std::sqrt(double(c.size));
            a.format = b.format(s);
            return a;
        };
        b.run(&KernelSet::attention_forward, call);
        // Probabilities are stored in the format before they meet the values: another u_out of Σ p |v| ≤ 1.
        const double stored = unit_roundoff(GetParam()) / kRoundoffF32 / kAccumulation;
        b.expect_close("out", out, c.sequence + c.size, 2 * stored / std::sqrt(double(c.sequence + c.size)) + 2);
        b.expect_close("log_sum_exp", lse, c.sequence + c.size, 8);
        const Both dout = b.random(tokens * c.heads * c.size), dqkv = b.output(tokens * width);
        const Both dk = c.fused ? dqkv : b.output(tokens * kv_stride), dv = c.fused ? dqkv : b.output(tokens * kv_stride);
        b.run(&KernelSet::attention_backward, [&](Side s) {
            const auto moved = [&](const Both& t, std::int64_t elements) -> void* {
                return t.as<char>(s) + elements * static_cast<std::int64_t>(bytes_of(s == Side::device ? t.format : NumberFormat::f64));
            };
            return AttentionBackward{call(s), dout(s), dqkv(s), moved(dk, c.fused ? c.heads * c.size : 0),
                                     moved(dv, c.fused ? (c.heads + c.kv_heads) * c.size : 0)};
        });
        // dS and P are stored in the format, and `out` (rounded) enters dS: |dS| ≤ 2·size, summed over a row of probabilities.
        const double spread = 4 * stored * double(c.size) / std::sqrt(double(c.sequence * c.heads)) + 8.0 * double(c.size);
        b.expect_close("dq", dqkv, c.sequence * c.heads, spread);
        if (!c.fused) b.expect_close("dk", dk, c.sequence * c.heads, spread), b.expect_close("dv", dv, c.sequence * c.heads, spread);
    }
}

// --- loss and optimizer --------------------------------------------------------------------------------------------------------------------

TEST_P(KernelLaws, CrossEntropyAndItsGradient) {
    struct Shape { std::int64_t tokens, vocabulary; };
    for (const auto [tokens, vocabulary] : {Shape{1, 8}, Shape{9, 1000}, Shape{5, 2051}}) each(18, [&, tokens = tokens, vocabulary = vocabulary](Bench& b) {
        std::vector<std::int32_t> target(tokens);
        for (auto& t : target) t = b.below(vocabulary);
        if (tokens > 1) target[1] = -1;                        // a token without a label
        const Both targets = b.integers(target), logits = b.random(tokens * vocabulary, -8, 8);
        const Both loss = b.output(tokens, b.stat()), lse = b.output(tokens, b.stat());
        b.run(&KernelSet::cross_entropy_forward, [&](Side s) {
            return CrossEntropyForward{logits(s), targets.as<std::int32_t>(s), loss(s), lse(s), tokens, vocabulary, b.format(s)};
        });
        b.expect_close("loss", loss, vocabulary, 20);
        b.expect_close("log_sum_exp", lse, vocabulary, 20);
        for (const bool in_place : {false, true}) {
            const Both dlogits = in_place ? logits : b.output(tokens * vocabulary);
            b.run(&KernelSet::cross_entropy_backward, [&](Side s) {
                return CrossEntropyBackward{logits(s), lse(s), targets.as<std::int32_t>(s), dlogits(s), tokens, vocabulary, 0.125, b.format(s)};
            });
            b.expect_close("dlogits", dlogits, vocabulary, 0.125);
        }
    });
}

TEST_P(KernelLaws, CrossEntropyInPlaceLeavesTheGradientWhereTheLogitsWere) {
    struct Shape { std::int64_t tokens, vocabulary; };
    for (const auto [tokens, vocabulary] : {Shape{1, 8}, Shape{129, 16}, Shape{9, 1000}, Shape{5, 4099}}) each(25, [&, tokens = tokens, vocabulary = vocabulary](Bench& b) {
        std::vector<std::int32_t> target(tokens);
        for (auto& t : target) t = b.below(vocabulary);
        target[0] = static_cast<std::int32_t>(vocabulary) - 1;         // the last column, of another thread than the first
        if (tokens > 1) target[1] = -1;
        const Both targets = b.integers(target), logits = b.random(tokens * vocabulary, -8, 8), loss = b.output(tokens, b.stat());
        b.run(&KernelSet::cross_entropy_in_place, [&](Side s) {
            return CrossEntropyInPlace{logits(s), targets.as<std::int32_t>(s), loss(s), tokens, vocabulary, 0.125, b.format(s)};
        });
        b.expect_close("loss", loss, vocabulary, 20);
        b.expect_close("dlogits", logits, vocabulary, 0.125);
    });
}

TEST_P(KernelLaws, AdamWStepsEveryParameter) {
    const bool masters = GetParam() == NumberFormat::bf16;
    for (const std::int64_t count : {1, 4, 1027}) each(19, [&](Bench& b) {
        const NumberFormat f32 = NumberFormat::f32;
        std::vector<double> start(count);
        for (auto& w : start) w = b.uniform() - 0.5;
        const Both weight = b.values(start, GetParam()), master = b.values(start, f32);
        const Both m = b.random(count, -1, 1, f32), v = b.random(count, 0, 1, f32), gradient = b.random(count, -1, 1, f32);
        b.run(&KernelSet::adamw, [&](Side s) {
            AdamW a;
            // The reference steps in f64 from the full-precision weight; the device keeps that in `master`.
            a.weight = s == Side::reference && masters ? master(s) : weight(s);
            a.master = s == Side::device && masters ? master(s) : nullptr;
            a.m = m(s), a.v = v(s), a.gradient = gradient(s), a.count = count, a.step = 3, a.learning_rate = 0.01, a.weight_decay = 0.1;
            a.gradient_scale = 0.5, a.format = b.format(s);
            return a;
        });
        b.expect_close("weight", masters ? master : weight, 8, 1);
        b.expect_close("m", m, 4, 2);
        b.expect_close("v", v, 4, 2);
        if (masters) {                                         // the stored weight is the master, rounded
            const auto w = b.got(weight), full = b.got(master);
            for (std::int64_t i = 0; i < count; ++i) EXPECT_LE(std::abs(w[i] - full[i]), kRoundoffBf16 * std::abs(full[i]));
        }
    });
}

TEST_P(KernelLaws, AdamWStepsManyTensorsAtOnce) {
    // Of both formats, empty ones, one longer than a block's 16384 elements, some that begin off a 16-byte boundary.
    each(26, [&](Bench& b) {
        const NumberFormat f32 = NumberFormat::f32;
        struct Tensors { Both weight, master, m, v, gradient; std::int64_t count, first; bool masters; };
        std::vector<Tensors> all;
        for (const std::int64_t count : {1, 0, 4, 1027, 16385, 0, 24})
            for (const bool masters : {false, true})
                for (const std::int64_t first : {0, 1}) {
                    if (count > 1027 && (first || masters != (GetParam() == NumberFormat::bf16))) continue;
                    const std::int64_t whole = count + first;
                    std::vector<double> start(whole);
                    for (auto& w : start) w = b.uniform() - 0.5;
                    all.push_back({b.values(start, masters ? NumberFormat::bf16 : f32), b.values(start, f32), b.random(whole, -1, 1, f32),
                                   b.random(whole, 0, 1, f32), b.random(whole, -1, 1, f32), count, first, masters});
                }
        std::vector<AdamW> calls[2];
        b.run(&KernelSet::adamw_tensors, [&](Side s) {
            std::vector<AdamW>& of_side = calls[s == Side::device];
            for (const Tensors& t : all) {
                const auto moved = [&](const Both& of) -> void* {
                    return of.as<char>(s) + t.first * static_cast<std::int64_t>(bytes_of(s == Side::device ? of.format : NumberFormat::f64));
                };
                AdamW a;
                a.weight = s == Side::reference && t.masters ? moved(t.master) : moved(t.weight);
                a.master = s == Side::device && t.masters ? moved(t.master) : nullptr;
                a.m = moved(t.m), a.v = moved(t.v), a.gradient = moved(t.gradient), a.count = t.count, a.step = 3, a.learning_rate = 0.01;
                a.weight_decay = t.first ? 0 : 0.1, a.gradient_scale = 0.5;
                a.format = s == Side::reference ? NumberFormat::f64 : t.masters ? NumberFormat::bf16 : f32;
                of_side.push_back(a);
            }
            return AdamWTensors{of_side.data(), static_cast<std::int64_t>(of_side.size())};
        });
        for (const Tensors& t : all) {
            b.expect_close("weight", t.masters ? t.master : t.weight, 8, 1);
            b.expect_close("m", t.m, 4, 2);
            b.expect_close("v", t.v, 4, 2);
            if (!t.masters) continue;
            const auto w = b.got(t.weight), full = b.got(t.master);
            for (std::size_t i = 0; i < w.size(); ++i) EXPECT_LE(std::abs(w[i] - full[i]), kRoundoffBf16 * std::abs(full[i]));
        }
    });
}

TEST_P(KernelLaws, TheNormOfAGradientInManyTensorsIsThatOfThemAll) {
    each(27, [&](Bench& b) {
        std::vector<Both> gradients;
        for (const std::int64_t count : {1, 0, 255, 16384, 16385, 3}) gradients.push_back(b.random(count, -1, 1, NumberFormat::f32));
        std::vector<GradientPart> parts[2];
        std::vector<double> sums;
        for (int time = 0; time < 2; ++time) {
            const Both sum = b.values({0.25}, NumberFormat::f64);
            b.run(&KernelSet::gradient_norms, [&](Side s) {
                std::vector<GradientPart>& of_side = parts[s == Side::device];
                of_side.clear();
                for (const Both& g : gradients) of_side.push_back({g(s), g.count});
                return GradientNorms{of_side.data(), static_cast<std::int64_t>(of_side.size()), sum.as<double>(s),
                                     s == Side::device ? NumberFormat::f32 : NumberFormat::f64};
            });
            EXPECT_NEAR(b.got(sum)[0], b.expected(sum)[0], kArithmetic * b.expected(sum)[0] * 10);
            sums.push_back(b.got(sum)[0]);
        }
        EXPECT_EQ(sums[0], sums[1]);                           // the same bytes each time
    });
}

TEST_P(KernelLaws, TheNormOfAGradientIsSummedInDouble) {
    for (const std::int64_t count : {1, 255, 100003}) each(20, [&](Bench& b) {
        const std::int64_t n = small_shapes_only() ? std::min<std::int64_t>(count, 3000) : count;
        const Both gradient = b.random(n, -1, 1, NumberFormat::f32);
        const Both sum = b.values({0.25}, NumberFormat::f64);
        b.run(&KernelSet::gradient_norm, [&](Side s) {
            return GradientNorm{gradient(s), sum.as<double>(s), n, s == Side::device ? NumberFormat::f32 : NumberFormat::f64};
        });
        EXPECT_NEAR(b.got(sum)[0], b.expected(sum)[0], kArithmetic * b.expected(sum)[0] * 10);
    });
}

// --- what a caller may rely on -------------------------------------------------------------------------------------------------------------

TEST_P(KernelLaws, NothingToDoIsDoneWithoutALaunch) {
    const RmsNormForward norm{.rows = 0, .width = 64, .format = GetParam()};
    EXPECT_EQ(device->kernels->rms_norm_forward(&norm, nullptr).code, kOk);
    const ActivationForward activation{.rows = 0, .width = 64, .format = GetParam()};
    EXPECT_EQ(device->kernels->swiglu_forward(&activation, nullptr).code, kOk);
    const PermuteForward permute{.rows = 0, .width = 64, .format = GetParam()};
    EXPECT_EQ(device->kernels->permute_forward(&permute, nullptr).code, kOk);
    const AdamWTensors no_tensors;
    EXPECT_EQ(device->kernels->adamw_tensors(&no_tensors, nullptr).code, kOk);
    const GradientNorms no_parts;
    EXPECT_EQ(device->kernels->gradient_norms(&no_parts, nullptr).code, kOk);
    const ExpertActivationForward experts{.rows = 0, .width = 64, .format = GetParam()};
    EXPECT_EQ(device->kernels->expert_activation_forward(&experts, nullptr).code, kOk);
    const GemmCall product{.m = 0, .n = 4, .k = 4, .lda = 4, .ldb = 4, .ldc = 4, .format = GetParam(), .out_format = GetParam()};
    EXPECT_EQ(device->kernels->gemm(&product, nullptr).code, kOk);
}

TEST_P(KernelLaws, AFormatThatIsNotStoredIsUnsupportedNotWrong) {
    const ResidualAdd add{.count = 8, .format = NumberFormat::fp8_e4m3};
    const Status status = device->kernels->residual_add(&add, nullptr);
    EXPECT_EQ(status.code, kUnsupported);
    if (device->device == Device::cuda) {
        EXPECT_STREQ(status.message, "cuda residual_add: stores f32 or bf16");
    }
}

TEST_P(KernelLaws, TooMuchMemoryIsRefusedInWords) {
    void* p = &p;
    const Status status = device->allocate(std::size_t{1} << 50, &p);
    EXPECT_EQ(status.code, kOutOfMemory);
    if (device->device == Device::cuda) {
        EXPECT_NE(std::string(status.message).find("1048576.00 GiB more were needed"),
                  std::string::npos)
            << status.message;
    }
    EXPECT_EQ(p, nullptr);
}

TEST_P(KernelLaws, EventsMeasureAStream) {
    Stream_* stream = nullptr;
    Event_ *begin = nullptr, *end = nullptr;
    ASSERT_EQ(device->streams->create_stream(&stream).code, kOk);
    ASSERT_EQ(device->streams->create_event(&begin).code, kOk);
    ASSERT_EQ(device->streams->create_event(&end).code, kOk);
    ASSERT_EQ(device->streams->record(begin, stream).code, kOk);
    ASSERT_EQ(device->streams->record(end, stream).code, kOk);
    ASSERT_EQ(device->streams->wait(end).code, kOk);
    double seconds = -1;
    ASSERT_EQ(device->streams->elapsed(begin, end, &seconds).code, kOk);
    EXPECT_GE(seconds, 0);
    EXPECT_EQ(device->streams->release_event(begin).code, kOk);
    EXPECT_EQ(device->streams->release_event(end).code, kOk);
    EXPECT_EQ(device->streams->release_stream(stream).code, kOk);
}

}  // namespace
}  // namespace moeplan::test
