#include "planner/placement/placement.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "core/errors.hpp"

namespace moeplan {

LayerPlacement contiguous_placement(int num_experts, int num_ranks) {
    LayerPlacement out;
    const int block = std::max(1, num_experts / num_ranks);
    for (int e = 0; e < num_experts; ++e)
        out.ranks_of_expert.push_back({std::min(e / block, num_ranks - 1)});
    return out;
}

LayerPlacement balanced_placement(const std::vector<double>& popularity, int num_ranks,
                                  int spare_slots) {
    const int num_experts = static_cast<int>(popularity.size());
    const int slots = num_experts / num_ranks + spare_slots;

    // Copies: each spare slot to the expert with the largest share a copy, at most one copy a rank.
    std::vector<int> copies(popularity.size(), 1);
    for (int spare = 0; spare < spare_slots * num_ranks; ++spare) {
        int most = -1;
        for (int e = 0; e < num_experts; ++e)
            if (copies[e] < num_ranks &&
                (most < 0 || popularity[e] / copies[e] > popularity[most] / copies[most]))
                most = e;
        if (most < 0) break;
        ++copies[most];
    }

    struct Piece {
        double load;
        int expert;
    };
    std::vector<Piece> pieces;
    for (int e = 0; e < num_experts; ++e)
        for (int c = 0; c < copies[e]; ++c) pieces.push_back({popularity[e] / copies[e], e});
    // Experts of many copies first among equals: they are the hardest to give distinct ranks.
    std::stable_sort(pieces.begin(), pieces.end(), [&](const Piece& a, const Piece& b) {
        return a.load != b.load ? a.load > b.load : copies[a.expert] > copies[b.expert];
    });

    LayerPlacement out;
    out.ranks_of_expert.resize(popularity.size());
    std::vector<double> load(num_ranks, 0);
    std::vector<int> held(num_ranks, 0);
    int unplaced = num_experts;
    for (const Piece& piece : pieces) {
        auto& ranks = out.ranks_of_expert[piece.expert];
        int room = 0;
        for (int r = 0; r < num_ranks; ++r) room += slots - held[r];
        // A further copy must not take the last slots of experts that have none yet.
        if (!ranks.empty() && room <= unplaced) continue;
        int least = -1;
        for (int r = 0; r < num_ranks; ++r) {
            const bool there = std::find(ranks.begin(), ranks.end(), r) != ranks.end();
            if (held[r] < slots && !there && (least < 0 || load[r] < load[least])) least = r;
        }
        if (least < 0) continue;  // only ranks that hold it already have room: one copy less
        if (ranks.empty()) --unplaced;
        ranks.push_back(least);
        load[least] += piece.load;
        ++held[least];
    }
    for (auto& ranks : out.ranks_of_expert) std::sort(ranks.begin(), ranks.end());
    return out;
}

double rank_imbalance(const std::vector<double>& load, const LayerPlacement& placement,
                      int num_ranks) {
    std::vector<double> of_rank(num_ranks, 0);
    double total = 0;
    for (std::size_t e = 0; e < load.size(); ++e) {
        const auto& ranks = placement.ranks_of_expert[e];
        for (const int r : ranks) of_rank[r] += load[e] / static_cast<double>(ranks.size());
        total += load[e];
    }
    if (total <= 0) return 1;
    return *std::max_element(of_rank.begin(), of_rank.end()) * num_ranks / total;
}

namespace {

std::vector<double> expert_load(const TraceReader& trace, int step, int layer, int micro_batch) {
    const RoutingLoads loads = trace.loads(step, layer, micro_batch);
    std::vector<double> out(static_cast<std::size_t>(loads.num_experts), 0);
    for (std::size_t i = 0; i < loads.sub_tokens.size(); ++i)
        out[i % out.size()] += loads.sub_tokens[i];
    return out;
}

}  // namespace

PlacementReport place_experts(const TraceReader& trace, int num_ranks, int spare_slots) {
    const TraceHeader& header = trace.header();
    if (num_ranks < 1 || header.num_experts % num_ranks != 0)
        throw InputError("--trace", "num_experts", std::to_string(header.num_experts),
                         "a multiple of the expert-parallel size " + std::to_string(num_ranks));
    PlacementReport out;
    out.num_ranks = num_ranks;
    out.spare_slots = spare_slots;
    const int steps = header.num_steps;
    out.steps_from = steps / 2;
    out.steps_to = std::max(out.steps_from + (steps - out.steps_from) / 2, out.steps_from + 1);
    out.held_out_to = steps;
    const int test_from = out.steps_to < steps ? out.steps_to : out.steps_from;

    for (int layer = 0; layer < header.num_moe_layers; ++layer) {
        std::vector<double> popularity(static_cast<std::size_t>(header.num_experts), 0);
        for (int step = out.steps_from; step < out.steps_to; ++step)
            for (int mb = 0; mb < header.num_micro_batches; ++mb) {
                const std::vector<double> load = expert_load(trace, step, layer, mb);
                for (std::size_t e = 0; e < load.size(); ++e) popularity[e] += load[e];
            }
        PlacedLayer placed;
        const LayerPlacement blocks = contiguous_placement(header.num_experts, num_ranks);
        placed.placement = balanced_placement(popularity, num_ranks);
        placed.replicated = balanced_placement(popularity, num_ranks, spare_slots);
        placed.placement.moe_layer = placed.replicated.moe_layer = layer;
        double contiguous = 0, balanced = 0, replicated = 0;
        int count = 0;
        for (int step = test_from; step < steps; ++step)
            for (int mb = 0; mb < header.num_micro_batches; ++mb) {
                const std::vector<double> load = expert_load(trace, step, layer, mb);
                contiguous += rank_imbalance(load, blocks, num_ranks);
                balanced += rank_imbalance(load, placed.placement, num_ranks);
                replicated += rank_imbalance(load, placed.replicated, num_ranks);
                ++count;
            }
        if (count > 0) {
            placed.contiguous_max_over_mean = contiguous / count;
            placed.placed_max_over_mean = balanced / count;
            placed.replicated_max_over_mean = replicated / count;
        }
        out.layers.push_back(std::move(placed));
    }
    if (!out.layers.empty()) {
        out.contiguous = out.placed = out.replicated = 0;
        for (const PlacedLayer& layer : out.layers) {
            const double share = 1.0 / static_cast<double>(out.layers.size());
            out.contiguous += layer.contiguous_max_over_mean * share;
            out.placed += layer.placed_max_over_mean * share;
            out.replicated += layer.replicated_max_over_mean * share;
        }
    }
    return out;
}

Json to_json(const PlacementReport& report) {
    Json layers = Json::array();
    for (const PlacedLayer& layer : report.layers)
        layers.push_back({{"moe_layer", layer.placement.moe_layer},
                          {"contiguous_max_over_mean", layer.contiguous_max_over_mean},
                          {"placed_max_over_mean", layer.placed_max_over_mean},
                          {"replicated_max_over_mean", layer.replicated_max_over_mean},
                          {"ranks_of_expert", layer.placement.ranks_of_expert},
                          {"ranks_of_expert_replicated", layer.replicated.ranks_of_expert}});
    return {{"num_ranks", report.num_ranks},
            {"spare_slots", report.spare_slots},
            {"popularity_from_steps", {report.steps_from, report.steps_to}},
            {"checked_up_to_step", report.held_out_to},
            {"contiguous_max_over_mean", report.contiguous},
            {"placed_max_over_mean", report.placed},
            {"replicated_max_over_mean", report.replicated},
            {"layers", std::move(layers)}};
}

}  // namespace moeplan
