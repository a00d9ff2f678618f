#include "simulator/software_state.hpp"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "core/data_files.hpp"
#include "core/errors.hpp"

namespace moeplan {

template <>
const EnumNames<Module>& enum_names<Module>() {
    static const EnumNames<Module> names = {{Module::attention, "attention"},
                                            {Module::feed_forward, "feed_forward"},
                                            {Module::shared_experts, "shared_experts"},
                                            {Module::router, "router"},
                                            {Module::preprocess, "preprocess"},
                                            {Module::dispatch, "dispatch"},
                                            {Module::experts, "experts"},
                                            {Module::ends, "ends"},
                                            {Module::optimizer, "optimizer"},
                                            {Module::parameters, "parameters"}};
    return names;
}
template <>
const EnumNames<CountSync>& enum_names<CountSync>() {
    static const EnumNames<CountSync> names = {{CountSync::none, "none"},
                                               {CountSync::before_dispatch, "before_dispatch"},
                                               {CountSync::after_dispatch, "after_dispatch"}};
    return names;
}

bool release_before(const std::string& a, const std::string& b) {
    const auto numbers = [](const std::string& text) {
        std::vector<long> out;
        for (std::size_t i = 0; i < text.size();) {
            if (!std::isdigit(static_cast<unsigned char>(text[i]))) {
                ++i;
                continue;
            }
            long value = 0;
            for (; i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])); ++i)
                value = std::min(value * 10 + (text[i] - '0'), 100'000'000L);
            out.push_back(value);
        }
        return out;
    };
    return numbers(a) < numbers(b);
}

