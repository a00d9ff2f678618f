#pragma once
/// A subcommand: it adds its words to the parser and leaves a function to run. One source file a
/// subcommand.

#include <functional>

namespace CLI {
class App;
}

namespace moeplan::cli {

/// Exit status of the contract (docs/cli.md); 128 + its number where a signal ended the work.
enum Exit : int { kDone = 0, kNo = 1, kWrongInput = 2, kMachineLacks = 3 };

/// What to run after parsing; set by the chosen subcommand's callback. Returns the exit status.
using Run = std::function<int()>;

/// Adds the subcommand to `app`; when it is chosen, sets `run`.
using AddCommand = void (*)(CLI::App& app, Run& run);

void add_model(CLI::App&, Run&);
void add_cluster(CLI::App&, Run&);
void add_check(CLI::App&, Run&);
void add_profile(CLI::App&, Run&);
void add_measure(CLI::App&, Run&);    ///< hidden: a rank of a real run
void add_train(CLI::App&, Run&);
void add_corpus(CLI::App&, Run&);
void add_trace(CLI::App&, Run&);
void add_collective(CLI::App&, Run&);
void add_simulate(CLI::App&, Run&);
void add_plan(CLI::App&, Run&);
void add_validate(CLI::App&, Run&);
void add_accuracy(CLI::App&, Run&);
void add_export(CLI::App&, Run&);
void add_doctor(CLI::App&, Run&);
void add_report(CLI::App&, Run&);
void add_quickstart(CLI::App&, Run&);

}  // namespace moeplan::cli
