#include "simulator/expert_placement.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"

namespace moeplan {
namespace {

int fullest(const LayerPlacement& layer, int num_ranks, std::size_t least_copies) {
    std::vector<int> held(static_cast<std::size_t>(num_ranks), 0);
    for (const auto& ranks : layer.ranks_of_expert)
        if (ranks.size() >= least_copies)
            for (const int rank : ranks) ++held[static_cast<std::size_t>(rank)];
    return held.empty() ? 0 : *std::max_element(held.begin(), held.end());
}

std::vector<std::vector<int>> ranks_from(const JsonReader& list, int num_ranks) {
    std::vector<std::vector<int>> out;
    for (const JsonReader& expert : list.items()) {
        auto& ranks = out.emplace_back();
        for (const JsonReader& rank : expert.items()) {
            const int at = rank.count();
            if (at >= num_ranks)
                rank.fail("a rank of 0 … " + std::to_string(num_ranks - 1) + " (num_ranks)");
            if (std::find(ranks.begin(), ranks.end(), at) != ranks.end())
                rank.fail("each rank once: a rank holds one copy of an expert");
            ranks.push_back(at);
        }
        if (ranks.empty()) expert.fail("at least one rank that holds the expert");
        std::sort(ranks.begin(), ranks.end());
    }
    return out;
}

}  // namespace

int slots_per_rank(const LayerPlacement& layer, int num_ranks) {
    return fullest(layer, num_ranks, 1);
}
int copied_per_rank(const LayerPlacement& layer, int num_ranks) {
    return fullest(layer, num_ranks, 2);
}

PlacedLoads placed(const RoutingLoads& loads, const LayerPlacement& layer, int num_places,
                   int sources_per_block) {
    const auto experts = static_cast<std::size_t>(loads.num_experts),
               places = static_cast<std::size_t>(num_places),
               sources = static_cast<std::size_t>(loads.num_sources),
               block = static_cast<std::size_t>(sources_per_block),
               slots = static_cast<std::size_t>(slots_per_rank(layer, num_places));
    // slot of each copy on its place
    std::vector<std::size_t> held(places, 0);
    std::vector<std::vector<std::size_t>> slot_of(experts);
    for (std::size_t e = 0; e < experts; ++e)
        for (const int rank : layer.ranks_of_expert[e])
            slot_of[e].push_back(held[static_cast<std::size_t>(rank)]++);

    PlacedLoads out{std::vector<std::uint32_t>(sources * places, 0),
                    std::vector<std::uint32_t>((sources + block - 1) / block * places * slots, 0)};
    for (std::size_t s = 0; s < sources; ++s) {
        const std::uint32_t* from = loads.sub_tokens.data() + s * experts;
        std::uint32_t *to = out.traffic.data() + s * places,
                      *rows = out.rows.data() + s / block * places * slots;
        for (std::size_t e = 0; e < experts; ++e) {
            const auto& ranks = layer.ranks_of_expert[e];
            const auto copies = static_cast<std::uint32_t>(ranks.size());
            const std::uint32_t each = from[e] / copies, left = from[e] % copies;
            for (std::uint32_t c = 0; c < copies; ++c) {
                // sources and experts begin with different copies
                const std::uint32_t turn = (c + static_cast<std::uint32_t>(s + e)) % copies,
                                    share = each + (turn < left ? 1 : 0);
                const auto place = static_cast<std::size_t>(ranks[c]);
                to[place] += share;
                rows[place * slots + slot_of[e][c]] += share;
            }
        }
    }
    return out;
}

ExpertPlacement placement_from_json(const JsonReader& file) {
    const auto in_plan = file.find("placement");
    const JsonReader& reader = in_plan ? *in_plan : file;
    if (!in_plan) file.refuse_unknown({"num_ranks", "layers"});
    ExpertPlacement out;
    out.source = file.file();
    out.num_ranks = reader.at("num_ranks").count(1);
    for (const JsonReader& item : reader.at("layers").items()) {
        if (!in_plan) item.refuse_unknown({"moe_layer", "ranks_of_expert"});
        const auto copied = item.find("ranks_of_expert_replicated");
        const JsonReader ranks = copied ? *copied : item.at("ranks_of_expert");
        LayerPlacement layer{item.at("moe_layer").count(), ranks_from(ranks, out.num_ranks)};
        if (layer.moe_layer != static_cast<int>(out.layers.size()))
            item.at("moe_layer").fail("MoE layers in order, from 0: " +
                                      std::to_string(out.layers.size()));
        if (!out.layers.empty() &&
            layer.ranks_of_expert.size() != out.layers.front().ranks_of_expert.size())
            ranks.fail("as many experts as the first layer has, " +
                       std::to_string(out.layers.front().ranks_of_expert.size()));
        if (layer.ranks_of_expert.empty()) ranks.fail("at least one expert");
        out.layers.push_back(std::move(layer));
    }
    if (out.layers.empty()) reader.at("layers").fail("at least one MoE layer");
    return out;
}

Json to_json(const ExpertPlacement& placement) {
    Json out = json_header("placement");
    out["num_ranks"] = placement.num_ranks;
    out["layers"] = Json::array();
    for (const LayerPlacement& layer : placement.layers)
        out["layers"].push_back(Json{{"moe_layer", layer.moe_layer},
                                     {"ranks_of_expert", layer.ranks_of_expert}});
    return out;
}

}  // namespace moeplan
