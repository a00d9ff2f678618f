#include "planner/accuracy/deepep.hpp"

#include <cmath>

namespace moeplan {
namespace {

/// In microseconds, and microseconds a kilobyte.
struct Constants {
    double start, link, copy, pass;
};

/// One domain. Hopper: fitted on the four H100 curves, checked on the four of H200. GB200: two
/// models' curves, checked on the other two. B200: both of its curves, nothing left to check on.
std::optional<Constants> one_domain(const std::string& gpu, bool combine) {
    if (gpu[0] == 'h')
        return combine ? Constants{40.4, 0.00211, 0.000956, 0.00387}
                       : Constants{31.9, 0.00202, 0.00386, 0.00112};
    if (gpu == "gb200" || gpu == "gb300")
        return combine ? Constants{32, 0.00156, 0.0132, 0.000336}
                       : Constants{33.2, 0.000716, 0.0147, 0.00049};
    if (gpu == "b200-sxm" || gpu == "b300-sxm")
        return combine ? Constants{42, 0.00304, 0.00035, 0.00203}
                       : Constants{37.1, 0.00416, 0.00224, 0.0000714};
    return std::nullopt;
}

/// Two nodes of H100: fitted on 12 and 24 multiprocessors, checked on 20. `copy`: microseconds
/// times multiprocessors a kilobyte.
std::optional<Constants> two_nodes(const std::string& gpu, bool combine) {
    if (gpu[0] != 'h') return std::nullopt;
    return combine ? Constants{98.4, 0.000487, 0.101, 0} : Constants{37.1, 0.000182, 0.0993, 0};
}

/// Of n places, how many hold at least one of k independent choices.
double visited(double n, double k) { return n * (1 - std::pow(1 - 1 / n, k)); }

}  // namespace

std::optional<Seconds> deepep_time(const DeepEpCall& call) {
    const double tokens = call.tokens, hidden = call.hidden;
    const double copy_bytes = call.combine ? 2 * hidden : hidden * (1 + 4.0 / 128);
    const double copies = visited(call.num_ranks, call.top_k);
    if (call.num_nodes == 1) {
        const auto c = one_domain(call.gpu, call.combine);
        if (!c) return std::nullopt;
        return Seconds{1e-6 *
                       (c->start + tokens * (copies * copy_bytes / 1e3 * c->link +
                                             copies * c->copy + 2 * hidden / 1e3 * c->pass))};
    }
    const auto c = call.num_nodes == 2 ? two_nodes(call.gpu, call.combine) : std::nullopt;
    if (!c) return std::nullopt;
    const double far = visited(call.num_nodes, call.top_k) * (1 - 1.0 / call.num_nodes);
    return Seconds{1e-6 * (c->start + tokens * copy_bytes / 1e3 *
                                          (far * c->link + copies * c->copy / call.sms))};
}

bool deepep_fitted_on(const std::string& id) {
    const auto has = [&](const char* part) { return id.find(part) != std::string::npos; };
    if (has("2node")) return !has("sm20");
    if (has("b200_sxm")) return true;
    if (has("gb200")) return has("dsv3") || has("qwen3");
    return has("h100");
}

}  // namespace moeplan