namespace {

constexpr double kMostLaunches = 1e5, kMostFactor = 100, kMostSms = 1024;

Launches launches_from(const JsonReader& reader) {
    if (!reader.is_array() || reader.size() != 2) reader.fail("[forward, backward]");
    return {reader.at(std::size_t{0}).number(0, kMostLaunches),
            reader.at(std::size_t{1}).number(0, kMostLaunches)};
}
Module module_of(const std::string& name, const JsonReader& place) {
    const auto module = from_name<Module>(name);
    if (!module) place.fail("a module as key: " + choices<Module>());
    return *module;
}

/// What a part of the table says of the costs; what it is silent about stays.
void apply(SoftwareCosts& costs, const JsonReader& part, const std::string& generation) {
    const auto factor = [&](const char* key, double& value) {
        if (const auto found = part.find(key)) value = found->number(0, kMostFactor);
    };
    if (const auto found = part.find("source")) costs.source = found->text();
    if (const auto found = part.find("counted")) costs.counted = found->boolean();
    if (const auto found = part.find("launches"))
        for (const auto& [name, value] : found->members())
            costs.launches[static_cast<std::size_t>(module_of(name, value))] = launches_from(value);
    if (const auto found = part.find("launch_factors"))
        for (const auto& [name, value] : found->members()) {
            Launches& launches = costs.launches[static_cast<std::size_t>(module_of(name, value))];
            launches.forward *= value.number(0, kMostFactor);
            launches.backward *= value.number(0, kMostFactor);
        }
    if (const auto found = part.find("per_expert")) costs.per_expert = launches_from(*found);
    if (const auto found = part.find("tensor_parallel"))
        costs.tensor_parallel = launches_from(*found);
    if (const auto found = part.find("checkpoint")) costs.checkpoint = launches_from(*found);
    factor("narrow_launches", costs.narrow_launches);
    factor("latent_attention", costs.latent_attention);
    if (const auto found = part.find("sync")) costs.sync = found->choice<CountSync>();
    if (const auto found = part.find("sorts_chunks")) costs.sorts_chunks = found->boolean();
    if (const auto found = part.find("fused_attention")) costs.fused_attention = found->boolean();
    if (const auto found = part.find("attention_most")) {
        found->refuse_unknown({"ampere", "hopper", "blackwell"});
        if (const auto here = found->find(generation)) {
            if (!here->is_array() || here->size() != 2)
                here->fail("shares of the peak: [forward, backward]");
            costs.attention_forward = here->at(std::size_t{0}).number(0, 1);
            costs.attention_backward = here->at(std::size_t{1}).number(0, 1);
        }
    }
    factor("overlapped_share", costs.overlapped_share);
    if (const auto found = part.find("expert_sms")) costs.expert_sms = found->number(0, kMostSms);
    if (const auto found = part.find("collective_sms"))
        costs.collective_sms = found->number(0, kMostSms);
    factor("step_work", costs.step_work);
    if (const auto found = part.find("overlaps_weight_gradient"))
        costs.overlaps_weight_gradient = found->boolean();
    const auto flag = [&](const char* key, bool& value) {
        if (const auto found = part.find(key)) value = found->boolean();
    };
    flag("waits_for_messages", costs.waits_for_messages);
    flag("keeps_gathered", costs.keeps_gathered);
    flag("scatters_messages", costs.scatters_messages);
    flag("pxn", costs.pxn);
    factor("sharded_gradient_bytes", costs.sharded_gradient_bytes);
    factor("elementwise_bytes", costs.elementwise_bytes);
    factor("router_bytes", costs.router_bytes);
    factor("loss_bytes", costs.loss_bytes);
    factor("permute_bytes", costs.permute_bytes);
    factor("biased_activation_bytes", costs.biased_activation_bytes);
    factor("gradient_bytes", costs.gradient_bytes);
    factor("narrow_rate", costs.narrow_rate);
    factor("cast_bytes", costs.cast_bytes);
    factor("captured_launch", costs.captured_launch);
    if (const auto found = part.find("on")) {
        found->refuse_unknown({"ampere", "hopper", "blackwell"});
        if (const auto here = found->find(generation)) apply(costs, *here, generation);
    }
}

void check(const JsonReader& part) {
    part.refuse_unknown({"name",
                         "like",
                         "on",
                         "frameworks",
                         "from",
                         "before",
                         "source",
                         "counted",
                         "launches",
                         "launch_factors",
                         "per_expert",
                         "tensor_parallel",
                         "checkpoint",
                         "waits_for_messages",
                         "keeps_gathered",
                         "scatters_messages",
                         "pxn",
                         "sharded_gradient_bytes",
                         "narrow_launches",
                         "latent_attention",
                         "sync",
                         "sorts_chunks",
                         "fused_attention",
                         "attention_most",
                         "overlapped_share",
                         "expert_sms",
                         "collective_sms",
                         "step_work",
                         "biased_activation_bytes",
                         "overlaps_weight_gradient",
                         "elementwise_bytes",
                         "router_bytes",
                         "loss_bytes",
                         "permute_bytes",
                         "gradient_bytes",
                         "narrow_rate",
                         "cast_bytes",
                         "captured_launch"});
    SoftwareCosts scratch;
    for (const char* generation : {"ampere", "hopper", "blackwell"})
        apply(scratch, part, generation);
    if (const auto rate = part.find("narrow_rate"); rate && !(rate->number() > 0))
        rate->fail("a rate above 0");
}

std::map<std::string, JsonReader> parts_of(const JsonReader& reader, const char* key) {
    std::map<std::string, JsonReader> out;
    if (const auto found = reader.find(key))
        for (const auto& [name, part] : found->members()) {
            check(part);
            out.emplace(name, part);
        }
    return out;
}

std::string generation_of(const Profile& profile) {
    const auto& peak = profile.roofline.peak;
    return peak.contains(Precision::nvfp4) ? "blackwell"
           : peak.contains(Precision::fp8) ? "hopper"
                                           : "ampere";
}

/// Words of a list with commas.
bool lists(const std::string& text, const std::string& word) {
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
        const std::size_t end = at + word.size();
        if ((at == 0 || text[at - 1] == ',') && (end == text.size() || text[end] == ','))
            return true;
    }
    return false;
}

/// Modules that a graph scope holds; the framework's words for them.
std::set<Module> captured_by(const std::string& scope) {
    std::set<Module> out;
    const auto add = [&](const char* word, std::initializer_list<Module> modules) {
        if (lists(scope, word)) out.insert(modules);
    };
    add("attn", {Module::attention});
    add("mlp", {Module::feed_forward});
    add("moe_router", {Module::router, Module::shared_experts});
    add("moe_preprocess", {Module::preprocess});
    add("moe", {Module::router, Module::preprocess, Module::dispatch, Module::experts,
                Module::shared_experts});
    for (const char* whole : {"full", "full_iteration"})
        add(whole, {Module::attention, Module::feed_forward, Module::shared_experts, Module::router,
                    Module::preprocess, Module::dispatch, Module::experts, Module::ends});
    return out;
}

const SoftwareTable::Row* row_named(const SoftwareTable& table, const std::string& name) {
    for (const auto& row : table.rows)
        if (row.name == name) return &row;
    return nullptr;
}

}  // namespace

