#include "model/optimizer_sharding.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace moeplan {

void sum_gradients(Runtime& rt, Transformer& model, RankGroups& groups, double& seconds) {
    ParameterSet& parameters = model.parameters();
    if (Parameter* tied = model.tied_embedding())
        sum_over(rt, groups.tied, tied->gradient.data(), tied->count(), tied->gradient.format(),
                 seconds);
    for (Parameter* parameter : parameters.all()) {
        Tensor& gradient = parameter->gradient;
        const Communicator& group = holders(groups, parameter->held);
        if (parameters.is_sharded())
            scatter_sums_over(rt, group, gradient.data(), gradient.count() / group.size(),
                              gradient.format(), seconds);
        else
            sum_over(rt, group, gradient.data(), gradient.count(), gradient.format(), seconds);
    }
}

double gradient_norm(Runtime& rt, const ParameterSet& parameters, const RankGroups& groups,
                     const Communicator& world) {
    Tensor sum(rt.memory, 1, NumberFormat::f64);
    rt.zero(sum);
    std::vector<GradientPart> parts;
    for (const Parameter* parameter : parameters.all()) {
        // Of holders with the whole sum, the first counts; shards all do.
        const bool first = holders(groups, parameter->held).rank() == 0;
        if (!parameter->counted || (!parameters.is_sharded() && !first)) continue;
        const Span span = parameter->updated;
        parts.push_back({at(parameter->gradient.data(), span.first, rt.stat), span.count()});
    }
    rt.run(rt.kernels.gradient_norms,
           GradientNorms{parts.data(), std::int64_t(parts.size()),
                         static_cast<double*>(sum.data()), rt.stat},
           "gradient_norms");
    return std::sqrt(world.all_reduce_sum(rt.download(sum.data(), 1, NumberFormat::f64)[0]));
}

void gather_parameters(Runtime& rt, const ParameterSet& parameters, const RankGroups& groups,
                       double& seconds) {
    if (!parameters.is_sharded()) return;
    for (const Parameter* parameter : parameters.all()) {
        const Communicator& group = holders(groups, parameter->held);
        const std::int64_t shard = parameter->gradient.count() / group.size();
        const std::int64_t element = std::int64_t(size_of(parameter->value.format()).value);
        std::vector<std::int64_t> bytes;
        for (int r = 0; r < group.size(); ++r)
            bytes.push_back((std::min(parameter->count(), shard * (r + 1)) -
                             std::min(parameter->count(), shard * r)) *
                            element);
        gather_over(rt, group, parameter->value.data(), bytes, seconds);
    }
}

std::int64_t count_parameters_of_all(const ParameterSet& parameters, const RankGroups& groups,
                                     const Communicator& world) {
    double mine = 0;  // exact below 2^53
    for (const Parameter* parameter : parameters.all())
        if (parameter->counted && holders(groups, parameter->held).rank() == 0)
            mine += double(parameter->count());
    return std::int64_t(world.all_reduce_sum(mine));
}

}  // namespace moeplan
