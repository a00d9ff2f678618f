/// Launched by tests under mpirun: train_on_two_devices FORMAT STEPS KIND… → for each kind and expert-parallel size lines
/// "KIND EP DEVICE EXCHANGE LOSS GRADIENT_NORM", first the CPU's ranks, then as many GPUs'.

#include <cstdio>
#include <cstdlib>

#include "core/errors.hpp"
#include "tests/model/layers/small_models.hpp"

int main(int argc, char** argv) {
    using namespace moeplan;
    if (argc < 4) return 2;
    try {
        Communicator world = world_communicator();
        for (int i = 3; i < argc; ++i)
            for (const int ep : {1, world.size()})
                for (const Device device : {Device::cpu, Device::cuda}) {
                    TrainOptions options = testing::small_run(testing::named_model(argv[i], 1), std::atoi(argv[2]), 16, 1, 1);
                    options.layout.data_parallel_size = world.size();
                    options.layout.expert_parallel_size = ep;
                    options.format = *from_name<NumberFormat>(argv[1]);
                    options.device = device;
                    options.device_ordinal = local_rank();
                    const TrainResult result = train(options, world);
                    if (world.rank() == 0)
                        for (const StepRecord& step : result.steps)
                            std::printf("%s %d %s %s %.9g %.9g\n", argv[i], ep, std::string(name_of(device)).c_str(),
                                        result.exchange.empty() ? "hosts" : result.exchange.substr(0, 4).c_str(), step.loss, step.gradient_norm);
                }
    } catch (const EnvironmentError& error) {
        std::fprintf(stderr, "train_on_two_devices: %s\n", error.what());
        return 3;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "train_on_two_devices: %s\n", error.what());
        return 1;
    }
}
