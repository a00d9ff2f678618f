#include "simulator/graph/shared_weights.hpp"

namespace moeplan {
namespace {

/// The matrix's gradients are summed whole.
ExchangeDemand tied_embedding(const StepCase& step, const StageParameters& parameters) {
    ExchangeDemand demand;
    demand.kind = Collective::all_reduce;
    demand.group = Group::embedding;
    demand.payload =
        Bytes{parameters.of_layer(kEmbedding).dense * size_of(step.schedule.main_gradients).value};
    return demand;
}

/// The shards of the copies' gradients are added up before both stages update theirs.
ExchangeDemand mirrored_layers(const StepCase& step, const StageParameters& parameters,
                               const DataParallel& data_parallel, int lane) {
    const bool sharded = step.schedule.sharding != Sharding::none;
    const HeldParameters all = parameters.of_lane(lane);
    ExchangeDemand demand;
    demand.kind = Collective::all_reduce;
    demand.group = Group::mirror;
    demand.payload =
        Bytes{(all.dense / (sharded ? parameters.replicas_of(Group::data_context) : 1) +
               all.expert / (sharded ? parameters.replicas_of(Group::expert_data) : 1)) *
              data_parallel.gradient_bytes()};
    return demand;
}

}  // namespace

void add_shared_weights(const StepCase& step, const PipelineShape& pipeline,
                        const StageParameters& parameters, const DataParallel& data_parallel,
                        LaneWriter& writer) {
    const auto meet = [&](int one, int other, const ExchangeDemand& demand, Part part) {
        writer.meet_before(one, data_parallel.optimizer_start(one),
                           data_parallel.optimizer_start(other), demand, part);
    };
    const int stages = pipeline.num_stages();
    if (step.model.tied_embeddings && !pipeline.ends_meet())
        meet(0, stages - 1, tied_embedding(step, parameters), Part::pipeline_comm);
    if (!pipeline.is(Pipeline::dual_pipe)) return;
    for (int lane = 0; lane < stages / 2; ++lane)
        meet(lane, stages - 1 - lane, mirrored_layers(step, parameters, data_parallel, lane),
             Part::data_comm);
}

}  // namespace moeplan
