#include "model/layers/parameters.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

namespace moeplan {
namespace {

/// 53 uniform bits to (−√3, √3): variance 1.
double uniform_of(std::uint64_t bits) {
    return (double(bits >> 11) * 0x1p-53 - 0.5) * 2 * 1.7320508075688772;
}

}  // namespace

const Communicator& holders(const RankGroups& groups, Held held) {
    switch (held) {
        case Held::by_all:
        case Held::by_tensor_rank:
            return groups.data;
        case Held::by_all_in_parts:
            return groups.stage;
        case Held::by_expert_rank:
            return groups.expert_data;
    }
    return groups.data;
}

double initial_number(Seed seed, const std::string& name, std::uint64_t index) {
    return uniform_of(mix(derive(seed, name).value + 0x9e3779b97f4a7c15u * (index + 1)));
}

Parameter& ParameterSet::make(std::string name, std::vector<std::int64_t> shape, double deviation,
                              double mean, Held held, Share share, bool decays, bool counted,
                              bool full_precision) {
    auto parameter = std::make_unique<Parameter>();
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    parameter->name = std::move(name);
    parameter->shape = std::move(shape);
    parameter->held = held;
    parameter->share = share;
    parameter->decays = decays;
    // What every tensor parallel rank holds alike counts on the first.
    parameter->counted =
        counted && !(groups_ && held == Held::by_all && groups_->tensor.rank() != 0);
    using Purpose = CachingAllocator::Purpose;
    {
        const Purpose purpose(runtime_.memory, "the weight", parameter->name);
        parameter->value = full_precision ? runtime_.statistic(count) : runtime_.tensor(count);
        if (parameter->value.format() != runtime_.stat)
            parameter->master = runtime_.statistic(count);
    }
    parameter->updated = {0, count};
    std::int64_t padded = count;
    if (groups_ && sharded_) {
        const Communicator& group = holders(*groups_, held);
        const std::int64_t shard = (count + group.size() - 1) / group.size();
        padded = shard * group.size();
        parameter->updated = {std::min(count, shard * group.rank()),
                              std::min(count, shard * (group.rank() + 1))};
    }
    {
        const Purpose purpose(runtime_.memory, "the gradient", parameter->name);
        parameter->gradient = runtime_.statistic(padded);
    }
    const Purpose purpose(runtime_.memory, "AdamW's moments", parameter->name);
    parameter->m = runtime_.statistic(parameter->updated.count());
    parameter->v = runtime_.statistic(parameter->updated.count());
    for (Tensor* tensor : {&parameter->gradient, &parameter->m, &parameter->v})
        runtime_.zero(*tensor);
    std::vector<double> values(static_cast<std::size_t>(count), mean);
    if (deviation > 0) {
        const std::uint64_t key = derive(seed_, parameter->name).value;
        for (std::size_t i = 0; i < values.size(); ++i) {
            const auto index = std::uint64_t(share.whole_index(std::int64_t(i)));
            values[i] += deviation * uniform_of(mix(key + 0x9e3779b97f4a7c15u * (index + 1)));
        }
    }
    runtime_.upload(parameter->full().data(), values, runtime_.stat);
    if (parameter->master) runtime_.convert(parameter->master, parameter->value);
    parameters_.push_back(std::move(parameter));
    return *parameters_.back();
}

std::vector<Parameter*> ParameterSet::all() const {
    std::vector<Parameter*> out;
    for (const auto& parameter : parameters_) out.push_back(parameter.get());
    return out;
}

Parameter& ParameterSet::at(const std::string& name) const {
    for (const auto& parameter : parameters_)
        if (parameter->name == name) return *parameter;
    assert(!"a parameter of that name");
    return *parameters_.front();
}

void ParameterSet::zero_gradients() {
    runtime_.stretch("zero_gradients", [&] {
        for (const auto& parameter : parameters_) runtime_.zero(parameter->gradient);
    });
}

}  // namespace moeplan
