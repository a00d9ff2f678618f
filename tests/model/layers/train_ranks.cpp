/// Launched by tests under mpirun, once for many runs, because a launch costs seconds:
///
///     train_ranks STEPS FOLDER RUN…        RUN = KIND/LAYOUT[/from=LAYOUT | /diverge | /die]
///
/// trains KIND in LAYOUT (words joined by "+", as tp2+dp2+zero1; f64 unless it says f32) on the
/// first ranks of the job, all at one global batch and one partition into micro-batches, and prints
/// a line a step: RUN STEP LOSS GRADIENT_NORM; and a line a rank: memory:RUN RANK PEAK MODELLED, in
/// bytes. With `from`, half of the steps were trained in that layout and read from its checkpoint.
/// With `diverge` the learning rate is absurd, and the fault is printed. With `die` the last rank
/// is killed in the middle, with a checkpoint after every step.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "tests/model/layers/small_models.hpp"

namespace {

using namespace moeplan;

constexpr int kMicroBatches = 4;  ///< of the step, over all data parallel ranks

TrainOptions options_of(const std::string& kind, const std::string& layout, int steps) {
    TrainOptions options = testing::small_run(testing::layout_model(kind), steps, 16, 2, 1);
    options.format = NumberFormat::f64;
    std::istringstream words(layout);
    for (std::string word; std::getline(words, word, '+');) {
        const std::size_t digit = word.find_first_of("0123456789");
        const std::string name = word.substr(0, digit);
        const int size = digit == std::string::npos ? 0 : std::atoi(word.c_str() + digit);
        if (name == "tp") options.layout.tensor_parallel_size = size;
        if (name == "pp") options.layout.pipeline_parallel_size = size;
        if (name == "dp") options.layout.data_parallel_size = size;
        if (name == "ep") options.layout.expert_parallel_size = size;
        if (name == "etp") options.layout.expert_tensor_parallel_size = size;
        if (name == "zero") options.schedule.sharding = Sharding::zero1;
        if (name == "gpipe") options.schedule.pipeline = Pipeline::gpipe;
        if (word == "f32") options.format = NumberFormat::f32;
        if (name == "uneven") options.schedule.stage_layers = {1, 2};
    }
    options.schedule.num_micro_batches = kMicroBatches / options.layout.data_parallel_size;
    return options;
}

/// On the first ranks of the job; the others wait.
/// @param stop_after  steps; 0: all. @param die  instead of stopping, the last rank is killed
void run(const TrainOptions& options, const Communicator& world, const std::string& name,
         int stop_after = 0, bool die = false) {
    const int ranks = world_size(options.layout);
    Communicator group = world.split(world.rank() < ranks ? 0 : 1, world.rank());
    if (world.rank() < ranks) {
        TrainCallbacks callbacks;
        int begun = 0;
        callbacks.stop = [&] {
            if (++begun != stop_after) return false;
            if (die && world.rank() == ranks - 1) std::raise(SIGKILL);
            return !die;
        };
        TrainResult result;
        try {
            result = train(options, group, callbacks);
        } catch (const Diverged& error) {
            if (world.rank() == 0) std::printf("%s: %s\n", name.c_str(), error.what());
        }
        if (world.rank() == 0 && !name.empty()) {
            for (const StepRecord& step : result.steps)
                std::printf("%s %d %.17g %.17g\n", name.c_str(), step.step, step.loss,
                            step.gradient_norm);
            for (std::size_t rank = 0; rank < result.peak_memory.size(); ++rank)
                std::printf("memory:%s %zu %.9g %.9g\n", name.c_str(), rank,
                            result.peak_memory[rank].value, result.modelled_memory[rank].value);
        }
    }
    world.barrier();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4) return 2;
    try {
        Communicator world = world_communicator();
        const int steps = std::atoi(argv[1]);
        for (int i = 3; i < argc; ++i) {
            const std::string name = argv[i];
            const std::size_t slash = name.find('/'), second = name.find('/', slash + 1);
            const std::string then = second == std::string::npos ? "" : name.substr(second + 1);
            const std::string kind = name.substr(0, slash);
            TrainOptions options =
                options_of(kind, name.substr(slash + 1, second - slash - 1), steps);
            const std::filesystem::path folder = std::filesystem::path(argv[2]) / std::to_string(i);
            if (then == "diverge") {
                options.optimizer.learning_rate = 1e30;
                options.optimizer.warmup_steps = 0;
            } else if (then == "die") {
                options.checkpoint = folder;
                options.checkpoint_every = 1;
                run(options, world, name, steps / 2, true);
            } else if (!then.empty()) {
                TrainOptions before = options_of(kind, then.substr(then.find('=') + 1), steps);
                before.checkpoint = options.checkpoint = folder;
                run(before, world, "", steps / 2);
                options.resume = true;
            }
            run(options, world, name);
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "train_ranks: %s\n", error.what());
        return 1;
    }
}
