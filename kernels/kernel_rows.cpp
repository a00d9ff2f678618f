/// Work of each kernel, and how to run it on random data of a given shape.
#include "kernels/kernel_rows.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "core/errors.hpp"

namespace moeplan {
namespace {

using P = KernelProblem;

double element(const P& p) { return size_of(p.format).value; }
double stat(const P& p) { return size_of(stat_format(p.format)).value; }
double rows_of_groups(const P& p) {
    double sum = 0;
    for (const std::uint32_t rows : p.group_rows) sum += rows;
    return sum;
}
/// (query, key) pairs that causal attention with a window sees.
double visible_pairs(const P& p) {
    const double s = double(p.sequence), w = p.window > 0 ? std::min(s, double(p.window)) : s;
    return double(p.batch) * (w * (w + 1) / 2 + (s - w) * w);
}

Flops no_flops(const P&) { return {0}; }
/// `Moved` elements of `format` a row and column.
template <int Moved>
Bytes streamed(const P& p) {
    return {element(p) * Moved * double(p.rows) * double(p.width)};
}
template <int Moved>
Bytes streamed_experts(const P& p) {
    return {stat(p) * Moved * double(p.rows) * double(p.num_experts)};
}

constexpr const char* kRowsWidth = "rows width";

const std::array kTable = {
    KernelRow{"embedding_forward", kRowsWidth, no_flops, streamed<2>},
    KernelRow{"embedding_backward", kRowsWidth, no_flops, streamed<3>},
    KernelRow{"rms_norm_forward", kRowsWidth, no_flops, streamed<2>},
    KernelRow{"rms_norm_backward", "rows width accumulate", no_flops, streamed<3>},
    KernelRow{"residual_add", kRowsWidth, no_flops, streamed<3>},
    KernelRow{"bias_forward", kRowsWidth, no_flops, streamed<2>},
    KernelRow{"bias_backward", kRowsWidth, no_flops, streamed<1>},
    KernelRow{"rope_forward", "rows num_heads head_size", no_flops,
              [](const P& p) {
                  return Bytes{element(p) * 2 * double(p.rows) * double(p.num_heads * p.head_size)};
              }},
    KernelRow{"rope_backward", "rows num_heads head_size", no_flops,
              [](const P& p) {
                  return Bytes{element(p) * 2 * double(p.rows) * double(p.num_heads * p.head_size)};
              }},
    KernelRow{"swiglu_forward", kRowsWidth, no_flops, streamed<3>},
    KernelRow{"swiglu_backward", kRowsWidth, no_flops, streamed<5>},
    KernelRow{"gelu_forward", kRowsWidth, no_flops, streamed<2>},
    KernelRow{"gelu_backward", kRowsWidth, no_flops, streamed<3>},
    KernelRow{"relu_forward", kRowsWidth, no_flops, streamed<2>},
    KernelRow{"relu_backward", kRowsWidth, no_flops, streamed<3>},
    KernelRow{"router_forward", "rows num_experts top_k", no_flops, streamed_experts<3>},
    KernelRow{"router_backward", "rows num_experts top_k", no_flops, streamed_experts<3>},
    KernelRow{"document_pool", "rows num_experts num_documents", no_flops, streamed_experts<3>},
    KernelRow{"permutation_map", "rows num_experts top_k", no_flops,
              [](const P& p) { return Bytes{16.0 * double(p.rows) * double(p.top_k)}; }},
    KernelRow{"permute_forward", "rows width num_experts top_k", no_flops,
              [](const P& p) {
                  return Bytes{element(p) * 2 * double(p.rows) * double(p.top_k) * double(p.width)};
              }},
    KernelRow{"permute_backward", "rows width num_experts top_k", no_flops,
              [](const P& p) {
                  return Bytes{element(p) * 2 * double(p.rows) * double(p.top_k) * double(p.width)};
              }},
    KernelRow{"unpermute_forward", "rows width num_experts top_k", no_flops,
              [](const P& p) {
                  return Bytes{element(p) * 2 * double(p.rows) * double(p.top_k) * double(p.width)};
              }},
    KernelRow{"unpermute_backward", "rows width num_experts top_k", no_flops,
              [](const P& p) {
                  return Bytes{element(p) * 3 * double(p.rows) * double(p.top_k) * double(p.width)};
              }},
    KernelRow{
        "attention_forward", "batch sequence num_heads num_kv_heads head_size window",
        [](const P& p) { return Flops{4 * visible_pairs(p) * double(p.num_heads * p.head_size)}; },
        [](const P& p) {
            return Bytes{element(p) * double(p.batch * p.sequence) *
                         double((2 * p.num_heads + 2 * p.num_kv_heads) * p.head_size)};
        }},
    KernelRow{
        "attention_backward", "batch sequence num_heads num_kv_heads head_size window",
        [](const P& p) { return Flops{10 * visible_pairs(p) * double(p.num_heads * p.head_size)}; },
        [](const P& p) {
            return Bytes{element(p) * double(p.batch * p.sequence) *
                         double((4 * p.num_heads + 4 * p.num_kv_heads) * p.head_size)};
        }},
    KernelRow{"cross_entropy_forward", kRowsWidth, no_flops, streamed<1>},
    KernelRow{"cross_entropy_backward", kRowsWidth, no_flops, streamed<2>},
    KernelRow{"adamw", kRowsWidth, no_flops,
              [](const P& p) { return Bytes{stat(p) * 7 * double(p.rows) * double(p.width)}; }},
    KernelRow{"gradient_norm", kRowsWidth, no_flops,
              [](const P& p) { return Bytes{stat(p) * double(p.rows) * double(p.width)}; }},
    KernelRow{"gemm", "m n k transpose_a transpose_b accumulate",
              [](const P& p) { return Flops{2.0 * double(p.m) * double(p.n) * double(p.k)}; },
              [](const P& p) {
                  return Bytes{element(p) * (double(p.m) * double(p.k) + double(p.k) * double(p.n) +
                                             double(p.m) * double(p.n))};
              }},
    KernelRow{"grouped_gemm", "group_rows n k product",
              [](const P& p) { return Flops{2.0 * rows_of_groups(p) * double(p.n) * double(p.k)}; },
              [](const P& p) {
                  const double weights = double(p.group_rows.size()) * double(p.n) * double(p.k);
                  const double each =
                      p.product == GroupedProduct::weight_gradient ? 2 * stat(p) : element(p);
                  return Bytes{element(p) * rows_of_groups(p) * double(p.n + p.k) + each * weights};
              }},
    // Fused rows. `rows` of adamw_tensors, gradient_norms and zero are tensors of `width` elements.
    KernelRow{"route_forward", "rows width num_experts top_k",
              [](const P& p) {
                  return Flops{2.0 * double(p.rows) * double(p.width) * double(p.num_experts)};
              },
              [](const P& p) { return streamed<1>(p) + streamed_experts<1>(p); }},
    KernelRow{"expert_activation_forward", "rows width num_experts", no_flops, streamed<3>},
    KernelRow{"expert_activation_backward", "rows width num_experts", no_flops, streamed<5>},
    KernelRow{"residual_rms_norm_forward", kRowsWidth, no_flops, streamed<4>},
    KernelRow{"cross_entropy_in_place", kRowsWidth, no_flops, streamed<2>},
    KernelRow{"adamw_tensors", kRowsWidth, no_flops,
              [](const P& p) { return Bytes{stat(p) * 7 * double(p.rows) * double(p.width)}; }},
    KernelRow{"gradient_norms", kRowsWidth, no_flops,
              [](const P& p) { return Bytes{stat(p) * double(p.rows) * double(p.width)}; }},
    KernelRow{"copy", kRowsWidth, no_flops, streamed<2>},
    KernelRow{"zero", kRowsWidth, no_flops, streamed<1>},
};

}  // namespace

std::span<const KernelRow> kernel_rows() { return kTable; }

const KernelRow* find_kernel_row(std::string_view name) {
    const auto found = std::find_if(kTable.begin(), kTable.end(),
                                    [&](const KernelRow& row) { return row.name == name; });
    return found == kTable.end() ? nullptr : &*found;
}

struct PreparedKernel::Buffers {
    const Backend& backend;
    Seed seed;
    std::uint64_t next = 0;
    std::vector<void*> owned;
    std::vector<std::size_t> sizes;  // of owned
    double bytes = 0;

