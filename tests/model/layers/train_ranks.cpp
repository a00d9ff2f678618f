/// Launched by tests under mpirun: train_ranks STEPS KIND… → for each kind and each expert-parallel
/// size (1, ranks) lines "KIND EP LOSS GRADIENT_NORM". All in one launch, because a launch costs
/// seconds.

#include <cstdio>
#include <cstdlib>

#include "tests/model/layers/small_models.hpp"

int main(int argc, char** argv) {
    using namespace moeplan;
    if (argc < 3) return 2;
    try {
        Communicator world = world_communicator();
        for (int i = 2; i < argc; ++i)
            for (const int ep : {1, world.size()}) {
                TrainOptions options =
                    testing::small_run(testing::named_model(argv[i]), std::atoi(argv[1]), 32, 2, 1);
                options.layout.data_parallel_size = world.size();
                options.layout.expert_parallel_size = ep;
                const TrainResult result = train(options, world);
                if (world.rank() == 0)
                    for (const StepRecord& step : result.steps)
                        std::printf("%s %d %.9g %.9g\n", argv[i], ep, step.loss,
                                    step.gradient_norm);
            }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "train_ranks: %s\n", error.what());
        return 1;
    }
}
