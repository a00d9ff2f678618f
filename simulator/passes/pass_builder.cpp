#include "simulator/passes/pass_builder.hpp"

#include <algorithm>
#include <cassert>

#include "model/kernel_work.hpp"

namespace moeplan {

// ---------------------------------------------------------------------------------------------
// whose kernels follow

void PassBuilder::name(std::string what) {
    if (open_.what.empty()) open_.what = std::move(what);
}

void PassBuilder::in(Module module, bool forward, double share) {
    current_ = &sections_[{module, forward}];
    const Launches& launches = software.launches[static_cast<std::size_t>(module)];
    double count = forward ? launches.forward : launches.backward, bare = 0;
    if ((module == Module::attention || module == Module::feed_forward) &&
        step.layout.tensor_parallel_size > 1)
        count +=
            0.5 * (forward ? software.tensor_parallel.forward : software.tensor_parallel.backward);
    if (module == Module::experts && experts_ > 0)
        bare = experts_ * (forward ? software.per_expert.forward : software.per_expert.backward);
    const bool products = module == Module::attention || module == Module::feed_forward ||
                          module == Module::shared_experts || module == Module::experts;
    if (products && casts()) count *= software.narrow_launches, bare *= software.narrow_launches;
    if (module == Module::attention && latent_) count *= software.latent_attention;
    current_->captured = software.captures(module);
    current_->launches = share * count;
    current_->bare = share * bare;
}

bool PassBuilder::casts() const {
    const Precision p = step.schedule.precision;
    return p == Precision::fp8 || p == Precision::mxfp8 || p == Precision::nvfp4;
}

// ---------------------------------------------------------------------------------------------
// the host

void PassBuilder::sync() {
    ++open_.syncs;
    cut();
}

void PassBuilder::launches(double count) {
    if (software.counted || count <= 0) return;
    KernelCall call{"copy", Streamed{}};
    call.launches = count;
    open_.calls.push_back(call);
}

/// The host launches collectives too: a launch without a kernel, at the end of what is open.
void PassBuilder::launch_exchange() {
    if (!current_ || !current_->captured) launches(1);
}

void PassBuilder::share_out(const Section& section) {
    if (section.calls.empty()) return;
    const auto count = static_cast<double>(section.calls.size());
    const double each = section.launches / count, bare = section.bare / count;
    bool first = true;
    for (const auto& [work, call] : section.calls) {
        KernelCall& kernel = works_[work].calls[call];
        kernel.launches = section.captured ? (first ? software.captured_launch : 0) : each;
        kernel.bare_launches = section.captured ? 0 : bare;
        kernel.small_kernels = std::max(0.0, each + bare - 1);
        first = false;
    }
}

// ---------------------------------------------------------------------------------------------
// kernels

void PassBuilder::add(KernelCall call, bool routed) {
    if (current_ && !software.counted)
        current_->calls.emplace_back(static_cast<std::uint32_t>(works_.size()),
                                     static_cast<std::uint32_t>(open_.calls.size()));
    open_.calls.push_back(std::move(call));
    routed_ = routed_ || routed;
}

KernelCall PassBuilder::product(std::string_view kernel, Gemm shape, bool narrow,
                                double share) const {
    KernelCall call{kernel, shape, share, narrow};
    if (narrow && casts()) call.rate = software.narrow_rate;
    return call;
}

KernelCall PassBuilder::experts(std::string_view kernel, std::int64_t n, std::int64_t k) const {
    KernelCall call{kernel, GroupedGemm{{}, n, k}, 1, true, true};
    if (casts()) call.rate = software.narrow_rate;
    return call;
}

void PassBuilder::cast(double items) {
    add({"copy", Streamed{Bytes{software.cast_bytes * items}}});
}

void PassBuilder::cast_rows(std::int64_t width) {
    add({"copy", Streamed{Bytes{software.cast_bytes * static_cast<double>(width)}, width}, 1, false,
         true},
        true);
}

void PassBuilder::gemm(std::int64_t m, std::int64_t n, std::int64_t k, bool narrow, double share) {
    if (m <= 0 || n <= 0 || k <= 0) return;
    if (narrow && casts())  // the input is cast, and transposed for the backward pass
        cast(static_cast<double>(m) * static_cast<double>(k) * share);
    add(product("gemm", Gemm{m, n, k}, narrow, share));
}

void PassBuilder::input_gradient(std::int64_t m, std::int64_t n, std::int64_t k, bool narrow) {
    if (m <= 0 || n <= 0 || k <= 0) return;
    if (narrow && casts()) cast(static_cast<double>(m) * static_cast<double>(n));
    add(product("gemm_input_gradient", Gemm{m, n, k}, narrow));
}

void PassBuilder::weight_gradient(std::int64_t m, std::int64_t n, std::int64_t k, bool narrow) {
    if (m <= 0 || n <= 0 || k <= 0) return;
    add(product("gemm_weight_gradient", Gemm{m, n, k}, narrow));
}

void PassBuilder::gemm_backward(std::int64_t m, std::int64_t n, std::int64_t k, BackwardPart which,
                                bool narrow) {
    if (which != BackwardPart::weight) input_gradient(m, n, k, narrow);
    if (which != BackwardPart::input) weight_gradient(m, n, k, narrow);
}

void PassBuilder::streamed(std::string_view kernel, std::int64_t rows, std::int64_t width,
                           double element, double factor) {
    if (rows <= 0 || width <= 0) return;
    add({kernel,
         Streamed{streamed_bytes(kernel, static_cast<double>(rows) * static_cast<double>(width),
                                 Bytes{element > 0 ? element : shapes.element.value}) *
                      factor,
                  width}});
}

void PassBuilder::elementwise(std::string_view kernel, std::int64_t rows, std::int64_t width) {
    streamed(kernel, rows, width, 0, software.elementwise_bytes);
}

void PassBuilder::grouped(std::int64_t n, std::int64_t k) {
    if (casts()) cast_rows(k);
    add(experts("grouped_gemm", n, k), true);
}

void PassBuilder::grouped_backward(std::int64_t n, std::int64_t k, BackwardPart which) {
    if (which != BackwardPart::weight) {
        if (casts()) cast_rows(n);
        add(experts("grouped_gemm_input_gradient", n, k), true);
    }
    if (which != BackwardPart::input) add(experts("grouped_gemm_weight_gradient", n, k), true);
}

void PassBuilder::streamed_rows(std::string_view kernel, std::int64_t width, double factor) {
    if (width > 0)
        add({kernel,
             Streamed{streamed_bytes(kernel, static_cast<double>(width), shapes.element) * factor,
                      width},
             1, false, true},
            true);
}

// ---------------------------------------------------------------------------------------------
// exchanges

int PassBuilder::push(PassItem item) {
    pass_.items.push_back(std::move(item));
    last_ = static_cast<int>(pass_.items.size()) - 1;
    next_ = {last_};
    return last_;
}

int PassBuilder::cut() {
    if (open_.calls.empty() && open_.syncs == 0 && !open_.sync_first) return last_;
    PassItem item;
    open_.part = part;
    item.work = static_cast<std::uint32_t>(works_.size());
    item.part = part;
    item.phase = phase;
    item.routed = routed_;
    item.after = next_;
    item.under = under_;
    works_.push_back(std::move(open_));
    open_ = {};
    routed_ = false;
    under_ = -1;
    return push(item);
}

PassItem PassBuilder::exchange_item(Collective kind, Group group, double bytes, Stream stream,
                                    Part of, bool routed, bool to_experts) const {
    PassItem item;
    item.exchange = true;
    item.demand.kind = kind;
    item.demand.group = group;
    item.demand.payload = Bytes{bytes};
    item.demand.to_experts = to_experts;
    item.stream = stream;
    item.part = of;
    item.phase = phase;
    item.routed = routed;
    item.after = next_;
    return item;
}

int PassBuilder::exchange(Collective kind, Group group, double bytes, Stream stream, Part of,
                          bool routed, bool to_experts) {
    launch_exchange();
    cut();
    return push(exchange_item(kind, group, bytes, stream, of, routed, to_experts));
}

void PassBuilder::beside(Collective kind, Group group, double bytes, Stream stream, Part of,
                         bool overlap) {
    if (!overlap) {
        exchange(kind, group, bytes, stream, of);
        return;
    }
    launch_exchange();
    cut();
    const auto before = next_;
    const int id = push(exchange_item(kind, group, bytes, stream, of, false, true));
    next_ = before;
    under_ = id;
    open_exchanges_.push_back(id);
}

void PassBuilder::hidden(Collective kind, Group group, double bytes, Stream stream, Part of,
                         bool to_experts) {
    launch_exchange();
    cut();
    const auto before = next_;
    const int id = push(exchange_item(kind, group, bytes, stream, of, true, to_experts));
    next_ = before;
    under_ = id;
}

void PassBuilder::join() {
    if (open_exchanges_.empty()) return;
    cut();
    for (const int id : open_exchanges_) next_.push_back(id);
    open_exchanges_.clear();
}

LayerPass PassBuilder::finish() {
    cut();
    for (const int id : open_exchanges_) next_.push_back(id);
    for (const auto& [key, section] : sections_) share_out(section);
    return std::move(pass_);
}

// ---------------------------------------------------------------------------------------------
// words of the passes

std::string_view activation_kernel(Activation activation, bool forward) {
    switch (activation) {
        case Activation::swiglu:
            return forward ? "swiglu_forward" : "swiglu_backward";
        case Activation::gelu:
            return forward ? "gelu_forward" : "gelu_backward";
        case Activation::relu:
            return forward ? "relu_forward" : "relu_backward";
    }
    return {};
}

}  // namespace moeplan