    Buffers(const Backend& b, Seed s) : backend(b), seed(s) {}
    ~Buffers() {
        for (void* pointer : owned) backend.release(pointer);
    }
    void* allocate(std::size_t size) {
        void* out = nullptr;
        check(backend.allocate(std::max<std::size_t>(size, 1), &out), "allocate");
        owned.push_back(out);
        sizes.push_back(size);
        bytes += double(size);
        return out;
    }
    template <class T>
    T* upload(const std::vector<T>& host) {
        auto* out = static_cast<T*>(allocate(host.size() * sizeof(T)));
        check(backend.copy(out, host.data(), host.size() * sizeof(T), nullptr),
              "copy to the device");
        check(backend.synchronise(nullptr), "synchronise");
        return out;
    }
    /// Random numbers, not zeros: power and clocks depend on data. About normal, by a sum of two
    /// uniforms; one block repeated.
    void* tensor(std::int64_t count, NumberFormat format, double size = 1, double shift = 0) {
        DrawStream stream(derive(seed, "tensor", next++));
        std::vector<float> block(std::size_t(std::min<std::int64_t>(count, 1 << 16)));
        for (float& x : block)
            x = float(shift + size * 2.449 * (stream.uniform() + stream.uniform() - 1));
        const std::size_t element = std::size_t(size_of(format).value);
        std::vector<char> raw(std::size_t(count) * element);
        for (std::int64_t i = 0; i < count; ++i) {
            const float value = block[std::size_t(i) % block.size()];
            char* to = raw.data() + std::size_t(i) * element;
            if (format == NumberFormat::f64) {
                const double wide = value;
                std::memcpy(to, &wide, sizeof wide);
            } else if (format == NumberFormat::f32) {
                std::memcpy(to, &value, sizeof value);
            } else {  // bf16 as the upper half; other 2-byte and 1-byte formats take these bits as
                      // they come
                std::uint32_t bits;
                std::memcpy(&bits, &value, sizeof bits);
                std::uint16_t upper = std::uint16_t(bits >> 16);
                if (format ==
                    NumberFormat::f16) {  // sign, exponent rebiased (|value| < 8), mantissa cut
                    const int exponent = int(bits >> 23 & 0xff) - 127 + 15;
                    upper = std::uint16_t(
                        (bits >> 16 & 0x8000) |
                        (exponent <= 0 ? 0 : (exponent << 10) | (bits >> 13 & 0x3ff)));
                }
                std::memcpy(to, &upper, std::min<std::size_t>(element, 2));
            }
        }
        return upload(raw);
    }
    void* blank(std::int64_t count, NumberFormat format) {
        const std::size_t size = std::size_t(count) * std::size_t(size_of(format).value);
        void* out = allocate(size);
        check(backend.set_zero(out, size, nullptr), "set_zero");
        return out;
    }
    /// k different experts for each unit, uniformly.
    std::vector<std::int32_t> choices(std::int64_t units, std::int64_t experts, std::int64_t k) {
        DrawStream stream(derive(seed, "choices", next++));
        std::vector<std::int32_t> ids(std::size_t(units * k));
        for (std::int64_t u = 0; u < units; ++u)
            for (std::int64_t j = 0; j < k; ++j) {
                std::int32_t id = 0;
                bool repeated = true;
                while (repeated) {
                    id = std::int32_t(stream.below(std::uint64_t(experts)));
                    repeated = false;
                    for (std::int64_t i = 0; i < j; ++i)
                        repeated = repeated || ids[std::size_t(u * k + i)] == id;
                }
                ids[std::size_t(u * k + j)] = id;
            }
        return ids;
    }
};

namespace {

/// A call's arguments live in the closure; a missing pointer in the table is an answer.
template <class Args>
std::function<Status(Stream_*)> launch(Status (*kernel)(const Args*, Stream_*), Args args) {
    return [kernel, args](Stream_* stream) {
        return kernel ? kernel(&args, stream)
                      : status_of(kUnsupported, "this device lacks the kernel");
    };
}

}  // namespace

namespace {

/// Which of its buffers, in the order of their making below, the kernel before has just written: a
/// forward kernel's input, a backward kernel's dy. The optimizer's were all touched a step ago.
int fresh_buffer(std::string_view name, const KernelProblem& p) {
    if (name.starts_with("adamw") || name.starts_with("gradient_norm") || name == "zero") return -1;
    if (name == "expert_activation_backward") return 2;
    if (name == "rms_norm_backward") return 3;
    if (name == "attention_backward") return 4;
    if (name == "grouped_gemm") return p.product == GroupedProduct::forward ? 0 : 1;
    if (name == "swiglu_backward" || name == "gelu_backward" || name == "relu_backward" ||
        name == "unpermute_backward" || name == "embedding_backward" || name == "residual_add" ||
        name == "residual_rms_norm_forward")
        return 1;
    return 0;
}

}  // namespace

PreparedKernel::PreparedKernel(const Backend& backend, std::string_view name,
                               const KernelProblem& p, Seed seed)
    : buffers_(new Buffers(backend, seed)), fresh_(fresh_buffer(name, p)) {
    std::unique_ptr<Buffers> guard(
        buffers_);  // until the end: a failed allocation must not leak the others
    Buffers& b = *buffers_;
    const KernelSet& set = *backend.kernels;
    const NumberFormat f = p.format, s = stat_format(f);
    const std::int64_t rows = p.rows, width = p.width,
                       experts = std::max<std::int64_t>(1, p.num_experts), k = p.top_k;
    assert(find_kernel_row(name) && "a kernel that is in no row of kernel_rows.cpp");

    if (name == "embedding_forward" || name == "embedding_backward") {
        const std::int64_t vocabulary = 32768;
        std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows));
        for (std::size_t t = 0; t < tokens.size(); ++t)
            tokens[t] = std::int32_t(draw(seed, "token", t) % std::uint64_t(vocabulary));
        const auto* ids = b.upload(tokens);
        if (name == "embedding_forward")
            launch_ =
                launch(set.embedding_forward,
                       EmbeddingForward{ids, b.tensor(vocabulary * width, f),
                                        b.blank(rows * width, f), rows, width, vocabulary, f});
        else
            launch_ =
                launch(set.embedding_backward, EmbeddingBackward{ids, b.tensor(rows * width, f),
                                                                 b.blank(vocabulary * width, s),
                                                                 rows, width, vocabulary, f});
    } else if (name == "rms_norm_forward") {
        launch_ = launch(
            set.rms_norm_forward,
            RmsNormForward{b.tensor(rows * width, f), b.tensor(width, f, 0.1, 1),
                           b.blank(rows * width, f), b.blank(rows, s), rows, width, 1e-6, f});
    } else if (name == "rms_norm_backward") {
        launch_ = launch(
            set.rms_norm_backward,
            RmsNormBackward{b.tensor(rows * width, f), b.tensor(width, f, 0.1, 1),
                            b.tensor(rows, s, 0.1, 1), b.tensor(rows * width, f),
                            b.blank(rows * width, f), b.blank(width, s), rows, width, p.accumulate,
                            f});
    } else if (name == "residual_add") {
        launch_ = launch(set.residual_add,
                         ResidualAdd{b.tensor(rows * width, f), b.tensor(rows * width, f),
                                     b.blank(rows * width, f), rows * width, f});
    } else if (name == "bias_forward") {
        launch_ = launch(set.bias_forward,
                         BiasForward{b.tensor(rows * width, f), b.tensor(width, f, 1e-3), nullptr,
                                     rows, width, 1, f});
    } else if (name == "bias_backward") {
        launch_ = launch(
            set.bias_backward,
            BiasBackward{b.tensor(rows * width, f), b.blank(width, s), nullptr, rows, width, 1, f});
    } else if (name == "rope_forward" || name == "rope_backward") {
        std::vector<std::int32_t> positions(static_cast<std::size_t>(rows));
        for (std::size_t t = 0; t < positions.size(); ++t) positions[t] = std::int32_t(t % 4096);
        const std::int64_t all = p.num_heads * p.head_size;
        launch_ = launch(name == "rope_forward" ? set.rope_forward : set.rope_backward,
                         Rope{b.tensor(rows * all, f), b.upload(positions), rows, p.num_heads,
                              p.head_size, all, 10000, f});
    } else if (name == "route_forward") {
        RouteForward call;
        call.x = b.tensor(rows * width, f);
        call.weight = b.tensor(experts * width, s, 0.05);
        call.width = width;
        call.x_format = f;
        call.router.probabilities = b.blank(rows * experts, s);
        call.router.log_sum_exp = b.blank(rows, s);
        call.router.expert_ids = static_cast<std::int32_t*>(b.blank(rows * k, NumberFormat::i32));
        call.router.gates = b.blank(rows * k, s);
        call.router.probability_sums = b.blank(experts, s);
        call.router.z_sum = static_cast<double*>(b.blank(1, NumberFormat::f64));
        call.router.units = rows;
        call.router.num_experts = experts;
        call.router.top_k = k;
        call.router.format = s;
        launch_ = launch(set.route_forward, call);
    } else if (name.starts_with("expert_activation")) {
        std::vector<std::int32_t> offsets;
        for (std::int64_t e = 0; e <= experts; ++e)
            offsets.push_back(std::int32_t(rows * e / experts));
        const void *x = b.tensor(rows * width * 2, f), *bias = b.tensor(experts * width * 2, f, 0.1);
        if (name == "expert_activation_forward")
            launch_ = launch(set.expert_activation_forward,
                             ExpertActivationForward{x, bias, b.upload(offsets),
                                                     b.blank(rows * width, f), rows, width, experts,
                                                     ActivationKind::swiglu, f});
        else
            launch_ = launch(set.expert_activation_backward,
                             ExpertActivationBackward{x, bias, b.tensor(rows * width, f),
                                                      b.upload(offsets),
                                                      b.blank(rows * width * 2, f),
                                                      b.blank(experts * width * 2, s), rows, width,
                                                      experts, ActivationKind::swiglu, f});
    } else if (name == "residual_rms_norm_forward") {
        launch_ = launch(
            set.residual_rms_norm_forward,
            ResidualRmsNormForward{b.tensor(rows * width, f), b.tensor(rows * width, f),
                                   b.tensor(width, f, 0.1, 1), b.blank(rows * width, f),
                                   b.blank(rows * width, f), b.blank(rows, s), rows, width, 1e-6, f});
    } else if (name.ends_with("glu_forward") || name == "gelu_forward" || name == "relu_forward") {
        const auto kernel = name == "swiglu_forward" ? set.swiglu_forward
                            : name == "gelu_forward" ? set.gelu_forward
                                                     : set.relu_forward;
        const std::int64_t inputs = name == "swiglu_forward" ? 2 : 1;
        launch_ = launch(kernel, ActivationForward{b.tensor(rows * width * inputs, f),
                                                   b.blank(rows * width, f), rows, width, f});
    } else if (name.ends_with("glu_backward") || name == "gelu_backward" ||
               name == "relu_backward") {
        const auto kernel = name == "swiglu_backward" ? set.swiglu_backward
                            : name == "gelu_backward" ? set.gelu_backward
                                                      : set.relu_backward;
        const std::int64_t inputs = name == "swiglu_backward" ? 2 : 1;
        launch_ = launch(kernel, ActivationBackward{
                                     b.tensor(rows * width * inputs, f), b.tensor(rows * width, f),
                                     b.blank(rows * width * inputs, f), rows, width, f});
    } else if (name == "router_forward") {
        RouterForward call;
        call.logits = b.tensor(rows * experts, s);
        call.probabilities = b.blank(rows * experts, s);
        call.log_sum_exp = b.blank(rows, s);
        call.expert_ids = static_cast<std::int32_t*>(b.blank(rows * k, NumberFormat::i32));
        call.gates = b.blank(rows * k, s);
        call.probability_sums = b.blank(experts, s);
        call.units = rows;
        call.num_experts = experts;
        call.top_k = k;
        call.format = s;
        launch_ = launch(set.router_forward, call);
    } else if (name == "router_backward") {
        RouterBackward call;
        call.probabilities =
            b.tensor(rows * experts, s, 0.1 / double(experts), 1.0 / double(experts));
        call.log_sum_exp = b.tensor(rows, s);
        call.expert_ids = b.upload(b.choices(rows, experts, k));
        call.gates = b.tensor(rows * k, s, 0.1, 0.5);
        call.dgates = b.tensor(rows * k, s);
        call.dprobability = b.tensor(experts, s);
        call.dlogits = b.blank(rows * experts, s);
        call.units = rows;
        call.num_experts = experts;
        call.top_k = k;
        call.z_scale = 1e-3;
        call.format = s;
        launch_ = launch(set.router_backward, call);
    } else if (name == "document_pool") {
        std::vector<std::int32_t> begin, size;
        for (std::int64_t d = 0; d <= p.num_documents; ++d)
            begin.push_back(std::int32_t(rows * d / p.num_documents));
        for (std::int64_t d = 0; d < p.num_documents; ++d)
            size.push_back(
                std::int32_t(1 + draw(seed, "pool", std::uint64_t(d)) % std::uint64_t(experts)));
        launch_ = launch(
            set.document_pool,
            DocumentPoolMask{
                b.tensor(rows * experts, s, 0.1 / double(experts), 1.0 / double(experts)),
                b.upload(begin), b.upload(size), b.blank(p.num_documents * experts, s),
                static_cast<std::uint8_t*>(b.blank(p.num_documents * experts, NumberFormat::u8)),
                rows, experts, p.num_documents, s});
    } else if (name == "permutation_map" || name.starts_with("permute") ||
               name.starts_with("unpermute")) {
        const auto ids = b.choices(rows, experts, k);
        // The map itself, on the host: stable by expert.
        std::vector<std::int32_t> row_of_slot(ids.size()), slot_of_row(ids.size()),
            place(std::size_t(experts) + 1, 0);
        for (const std::int32_t id : ids) ++place[std::size_t(id) + 1];
        for (std::size_t e = 1; e < place.size(); ++e) place[e] += place[e - 1];
        for (std::size_t slot = 0; slot < ids.size(); ++slot) {
            row_of_slot[slot] = place[std::size_t(ids[slot])]++;
            slot_of_row[std::size_t(row_of_slot[slot])] = std::int32_t(slot);
        }
        const std::int64_t routed = rows * k;
        if (name == "permutation_map") {
            const auto i32 = [&](std::int64_t count) {
                return static_cast<std::int32_t*>(b.blank(count, NumberFormat::i32));
            };
            launch_ = launch(set.permutation_map,
                             PermutationMap{b.upload(ids), i32(experts), i32(experts + 1),
                                            i32(routed), i32(routed), rows, k, experts, 0});
        } else if (name == "permute_forward") {
            launch_ = launch(set.permute_forward,
                             PermuteForward{b.tensor(rows * width, f), b.upload(slot_of_row),
                                            b.blank(routed * width, f), routed, width, k, f});
        } else if (name == "permute_backward") {
            launch_ = launch(set.permute_backward,
                             PermuteBackward{b.tensor(routed * width, f), b.upload(row_of_slot),
                                             b.blank(rows * width, f), rows, width, k, false, f});
        } else if (name == "unpermute_forward") {
            launch_ = launch(set.unpermute_forward,
                             UnpermuteForward{b.tensor(routed * width, f), b.upload(row_of_slot),
                                              b.tensor(routed, s, 0.1, 0.5),
                                              b.blank(rows * width, f), rows, width, k, false, f});
        } else {
            launch_ =
                launch(set.unpermute_backward,
                       UnpermuteBackward{b.tensor(routed * width, f), b.tensor(rows * width, f),
                                         b.upload(row_of_slot), b.tensor(routed, s, 0.1, 0.5),
                                         b.blank(routed * width, f), b.blank(routed, s), rows,
                                         width, k, f});
        }
    } else if (name == "attention_forward" || name == "attention_backward") {
        const std::int64_t tokens = p.batch * p.sequence,
                           all = (p.num_heads + 2 * p.num_kv_heads) * p.head_size;
        const std::size_t element_bytes = std::size_t(size_of(f).value);
        auto* qkv = static_cast<char*>(b.tensor(tokens * all, f));
        AttentionForward call;
        call.q = qkv;
        call.k = qkv + std::size_t(p.num_heads * p.head_size) * element_bytes;
        call.v = qkv + std::size_t((p.num_heads + p.num_kv_heads) * p.head_size) * element_bytes;
        call.q_stride = call.k_stride = call.v_stride = all;
        call.out = b.blank(tokens * p.num_heads * p.head_size, f);
        call.log_sum_exp = b.blank(p.batch * p.num_heads * p.sequence, s);
        call.batch = p.batch;
        call.sequence = p.sequence;
        call.num_heads = p.num_heads;
        call.num_kv_heads = p.num_kv_heads;
        call.head_size = p.head_size;
        call.window = p.window;
        call.scale = 1 / std::sqrt(double(p.head_size));
        call.format = f;
        if (name == "attention_forward") {
            launch_ = launch(set.attention_forward, call);
        } else {
            // A format that it lacks is said when the row is run.
            if (set.attention_forward && set.attention_forward(&call, nullptr).code != kUnsupported)
                check(backend.synchronise(nullptr), "attention_forward");
            auto* dqkv = static_cast<char*>(b.blank(tokens * all, f));
            launch_ = launch(
                set.attention_backward,
                AttentionBackward{call, b.tensor(tokens * p.num_heads * p.head_size, f), dqkv,
                                  dqkv + std::size_t(p.num_heads * p.head_size) * element_bytes,
                                  dqkv + std::size_t((p.num_heads + p.num_kv_heads) * p.head_size) *
                                             element_bytes});
        }
    } else if (name.starts_with("cross_entropy")) {
        std::vector<std::int32_t> targets(static_cast<std::size_t>(rows));
        for (std::size_t t = 0; t < targets.size(); ++t)
            targets[t] = std::int32_t(draw(seed, "target", t) %
                                      std::uint64_t(std::max<std::int64_t>(1, width)));
        const auto* ids = b.upload(targets);
        if (name == "cross_entropy_in_place")
            launch_ = launch(set.cross_entropy_in_place,
                             CrossEntropyInPlace{b.tensor(rows * width, f), ids, b.blank(rows, s),
                                                 rows, width, 1, f});
        else if (name == "cross_entropy_forward")
            launch_ = launch(set.cross_entropy_forward,
                             CrossEntropyForward{b.tensor(rows * width, f), ids, b.blank(rows, s),
                                                 b.blank(rows, s), rows, width, f});
        else
            launch_ =
                launch(set.cross_entropy_backward,
                       CrossEntropyBackward{b.tensor(rows * width, f),
                                            b.tensor(rows, s, 0.1, std::log(double(width)) + 0.5),
                                            ids, b.blank(rows * width, f), rows, width, 1, f});
    } else if (name == "adamw" || name == "adamw_tensors") {
        const auto tensor_of = [&](std::int64_t count) {
            AdamW call;
            call.weight = b.tensor(count, f, 0.02);
            call.master = f == s ? nullptr : b.tensor(count, s, 0.02);
            call.m = b.tensor(count, s, 1e-3);
            call.v = b.tensor(count, s, 1e-7, 1e-6);
            call.gradient = b.tensor(count, s, 1e-3);
            call.count = count;
            call.step = 10;
            call.learning_rate = 1e-5;
            call.weight_decay = 0.1;
            call.format = f;
            return call;
        };
        if (name == "adamw") {
            launch_ = launch(set.adamw, tensor_of(rows * width));
        } else {
            auto tensors = std::make_shared<std::vector<AdamW>>();
            for (std::int64_t t = 0; t < rows; ++t) tensors->push_back(tensor_of(width));
            launch_ = [run = launch(set.adamw_tensors, AdamWTensors{tensors->data(), rows}),
                       tensors](Stream_* stream) { return run(stream); };
        }
    } else if (name == "gradient_norm") {
        launch_ = launch(
            set.gradient_norm,
            GradientNorm{b.tensor(rows * width, s),
                         static_cast<double*>(b.blank(1, NumberFormat::f64)), rows * width, f});
    } else if (name == "gradient_norms") {
        auto parts = std::make_shared<std::vector<GradientPart>>();
        for (std::int64_t t = 0; t < rows; ++t) parts->push_back({b.tensor(width, s), width});
        launch_ = [run = launch(set.gradient_norms,
                                GradientNorms{parts->data(), rows,
                                              static_cast<double*>(b.blank(1, NumberFormat::f64)),
                                              f}),
                   parts](Stream_* stream) { return run(stream); };
    } else if (name == "gemm") {
        GemmCall call;
        call.a = b.tensor(p.m * p.k, f);
        call.b = b.tensor(p.k * p.n, f);
        call.c = b.blank(p.m * p.n, f);
        call.m = p.m;
        call.n = p.n;
        call.k = p.k;
        call.transpose_a = p.transpose_a;
        call.transpose_b = p.transpose_b;
        call.lda = p.transpose_a ? p.m : p.k;
        call.ldb = p.transpose_b ? p.k : p.n;
        call.ldc = p.n;
        call.beta = p.accumulate ? 1 : 0;
        call.format = call.out_format = f;
        launch_ = launch(set.gemm, call);
    } else if (name == "grouped_gemm") {
        auto offsets = std::make_shared<std::vector<std::int32_t>>(1, 0);
        for (const std::uint32_t r : p.group_rows)
            offsets->push_back(offsets->back() + std::int32_t(r));
        const std::int64_t total = offsets->back(), groups = std::int64_t(p.group_rows.size());
        const bool weights_out = p.product == GroupedProduct::weight_gradient;
        GroupedGemmCall call;
        call.x = b.tensor(total * p.k, f);
        call.y = b.tensor(total * p.n, f);
        call.w =
            weights_out ? b.blank(groups * p.n * p.k, s) : b.tensor(groups * p.n * p.k, f, 0.02);
        call.offsets = b.upload(*offsets);
        call.host_offsets = offsets->data();
        call.num_experts = groups;
        call.rows = total;
        call.n = p.n;
        call.k = p.k;
        call.product = p.product;
        call.format = f;
        launch_ = [run = launch(set.grouped_gemm, call), offsets](Stream_* stream) {
            return run(stream);
        };
    } else if (name == "zero") {
        const std::size_t size = std::size_t(width) * std::size_t(size_of(f).value);
        launch_ = [&backend, to = static_cast<char*>(b.blank(rows * width, f)), size,
                   rows](Stream_* stream) {
            Status status;
            for (std::int64_t t = 0; t < rows && status.code == kOk; ++t)
                status = backend.set_zero(to + std::size_t(t) * size, size, stream);
            return status;
        };
    } else {  // copy
        const std::size_t size = std::size_t(rows * width) * std::size_t(size_of(f).value);
        void *from = b.tensor(rows * width, f), *to = b.blank(rows * width, f);
        launch_ = [&backend, from, to, size](Stream_* stream) {
            return backend.copy(to, from, size, stream);
        };
    }
    guard.release();
}

PreparedKernel::PreparedKernel(PreparedKernel&& other) noexcept
    : buffers_(std::exchange(other.buffers_, nullptr)),
      fresh_(other.fresh_),
      launch_(std::move(other.launch_)) {}
PreparedKernel::~PreparedKernel() { delete buffers_; }
Status PreparedKernel::run(Stream_* stream) const { return launch_(stream); }
std::vector<PreparedKernel::Block> PreparedKernel::blocks() const {
    std::vector<Block> out;
    for (std::size_t i = 0; i < buffers_->owned.size(); ++i)
        out.push_back({buffers_->owned[i], buffers_->sizes[i], static_cast<int>(i) == fresh_});
    return out;
}
Bytes PreparedKernel::footprint() const { return {buffers_ ? buffers_->bytes : 0}; }

}  // namespace moeplan
