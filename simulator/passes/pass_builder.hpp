#pragma once
/// Collects the kernels of a pass until an exchange cuts them, and shares out the launches of the
/// modules that they belong to.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "simulator/passes/layer_pass.hpp"

namespace moeplan {

/// One pass in the making. Kernels go to `works`, items to the pass, in the order of the calls.
class PassBuilder {
  public:
    PassBuilder(const PassContext& context, std::vector<Work>& works)
        : step(context.step), software(context.software), shapes(context.shapes), works_(works) {}

    const StepCase& step;
    const SoftwareCosts& software;
    const LayerShapes& shapes;
    Phase phase = Phase::forward;  ///< of what follows
    Part part = Part::compute;

    // ---- whose kernels follow

    /// The bar in the timeline that the open work belongs to, unless it has a name.
    void name(std::string what);
    /// What follows belongs to this module: its launches are shared out among its kernels.
    /// @param share  of the module's launches (input or weight gradients alone: a half)
    void in(Module module, bool forward, double share = 1);
    /// Kernels outside of any module's count: each is one launch.
    void alone() { current_ = nullptr; }
    void local_experts(double count) { experts_ = count; }
    void latent(bool is) { latent_ = is; }  ///< attention
    /// Narrow products, whose inputs are cast.
    bool casts() const;

    // ---- the host

    /// The host waits for the device; what follows is launched after that.
    void sync();
    /// The host waits for what came before (an exchange) before it launches the next kernel.
    void sync_first() { open_.sync_first = true; }
    void host(Seconds time) { open_.host += time; }
    /// Launches of what is no kernel of this stream.
    void launches(double count);

    // ---- kernels

    void add(KernelCall call, bool routed = false);
    /// [m, k] × [k, n]; an empty product is left out. @param share  of the product
    void gemm(std::int64_t m, std::int64_t n, std::int64_t k, bool narrow = true, double share = 1);
    void input_gradient(std::int64_t m, std::int64_t n, std::int64_t k, bool narrow = true);
    void weight_gradient(std::int64_t m, std::int64_t n, std::int64_t k, bool narrow = true);
    void gemm_backward(std::int64_t m, std::int64_t n, std::int64_t k, BackwardPart which,
                       bool narrow = true);
    /// @param element  bytes; 0: of an activation
    /// @param factor   of bytes, over those of the kernel's definition
    void streamed(std::string_view kernel, std::int64_t rows, std::int64_t width,
                  double element = 0, double factor = 1);
    /// Norms, rotations, activations, residuals: what fusion saves.
    void elementwise(std::string_view kernel, std::int64_t rows, std::int64_t width);
    /// Per row that the rank's experts received: [rows, k] × [k, n] of each expert, and its
    /// gradients.
    void grouped(std::int64_t n, std::int64_t k);
    void grouped_backward(std::int64_t n, std::int64_t k, BackwardPart which);
    /// Per row that the rank's experts received.
    void streamed_rows(std::string_view kernel, std::int64_t width, double factor = 1);

    // ---- exchanges

    /// Ends the open work. @return its item, or the last item if nothing was open
    int cut();
    /// An exchange that the following kernels wait for.
    int exchange(Collective kind, Group group, double bytes, Stream stream, Part of,
                 bool routed = false, bool to_experts = true);
    /// An exchange that runs beside the following kernels until join(). Without overlap it is
    /// waited for at once.
    void beside(Collective kind, Group group, double bytes, Stream stream, Part of, bool overlap);
    /// An exchange that another micro-batch's kernels hide: whoever waits for it has other work
    /// meanwhile, so that only its own stream can become the limit.
    void hidden(Collective kind, Group group, double bytes, Stream stream, Part of,
                bool to_experts);
    /// The exchange just begun depends on where the tokens went.
    void mark_routed() { pass_.items.back().routed = true; }
    /// What follows waits for the exchanges begun by beside().
    void join();

    /// The pass, with its launches shared out. The builder is used up.
    LayerPass finish();

  private:
    /// Launches of one module in one direction, and the calls that it is made of.
    struct Section {
        double launches = 0, bare = 0;
        bool captured = false;
        std::vector<std::pair<std::uint32_t, std::uint32_t>> calls;  // work, call
    };

    KernelCall product(std::string_view kernel, Gemm shape, bool narrow, double share = 1) const;
    KernelCall experts(std::string_view kernel, std::int64_t n, std::int64_t k) const;
    void cast(double items);
    void cast_rows(std::int64_t width);
    void launch_exchange();
    void share_out(const Section& section);
    PassItem exchange_item(Collective kind, Group group, double bytes, Stream stream, Part of,
                           bool routed, bool to_experts) const;
    int push(PassItem item);

    std::vector<Work>& works_;
    LayerPass pass_;
    Work open_;
    bool routed_ = false;
    int last_ = -1, under_ = -1;
    double experts_ = 0;
    bool latent_ = false;
    std::map<std::pair<Module, bool>, Section> sections_;
    Section* current_ = nullptr;
    std::vector<int> next_ = {-1}, open_exchanges_;
};

// ---- words of the passes

/// `swiglu_forward` …; a view of a name that lives as long as the program.
std::string_view activation_kernel(Activation, bool forward);
/// Matrices into a feed-forward network: a gated one has two.
constexpr std::int64_t num_gates(Activation activation) {
    return activation == Activation::swiglu ? 2 : 1;
}

}  // namespace moeplan
