#include "simulator/collective.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/errors.hpp"
#include "profiler/profile.hpp"
#include "simulator/collectives/collectives.hpp"
#include "simulator/collectives/stated_efficiency.hpp"

namespace moeplan {

template <>
const EnumNames<Collective>& enum_names<Collective>() {
    static const EnumNames<Collective> names = {
        {Collective::all_reduce, "all_reduce"},         {Collective::all_gather, "all_gather"},
        {Collective::reduce_scatter, "reduce_scatter"}, {Collective::all_to_all, "all_to_all"},
        {Collective::send_recv, "send_recv"},           {Collective::broadcast, "broadcast"},
        {Collective::all_to_all, "alltoall"},           {Collective::all_to_all, "all_to_all_v"},
        {Collective::all_reduce, "allreduce"},          {Collective::all_gather, "allgather"},
        {Collective::reduce_scatter, "reducescatter"},  {Collective::send_recv, "sendrecv"}};
    return names;
}
template <>
const EnumNames<Algorithm>& enum_names<Algorithm>() {
    static const EnumNames<Algorithm> names = {
        {Algorithm::automatic, "automatic"},
        {Algorithm::ring, "ring"},
        {Algorithm::double_binary_tree, "double_binary_tree"},
        {Algorithm::nvls, "nvls"},
        {Algorithm::hierarchical, "hierarchical"},
        {Algorithm::direct, "direct"},
        {Algorithm::pairwise, "pairwise"},
        {Algorithm::two_level, "two_level"},
        {Algorithm::double_binary_tree, "tree"}};
    return names;
}

double bus_factor(Collective collective, int num_ranks) {
    const double n = num_ranks;
    switch (collective) {
        case Collective::all_reduce:
            return 2 * (n - 1) / n;
        case Collective::all_gather:
        case Collective::reduce_scatter:
        case Collective::all_to_all:
            return (n - 1) / n;
        case Collective::send_recv:
        case Collective::broadcast:
            return 1;
    }
    return 1;
}

namespace {

/// Algorithms that can carry out this collective on this group, the plainest first.
std::vector<Algorithm> applicable(const LinkGraph& graph, Collective collective,
                                  const GroupShape& group) {
    const bool many = group.num_domains() > 1,
               nested = many && group.even && group.by_domain.front().size() > 1;
    std::vector<Algorithm> out;
    switch (collective) {
        case Collective::all_reduce:
            out = {Algorithm::ring, Algorithm::double_binary_tree};
            if (!many && graph.in_switch_reduction && group.num_ranks() > 2)
                out.push_back(Algorithm::nvls);
            if (nested) out.push_back(Algorithm::hierarchical);
            break;
        case Collective::all_gather:
        case Collective::reduce_scatter:
            out = {Algorithm::ring};
            if (nested) out.push_back(Algorithm::hierarchical);
            break;
        case Collective::all_to_all:
            out = {Algorithm::direct, Algorithm::pairwise};
            if (many) out.push_back(Algorithm::two_level);
            break;
        case Collective::send_recv:
            out = {Algorithm::direct};
            break;
        case Collective::broadcast:
            out = {Algorithm::ring};
            break;
    }
    return out;
}

std::vector<StageFlows> stages_of(const LinkGraph& graph, const CollectiveCall& call,
                                  const GroupShape& group, Algorithm algorithm, Folding folding) {
    if (call.collective == Collective::all_to_all) {
        const TrafficMatrix even =
            call.traffic ? TrafficMatrix() : even_traffic(group.num_ranks(), call.bytes);
        const TrafficMatrix& traffic = call.traffic ? *call.traffic : even;
        if (algorithm == Algorithm::two_level)
            return all_to_all_two_level(graph, group, traffic, call.once);
        if (algorithm == Algorithm::pairwise) return all_to_all_pairwise(graph, group, traffic);
        return folding == Folding::rails ? all_to_all_folded(graph, group, traffic)
                                         : all_to_all_direct(graph, group, traffic);
    }
    const int passes = call.collective == Collective::all_reduce ? 2 : 1;
    switch (algorithm) {
        case Algorithm::double_binary_tree:
            return double_binary_tree(graph, group, call.bytes);
        case Algorithm::nvls:
            return nvls(graph, group, call.bytes);
        case Algorithm::hierarchical:
            return hierarchical(graph, group, call.bytes, call.collective);
        case Algorithm::direct:
            return send_recv(graph, group, call.bytes);
        default:
            return call.collective == Collective::broadcast
                       ? broadcast_ring(graph, group, call.bytes)
                       : ring(graph, group, call.bytes, passes);
    }
}

/// The measured time of this very collective on as many GPUs of one domain, where the profile has
/// it: of whatever algorithm the library chose, so not of one that was asked for.
std::optional<Seconds> measured(const CollectiveCall& call, const GroupShape& group,
                                const Profile* profile) {
    if (!profile || group.num_domains() > 1 || call.traffic ||
        call.algorithm != Algorithm::automatic)
        return std::nullopt;
    const auto priced = link_time(*profile, name_of(call.collective), call.bytes, group.num_ranks());
    return priced ? std::optional(priced->time) : std::nullopt;
}

Exchange with(const LinkGraph& graph, const CollectiveCall& call, const GroupShape& group,
              Algorithm algorithm, std::optional<Seconds> measured, Folding folding) {
    auto stages = stages_of(graph, call, group, algorithm, folding);
    if (call.collective == Collective::all_to_all && algorithm == Algorithm::direct)
        folding = Folding::none;  // done while the flows were made
    if (!stages.empty()) stages.front().latency += graph.collective_launch;
    auto what = fmt::format("{} ({}) over {} ranks", name_of(call.collective), name_of(algorithm),
                            group.num_ranks());
    const double efficiency = stated_efficiency(graph, call.collective, algorithm);
    auto exchange = make_exchange(graph, std::move(what), std::move(stages), efficiency, 1, folding);
    return measured ? calibrated(std::move(exchange), *measured) : exchange;
}

void check(const LinkGraph& graph, const CollectiveCall& call) {
    const auto refuse = [&](const std::string& field, const std::string& value,
                            const std::string& expected) {
        throw InputError(std::string(name_of(call.collective)), field, value, expected);
    };
    if (call.group.empty()) refuse("group", "empty", "at least one GPU");
    std::set<int> seen;
    for (const int gpu : call.group) {
        if (gpu < 0 || gpu >= graph.num_gpus)
            refuse("group", std::to_string(gpu), fmt::format("GPUs 0 … {}", graph.num_gpus - 1));
        if (!seen.insert(gpu).second) refuse("group", std::to_string(gpu), "each GPU once");
    }
    if (call.traffic && call.traffic->num_ranks != static_cast<int>(call.group.size()))
        refuse("traffic", fmt::format("{0} × {0}", call.traffic->num_ranks),
               fmt::format("{0} × {0}, the group", call.group.size()));
    if (call.collective == Collective::send_recv && call.group.size() != 2)
        refuse("group", std::to_string(call.group.size()) + " GPUs", "2: who sends, who receives");
}

}  // namespace

double stated_efficiency(const LinkGraph& graph, Collective collective, Algorithm algorithm) {
    double efficiency = 1;
    for (const auto name : {name_of(collective), name_of(algorithm)})
        if (const auto stated = graph.collective_efficiency.find(std::string(name));
            stated != graph.collective_efficiency.end())
            efficiency *= stated->second;
    return efficiency;
}

Exchange make_exchange(const LinkGraph& graph, const CollectiveCall& call, const Profile* profile,
                       Folding folding) {
    check(graph, call);
    const GroupShape group = shape_of(graph, call.group);
    if (group.num_ranks() < 2)
        return make_exchange(graph, fmt::format("{} on one rank", name_of(call.collective)), {});
    const auto choices = applicable(graph, call.collective, group);
    const auto known = measured(call, group, profile);
    if (call.algorithm != Algorithm::automatic) {
        if (std::find(choices.begin(), choices.end(), call.algorithm) == choices.end()) {
            std::string names;
            for (const auto choice : choices)
                names += (names.empty() ? "" : ", ") + std::string(name_of(choice));
            throw InputError("--algorithm", "", "\"" + std::string(name_of(call.algorithm)) + "\"",
                             fmt::format("one that carries out {} on this group: automatic, {}",
                                         name_of(call.collective), names));
        }
        return with(graph, call, group, call.algorithm, known, folding);
    }
    // All-to-all: what libraries do by default is all parts at once. Else the fastest of those that
    // apply.
    if (call.collective == Collective::all_to_all)
        return with(graph, call, group, Algorithm::direct, known, folding);
    std::optional<Exchange> best;
    for (const auto choice : choices) {
        auto exchange = with(graph, call, group, choice, known, folding);
        if (!best || time_alone(exchange) < time_alone(*best)) best = std::move(exchange);
    }
    return *best;
}

}  // namespace moeplan
