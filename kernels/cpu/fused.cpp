/// Fused rows. Each is the rows that it fuses, one after the other on blocks of rows that stay in
/// the nearest cache: their definition and, for the CPU, the fusion. One thread; deterministic.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_backend.hpp"
#include "kernels/cpu/cpu_kernels.hpp"

namespace moeplan::cpu {
namespace {

// Scratch of this file.
constexpr int kX = 16, kDy = 17, kBias = 18, kSums = 19;

const KernelSet& rows_of_the_cpu() { return *cpu_backend().kernels; }

void* at(void* data, std::int64_t element, NumberFormat format) {
    return static_cast<char*>(data) + element * std::int64_t(size_of(format).value);
}
const void* at(const void* data, std::int64_t element, NumberFormat format) {
    return static_cast<const char*>(data) + element * std::int64_t(size_of(format).value);
}

template <class Call>
Status run(Status (*row)(const Call*, Stream_*), const Call& call) {
    return row(&call, nullptr);
}

bool knows(NumberFormat format) {
    return format == NumberFormat::f32 || format == NumberFormat::f64 ||
           format == NumberFormat::bf16;
}
Status unknown_format() {
    return status_of(kUnsupported, "the CPU backend computes in f32, f64 and bf16");
}

/// `count` numbers in stat, in memory of our own.
void* copy_in_stat(int slot, const void* from, std::int64_t count, NumberFormat format) {
    const NumberFormat stat = stat_format(format);
    void* to = scratch(slot, std::size_t(count) * std::size_t(size_of(stat).value));
    if (format == stat)
        std::memcpy(to, from, std::size_t(count) * std::size_t(size_of(stat).value));
    else
        run(rows_of_the_cpu().convert, Convert{from, to, count, format, stat});
    return to;
}
/// Numbers in stat, rounded to where they belong.
void store(const void* from, void* to, std::int64_t count, NumberFormat format) {
    const NumberFormat stat = stat_format(format);
    if (format == stat)
        std::memcpy(to, from, std::size_t(count) * std::size_t(size_of(stat).value));
    else
        run(rows_of_the_cpu().convert, Convert{from, to, count, stat, format});
}

/// body(first, count) over blocks of at most `size` elements, one row at least; stops at a status
/// that is not kOk.
template <class Body>
Status in_blocks(std::int64_t begin, std::int64_t end, std::int64_t width, std::int64_t size,
                 Body body) {
    const std::int64_t at_once = std::max<std::int64_t>(1, size / std::max<std::int64_t>(1, width));
    for (std::int64_t first = begin; first < end; first += at_once)
        if (const Status status = body(first, std::min(at_once, end - first)); status.code != kOk)
            return status;
    return {};
}

/// to += from, in stat.
void add_to(void* to, const void* from, std::int64_t count, NumberFormat stat) {
    run(rows_of_the_cpu().residual_add, ResidualAdd{to, from, to, count, stat});
}

std::int64_t inputs_of(ActivationKind kind, std::int64_t width) {
    return kind == ActivationKind::swiglu ? 2 * width : width;
}
auto forward_of(ActivationKind kind) {
    const KernelSet& rows = rows_of_the_cpu();
    return kind == ActivationKind::swiglu ? rows.swiglu_forward
           : kind == ActivationKind::gelu ? rows.gelu_forward
                                          : rows.relu_forward;
}
auto backward_of(ActivationKind kind) {
    const KernelSet& rows = rows_of_the_cpu();
    return kind == ActivationKind::swiglu ? rows.swiglu_backward
           : kind == ActivationKind::gelu ? rows.gelu_backward
                                          : rows.relu_backward;
}

}  // namespace

Status route_forward(const RouteForward* call, Stream_*) {
    const KernelSet& rows = rows_of_the_cpu();
    const RouterForward& route = call->router;
    const NumberFormat stat = stat_format(route.format);
    if (!knows(call->x_format)) return unknown_format();
    const std::int64_t experts = route.num_experts, width = call->width;
    const std::size_t bytes = std::size_t(size_of(stat).value);
    if (route.probability_sums) std::memset(route.probability_sums, 0, std::size_t(experts) * bytes);
    if (route.z_sum) *route.z_sum = 0;
    // Blocks of some 256 KiB of x: large enough for a product.
    return in_blocks(0, route.units, width + experts, 1 << 16, [&](std::int64_t u, std::int64_t n) {
        const void* x = at(call->x, u * width, call->x_format);
        if (call->x_format != stat) x = copy_in_stat(kX, x, n * width, call->x_format);
        void* logits = call->logits ? at(call->logits, u * experts, stat)
                                    : scratch(kDy, std::size_t(n * experts) * bytes);
        GemmCall product;
        product.a = x, product.b = call->weight, product.c = logits;
        product.m = n, product.n = experts, product.k = width;
        product.lda = product.ldb = width, product.ldc = experts;
        product.transpose_b = true;
        product.format = product.out_format = stat;
        if (const Status status = run(rows.gemm, product); status.code != kOk) return status;
        if (call->bias)
            run(rows.bias_forward, BiasForward{logits, call->bias, nullptr, n, experts, 1, stat});
        RouterForward part = route;
        part.logits = logits;
        part.units = n;
        part.format = stat;
        if (part.mask_of_unit) part.mask_of_unit += u;
        part.probabilities = at(route.probabilities, u * experts, stat);
        if (part.log_sum_exp) part.log_sum_exp = at(route.log_sum_exp, u, stat);
        if (part.expert_ids) part.expert_ids += u * route.top_k;
        if (part.gates) part.gates = at(route.gates, u * route.top_k, stat);
        double z = 0;
        if (part.z_sum) part.z_sum = &z;
        if (part.probability_sums) part.probability_sums = scratch(kSums, std::size_t(experts) * bytes);
        const Status status = run(rows.router_forward, part);
        if (part.probability_sums)
            add_to(route.probability_sums, part.probability_sums, experts, stat);
        if (part.z_sum) *route.z_sum += z;
        return status;
    });
}

/// body(group, first row, rows) over blocks of the rows of each group.
template <class Call, class Body>
Status each_group(const Call& call, std::int64_t inputs, Body body) {
    for (std::int64_t g = 0; g < call.num_groups; ++g) {
        const std::int64_t begin = call.offsets ? call.offsets[g] : 0,
                           end = call.offsets ? call.offsets[g + 1] : call.rows;
        if (const Status status = in_blocks(
                begin, end, inputs, 4096,
                [&](std::int64_t first, std::int64_t rows) { return body(g, first, rows); });
            status.code != kOk)
            return status;
    }
    return {};
}

Status expert_activation_forward(const ExpertActivationForward* call, Stream_*) {
    const KernelSet& rows = rows_of_the_cpu();
    const NumberFormat format = call->format, stat = stat_format(format);
    const std::int64_t width = call->width, inputs = inputs_of(call->kind, width);
    if (!call->bias)
        return run(forward_of(call->kind),
                   ActivationForward{call->x, call->y, call->rows, width, format});
    if (!knows(format)) return unknown_format();
    return each_group(*call, inputs, [&](std::int64_t g, std::int64_t first, std::int64_t n) {
        void* x = copy_in_stat(kX, at(call->x, first * inputs, format), n * inputs, format);
        const void* bias = copy_in_stat(kBias, at(call->bias, g * inputs, format), inputs, format);
        run(rows.bias_forward, BiasForward{x, bias, nullptr, n, inputs, 1, stat});
        void* y = scratch(kDy, std::size_t(n * width) * std::size_t(size_of(stat).value));
        const Status status = run(forward_of(call->kind), ActivationForward{x, y, n, width, stat});
        store(y, at(call->y, first * width, format), n * width, format);
        return status;
    });
}

Status expert_activation_backward(const ExpertActivationBackward* call, Stream_*) {
    const KernelSet& rows = rows_of_the_cpu();
    const NumberFormat format = call->format, stat = stat_format(format);
    const std::int64_t width = call->width, inputs = inputs_of(call->kind, width);
    if (!call->bias)
        return run(backward_of(call->kind),
                   ActivationBackward{call->x, call->dy, call->dx, call->rows, width, format});
    if (!knows(format)) return unknown_format();
    return each_group(*call, inputs, [&](std::int64_t g, std::int64_t first, std::int64_t n) {
        void* x = copy_in_stat(kX, at(call->x, first * inputs, format), n * inputs, format);
        const void* dy = copy_in_stat(kDy, at(call->dy, first * width, format), n * width, format);
        const void* bias = copy_in_stat(kBias, at(call->bias, g * inputs, format), inputs, format);
        run(rows.bias_forward, BiasForward{x, bias, nullptr, n, inputs, 1, stat});
        const Status status =
            run(backward_of(call->kind), ActivationBackward{x, dy, x, n, width, stat});
        run(rows.bias_backward,
            BiasBackward{x, at(call->dbias, g * inputs, stat), nullptr, n, inputs, 1, stat});
        store(x, at(call->dx, first * inputs, format), n * inputs, format);
        return status;
    });
}

Status residual_rms_norm_forward(const ResidualRmsNormForward* call, Stream_*) {
    const KernelSet& rows = rows_of_the_cpu();
    const NumberFormat format = call->format;
    const std::int64_t width = call->width;
    if (!knows(format)) return unknown_format();
    return in_blocks(0, call->rows, width, 4096, [&](std::int64_t r, std::int64_t n) {
        void* sum = at(call->sum, r * width, format);
        run(rows.residual_add,
            ResidualAdd{at(call->a, r * width, format), at(call->b, r * width, format), sum,
                        n * width, format});
        return run(rows.rms_norm_forward,
                   RmsNormForward{sum, call->weight, at(call->y, r * width, format),
                                  at(call->inverse_rms, r, stat_format(format)), n, width,
                                  call->epsilon, format});
    });
}

Status cross_entropy_in_place(const CrossEntropyInPlace* call, Stream_*) {
    const KernelSet& rows = rows_of_the_cpu();
    const NumberFormat format = call->format, stat = stat_format(format);
    const std::int64_t width = call->vocab_size;
    if (!knows(format)) return unknown_format();
    return in_blocks(0, call->num_tokens, width, 4096, [&](std::int64_t t, std::int64_t n) {
        void *logits = at(call->logits, t * width, format),
             *sums = scratch(kSums, std::size_t(n) * std::size_t(size_of(stat).value));
        const std::int32_t* targets = call->targets + t;
        if (const Status status =
                run(rows.cross_entropy_forward,
                    CrossEntropyForward{logits, targets, at(call->loss, t, stat), sums, n, width, format});
            status.code != kOk)
            return status;
        return run(rows.cross_entropy_backward,
                   CrossEntropyBackward{logits, sums, targets, logits, n, width, call->scale, format});
    });
}

Status adamw_tensors(const AdamWTensors* call, Stream_* stream) {
    for (std::int64_t i = 0; i < call->num_tensors; ++i)
        if (const Status status = rows_of_the_cpu().adamw(call->tensors + i, stream);
            status.code != kOk)
            return status;
    return {};
}

Status gradient_norms(const GradientNorms* call, Stream_*) {
    for (std::int64_t i = 0; i < call->num_parts; ++i)
        if (const Status status = run(rows_of_the_cpu().gradient_norm,
                                      GradientNorm{call->parts[i].gradient, call->sum,
                                                   call->parts[i].count, call->format});
            status.code != kOk)
            return status;
    return {};
}

}  // namespace moeplan::cpu
