#include "planner/accuracy/deepep.hpp"

#include <algorithm>
#include <cmath>

namespace moeplan {
namespace {

/// In microseconds, and microseconds a kilobyte or a copy.
struct OneDomain {
    double start, link, copy, pass, filling;
};

/// Hopper: fitted on the four H100 curves of 24 multiprocessors, checked on the four of H200 and an
/// older H100 one. GB200: two models' curves, checked on the other two. B200: both of its curves,
/// nothing left to check on.
std::optional<OneDomain> one_domain(const std::string& gpu, bool combine) {
    if (gpu[0] == 'h')
        return combine ? OneDomain{27.41, 0.001961, 0.001063, 0.003923, 0.002483}
                       : OneDomain{26.73, 0.002269, 0.00351, 0, 0.001102};
    if (gpu == "gb200" || gpu == "gb300")
        return combine ? OneDomain{26.47, 0.00162, 0.008531, 0, 0.002006}
                       : OneDomain{28.61, 0.0008883, 0.00958, 0, 0.001635};
    if (gpu == "b200-sxm" || gpu == "b300-sxm")
        return combine ? OneDomain{40.51, 0.003115, 0, 0.001963, 0.0005182}
                       : OneDomain{34.38, 0.003348, 0.002872, 0, 0.001741};
    return std::nullopt;
}
/// Tokens in flight before senders wait for receivers.
constexpr double kBuffered = 256;

/// Two nodes of H100: fitted on 12 and 24 multiprocessors, checked on 20. `copy` is at 24.
struct TwoNodes {
    double start, copy, power;
};
std::optional<TwoNodes> two_nodes(const std::string& gpu, bool combine) {
    if (gpu[0] != 'h') return std::nullopt;
    return combine ? TwoNodes{97.96, 0.004225, 1} : TwoNodes{41.07, 0.003564, 1.3};
}

/// Of n places, how many hold at least one of k independent choices.
double visited(double n, double k) { return n * (1 - std::pow(1 - 1 / n, k)); }

}  // namespace

std::optional<Seconds> deepep_time(const DeepEpCall& call) {
    const double tokens = call.tokens, hidden = call.hidden;
    const double copy_bytes = call.combine ? 2 * hidden : hidden * (1 + 4.0 / 128);
    const double copies = visited(call.num_ranks, call.top_k);
    const double kilobytes = copies * copy_bytes / 1e3;
    if (call.num_nodes == 1) {
        const auto c = one_domain(call.gpu, call.combine);
        if (!c) return std::nullopt;
        return Seconds{1e-6 * (c->start +
                               tokens * (kilobytes * c->link + (copies + 2) * c->copy +
                                         2 * hidden / 1e3 * c->pass) +
                               std::min(tokens, kBuffered) * kilobytes * c->filling)};
    }
    const auto c = call.num_nodes == 2 ? two_nodes(call.gpu, call.combine) : std::nullopt;
    if (!c) return std::nullopt;
    return Seconds{1e-6 * (c->start + tokens * kilobytes * c->copy *
                                          std::pow(24.0 / call.sms, c->power))};
}

bool deepep_fitted_on(const std::string& id) {
    const auto has = [&](const char* part) { return id.find(part) != std::string::npos; };
    if (has("2node")) return !has("sm20");
    if (has("b200_sxm")) return true;
    if (has("gb200")) return has("dsv3") || has("qwen3");
    return has("h100_sxm");
}

}  // namespace moeplan