SoftwareTable software_table_from_json(const JsonReader& reader) {
    reader.refuse_unknown({"states", "defaults", "dispatchers", "recipes", "fusions", "routings"});
    SoftwareTable table;
    for (const JsonReader& item : reader.at("states").items()) {
        check(item);
        SoftwareTable::Row row;
        row.name = item.at("name").text();
        if (row_named(table, row.name)) item.at("name").fail("a name that no other state has");
        if (const auto frameworks = item.find("frameworks"))
            for (const JsonReader& framework : frameworks->items())
                row.frameworks.push_back(framework.text());
        row.from = item.text_or("from", "");
        row.before = item.text_or("before", "");
        if (const auto like = item.find("like")) {
            const auto* other = row_named(table, like->text());
            if (!other) like->fail("the name of a state before this one");
            row.parts = other->parts;
        }
        row.parts.push_back(item);
        table.rows.push_back(std::move(row));
    }
    const JsonReader defaults = reader.at("defaults");
    defaults.refuse_unknown({"ampere", "hopper", "blackwell"});
    for (const char* generation : {"ampere", "hopper", "blackwell"}) {
        const JsonReader name = defaults.at(generation);
        if (!row_named(table, name.text())) name.fail("the name of a state");
        table.defaults[generation] = name.text();
    }
    table.dispatchers = parts_of(reader, "dispatchers");
    table.recipes = parts_of(reader, "recipes");
    table.fusions = parts_of(reader, "fusions");
    table.routings = parts_of(reader, "routings");
    return table;
}

const SoftwareTable& software_table() {
    static const SoftwareTable table = software_table_from_json(
        JsonReader::from_file(shipped_file("validation", "software_states")));
    return table;
}

SoftwareCosts software_costs(const StepCase& step, const SoftwareTable& table) {
    const SoftwareState& software = step.schedule.software;
    SoftwareCosts costs;
    if (software.framework == "moeplan" || !step.profile || step.profile->host_overlap <= 0) {
        costs.name = "moeplan";
        costs.counted = true;
        costs.overlaps_weight_gradient = false;
        return costs;
    }
    const SoftwareTable::Row* row = nullptr;
    for (const auto& candidate : table.rows) {
        if (std::find(candidate.frameworks.begin(), candidate.frameworks.end(),
                      software.framework) == candidate.frameworks.end())
            continue;
        // work in progress, and what states no release, is not taken for a newest one
        const bool dated = !software.release.empty() && software.release != "dev";
        if (!candidate.from.empty() && (!dated || release_before(software.release, candidate.from)))
            continue;
        if (!candidate.before.empty() && dated &&
            !release_before(software.release, candidate.before))
            continue;
        row = &candidate;
        break;
    }
    costs.assumed = !row;
    const std::string generation = generation_of(*step.profile);
    if (!row) row = row_named(table, table.defaults.at(generation));
    costs.name = row->name;
    for (const JsonReader& part : row->parts) apply(costs, part, generation);

    const auto adjust = [&](const std::map<std::string, JsonReader>& parts,
                            const std::string& name) {
        if (const auto found = parts.find(name); found != parts.end())
            apply(costs, found->second, generation);
    };
    if (step.layout.expert_parallel_size > 1) {
        std::string dispatcher = software.moe_backend;
        if (!table.dispatchers.contains(dispatcher))
            dispatcher =
                step.schedule.dispatcher == Dispatcher::deduplicating ? "deepep" : "alltoall";
        adjust(table.dispatchers, dispatcher);
    } else {
        adjust(table.dispatchers, "local");
    }
    if (const auto* synthetic = std::get_if<SyntheticRouting>(&step.routing))
        adjust(table.routings, synthetic->kind);
    adjust(table.recipes, software.fp8_recipe.empty()
                              ? std::string(name_of(step.schedule.precision))
                              : software.fp8_recipe);
    for (const auto& [word, part] : table.fusions)
        if (lists(software.fusion, word)) apply(costs, part, generation);
    costs.captured = captured_by(software.graph_scope);
    if (costs.captures(Module::experts)) costs.sync = CountSync::none;  // no host can be asked
    return costs;
}

SoftwareCosts software_costs(const StepCase& step) {
    if (step.schedule.software.framework == "moeplan" || !step.profile ||
        step.profile->host_overlap <= 0)
        return software_costs(step, {});  // needs no table
    return software_costs(step, software_table());
}

}  // namespace moeplan
