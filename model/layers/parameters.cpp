#include "model/layers/parameters.hpp"

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

double initial_number(Seed seed, const std::string& name, std::uint64_t index) {
    return uniform_of(mix(derive(seed, name).value + 0x9e3779b97f4a7c15u * (index + 1)));
}

Parameter& ParameterSet::make(std::string name, std::vector<std::int64_t> shape, double deviation,
                              double mean, Held held, std::int64_t first, bool decays,
                              bool full_precision) {
    auto parameter = std::make_unique<Parameter>();
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    parameter->name = std::move(name);
    parameter->shape = std::move(shape);
    parameter->held = held;
    parameter->first = first;
    parameter->decays = decays;
    parameter->value = full_precision ? runtime_.statistic(count) : runtime_.tensor(count);
    if (parameter->value.format() != runtime_.stat) parameter->master = runtime_.statistic(count);
    parameter->gradient = runtime_.statistic(count);
    parameter->m = runtime_.statistic(count);
    parameter->v = runtime_.statistic(count);
    for (Tensor* tensor : {&parameter->gradient, &parameter->m, &parameter->v})
        runtime_.zero(*tensor);
    std::vector<double> values(static_cast<std::size_t>(count), mean);
    if (deviation > 0) {
        const std::uint64_t key = derive(seed_, parameter->name).value;
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] +=
                deviation *
                uniform_of(mix(key + 0x9e3779b97f4a7c15u * (std::uint64_t(first) + i + 1)));
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

std::int64_t ParameterSet::count(Held held) const {
    std::int64_t sum = 0;
    for (const auto& parameter : parameters_)
        sum += parameter->held == held ? parameter->count() : 0;
    return sum;
}

void ParameterSet::zero_gradients() {
    for (const auto& parameter : parameters_) runtime_.zero(parameter->gradient);
}

}  // namespace moeplan
