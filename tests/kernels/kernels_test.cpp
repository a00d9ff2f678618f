/// The CPU backend: every row runs, f32 agrees with f64, instruction sets agree with each other,
/// and edges give what an empty sum has.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "core/errors.hpp"
#include "kernels/cpu/cpu_backend.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "kernels/kernel_rows.hpp"

namespace moeplan {
namespace {

KernelProblem small_problem() {
    KernelProblem p;
    p.rows = 33;
    p.width = 20;  // no whole number of vectors
    p.num_experts = 7;
    p.top_k = 2;
    p.num_documents = 4;
    p.m = 9;
    p.n = 5;
    p.k = 6;
    p.group_rows = {0, 4, 1, 0, 7};
    p.batch = 2;
    p.sequence = 70;  // more than one block of queries
    p.num_heads = 4;
    p.num_kv_heads = 2;
    p.head_size = 6;
    return p;
}

class EveryRow : public ::testing::TestWithParam<std::string> {};
TEST_P(EveryRow, RunsInEveryFormatAndSaysItsWork) {
    for (const NumberFormat format : {NumberFormat::f32, NumberFormat::f64, NumberFormat::bf16}) {
        KernelProblem p = small_problem();
        p.format = format;
        const PreparedKernel kernel(cpu_backend(), GetParam(), p);
        const Status status = kernel.run(nullptr);
        EXPECT_EQ(status.code, kOk) << status.message;
        const KernelRow* row = find_kernel_row(GetParam());
        EXPECT_GT(row->bytes(p).value, 0);
        EXPECT_GE(row->flops(p).value, 0);
        EXPECT_GT(kernel.footprint().value, 0);
    }
}
TEST_P(EveryRow, SaysSoWhereTheFormatIsNotThere) {
    KernelProblem p = small_problem();
    p.format = NumberFormat::fp8_e4m3;
    const std::set<std::string> no_format = {"permutation_map", "copy",          "zero",         "router_forward",
                                             "router_backward", "document_pool", "gradient_norm"};
    const PreparedKernel kernel(cpu_backend(), GetParam(), p);
    EXPECT_EQ(kernel.run(nullptr).code,
              no_format.contains(GetParam()) && GetParam() != "gradient_norm" ? kOk : kUnsupported);
}
std::vector<std::string> row_names() {
    std::vector<std::string> names;
    for (const KernelRow& row : kernel_rows()) names.emplace_back(row.name);
    return names;
}
INSTANTIATE_TEST_SUITE_P(Kernels, EveryRow, ::testing::ValuesIn(row_names()),
                         [](const auto& info) { return info.param; });

TEST(Gelu, IsThatOfTheErrorFunctionAndZeroFarBelow) {
    // erf is 4.2e-7 of itself away at most, and so x/2 (1 + erf) 2.1e-7 |x|, besides three roundings.
    std::vector<float> x, y;
    for (int i = -2000; i <= 2000; ++i) x.push_back(float(i) * 0.005f);
    x.insert(x.end(), {-1e4f, 1e4f, std::nanf("")});
    y.resize(x.size());
    const ActivationForward call{x.data(), y.data(), 1, std::int64_t(x.size()), NumberFormat::f32};
    check(cpu_backend().kernels->gelu_forward(&call, nullptr), "gelu_forward");
    for (std::size_t i = 0; i + 1 < x.size(); ++i)
        EXPECT_NEAR(y[i], 0.5 * x[i] * (1 + std::erf(x[i] * std::sqrt(0.5))),
                    (2.1e-7 + 3 * 0x1p-24) * std::abs(x[i]))
            << x[i];
    EXPECT_EQ(y[x.size() - 3], 0);
    EXPECT_EQ(y[x.size() - 2], 1e4f);
    EXPECT_TRUE(std::isnan(y.back()));
}

/// One attention problem in a format and a table of kernels; outputs and gradients one after
/// another.
template <class T>
std::vector<double> attention(const KernelSet& set, const std::vector<std::int32_t>* documents,
                              std::int64_t window) {
    const std::int64_t batch = 1, s = 70, heads = 2, kv = 1, size = 8, all = heads * size;
    std::vector<T> q(std::size_t(s * all)), k(std::size_t(s * kv * size)), v(k.size()),
        out(q.size()), lse(std::size_t(heads * s)), dout(q.size()), dq(q.size()), dk(k.size()),
        dv(k.size());
    for (auto* tensor : {&q, &k, &v, &dout})
        for (std::size_t i = 0; i < tensor->size(); ++i)
            (*tensor)[i] = T(float(double(draw(Seed{std::uint64_t(tensor == &q   ? 1
                                                                  : tensor == &k ? 2
                                                                  : tensor == &v ? 3
                                                                                 : 4)},
                                               "x", i) >>
                                          11) *
                                       0x1p-52 -
                                   1));
    AttentionForward call;
    call.q = q.data();
    call.k = k.data();
    call.v = v.data();
    call.q_stride = all;
    call.k_stride = call.v_stride = kv * size;
    call.out = out.data();
    call.log_sum_exp = lse.data();
    call.documents = documents ? documents->data() : nullptr;
    call.batch = batch;
    call.sequence = s;
    call.num_heads = heads;
    call.num_kv_heads = kv;
    call.head_size = size;
    call.window = window;
    call.scale = 1 / std::sqrt(double(size));
    call.format = sizeof(T) == 8 ? NumberFormat::f64 : NumberFormat::f32;
    check(set.attention_forward(&call, nullptr), "attention_forward");
    const AttentionBackward backward{call, dout.data(), dq.data(), dk.data(), dv.data()};
    check(set.attention_backward(&backward, nullptr), "attention_backward");
    std::vector<double> result(out.begin(), out.end());
    for (auto* tensor : {&dq, &dk, &dv})
        result.insert(result.end(), tensor->begin(), tensor->end());
    return result;
}

TEST(Attention, F32AgreesWithF64AndInstructionSetsWithEachOther) {
    std::vector<std::int32_t> documents(70);
    for (std::size_t t = 0; t < documents.size(); ++t)
        documents[t] = t < 1 ? 0 : t < 40 ? 1 : t < 65 ? 2 : 3;
    const KernelSet& set = *cpu_backend().kernels;
    for (const std::int64_t window : {0, 5})
        for (const std::vector<std::int32_t>* mask :
             std::initializer_list<const std::vector<std::int32_t>*>{nullptr, &documents}) {
            const auto exact = attention<double>(set, mask, window),
                       single = attention<float>(set, mask, window);
            // Sums of at most 70 products of numbers below 1 and an exponential good to 2 ulp: 70 ·
            // 2⁻²⁴ · a few.
            for (std::size_t i = 0; i < exact.size(); ++i)
                ASSERT_NEAR(single[i], exact[i], 2e-5) << i;
            KernelSet baseline;
            cpu::baseline::fill(baseline);
            const auto plain = attention<float>(baseline, mask, window);
            EXPECT_EQ(plain, single) << "the lanes are added in another order";
        }
}

TEST(Attention, NoTokenSeesAnotherDocument) {
    // Changing every token of document 0 leaves document 1's outputs as they are.
    std::vector<std::int32_t> split(70, 0);
    for (std::size_t t = 30; t < 70; ++t) split[t] = 1;
    const KernelSet& set = *cpu_backend().kernels;
    const auto whole = attention<double>(set, nullptr, 0),
               masked = attention<double>(set, &split, 0);
    for (std::size_t i = 0; i < 30 * 16; ++i) EXPECT_EQ(whole[i], masked[i]);
    bool differs = false;
    for (std::size_t i = 30 * 16; i < 70 * 16; ++i) differs = differs || whole[i] != masked[i];
    EXPECT_TRUE(differs);
}

TEST(Softmax, ExponentialIsGoodToTwoRoundings) {
    // Probabilities of one router row: exp(x) / Σ exp, against the C library in f64.
    const KernelSet& set = *cpu_backend().kernels;
    for (int i = 0; i < 400; ++i) {
        const float logits[2] = {float(-80 + 0.4 * i), 0};
        float probability[2];
        RouterForward call;
        call.logits = logits;
        call.probabilities = probability;
        call.units = 1;
        call.num_experts = 2;
        check(set.router_forward(&call, nullptr), "router_forward");
        const double x = logits[0],
                     expected = x > 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
        // e^(x − lse): the difference is rounded to half an ulp of |x| ≤ 80 (4e-6), the exponential
        // to two ulp (2.4e-7).
        EXPECT_NEAR(probability[0], expected, 5e-6 * expected) << x;
    }
}

TEST(Softmax, NanIsSeenAndNotMadeANumber) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float logits[3] = {0, nan, 1};
    float loss = 0, sum = 0;
    const std::int32_t target = 0;
    const CrossEntropyForward call{logits, &target, &loss, &sum, 1, 3, NumberFormat::f32};
    check(cpu_backend().kernels->cross_entropy_forward(&call, nullptr), "cross_entropy_forward");
    EXPECT_TRUE(std::isnan(loss));
    float x[1] = {nan}, y[1] = {0};
    const ActivationForward relu{x, y, 1, 1, NumberFormat::f32};
    check(cpu_backend().kernels->relu_forward(&relu, nullptr), "relu_forward");
    EXPECT_TRUE(std::isnan(y[0]));
}

TEST(PermutationMap, IsStableAndDropsInOrderOfChoices) {
    // 3 units, k = 2: ids (1 0) (1 1) (0 1); expert 1 takes 2 rows: first choices of units 0 and 1,
    // then no second choice.
    const std::int32_t ids[6] = {1, 0, 1, 1, 0, 1};
    std::int32_t counts[2], offsets[3], row_of_slot[6], slot_of_row[6];
    PermutationMap call{ids, counts, offsets, row_of_slot, slot_of_row, 3, 2, 2, 0};
    check(cpu_backend().kernels->permutation_map(&call, nullptr), "permutation_map");
    EXPECT_EQ(std::vector<std::int32_t>(slot_of_row, slot_of_row + 6),
              (std::vector<std::int32_t>{1, 4, 0, 2, 3, 5}));
    EXPECT_EQ(std::vector<std::int32_t>(offsets, offsets + 3),
              (std::vector<std::int32_t>{0, 2, 6}));
    call.capacity = 2;
    check(cpu_backend().kernels->permutation_map(&call, nullptr), "permutation_map");
    EXPECT_EQ(std::vector<std::int32_t>(row_of_slot, row_of_slot + 6),
              (std::vector<std::int32_t>{2, 0, 3, -1, 1, -1}));
    EXPECT_EQ(std::vector<std::int32_t>(counts, counts + 2), (std::vector<std::int32_t>{2, 2}));
}

TEST(GroupedGemm, ExpertWithoutRowsAddsNothingToItsGradient) {
    const std::int32_t offsets[4] = {0, 1, 1, 2};
    float x[2] = {2, 3}, y[2] = {5, 7}, w[3] = {1, 10, 100};
    GroupedGemmCall call;
    call.x = x;
    call.y = y;
    call.w = w;
    call.offsets = call.host_offsets = offsets;
    call.num_experts = 3;
    call.rows = 2;
    call.n = call.k = 1;
    call.product = GroupedProduct::weight_gradient;
    check(cpu_backend().kernels->grouped_gemm(&call, nullptr), "grouped_gemm");
    // dw_e += Σ y x over its rows: 1 + 10, 10, 100 + 21.
    EXPECT_EQ(std::vector<float>(w, w + 3), (std::vector<float>{11, 10, 121}));
}

TEST(Backend, DeviceNamesAreReadOrRefused) {
    EXPECT_EQ(device_from("--device", "cpu").device, Device::cpu);
    EXPECT_EQ(device_from("--device", "cuda:3").ordinal, 3);
    for (const char* wrong : {"gpu", "cuda:", "cuda:x", "cuda:99999", ""})
        EXPECT_THROW(device_from("--device", wrong), InputError) << wrong;
}

TEST(Backend, AbsentDeviceSaysWhatIsMissingAndHowToGetIt) {
    if (why_missing(Device::cuda, 999).empty()) GTEST_SKIP() << "a thousand GPUs here";
    try {
        backend_for(Device::cuda, 999);
        FAIL();
    } catch (const EnvironmentError& error) {
        EXPECT_GT(std::string(error.what()).size(), 40u) << error.what();
    }
}

}  // namespace
}  // namespace moeplan
