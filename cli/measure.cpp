/// The hidden `_measure`: one rank of a real run that another moeplan asked for.

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.hpp"
#include "cli/ranks.hpp"
#include "planner/real_run.hpp"

namespace moeplan::cli {

void add_measure(CLI::App& app, Run& run) {
    struct Words {
        std::string job, report;
    };
    auto words = std::make_shared<Words>();
    CLI::App* command = app.add_subcommand("_measure", "")->group("");
    command->add_option("job", words->job)->required();
    command->add_option("report", words->report)->required();
    command->callback([words, &run] {
        run = [words] {
            return on_every_rank(world_communicator(), [&] {
                measure_worker(words->job, words->report);
                return static_cast<int>(kDone);
            });
        };
    });
}

}  // namespace moeplan::cli
