/// The binary: parse the words, run one subcommand, turn what was thrown into the exit status of
/// the contract.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "cli/command.hpp"
#include "cli/manual.hpp"
#include "core/errors.hpp"
#include "core/stop_signal.hpp"
#include "core/version.hpp"

namespace moeplan::cli {
namespace {

/// The subcommands, in the order of the data flow. Each is one source file in cli/.
constexpr AddCommand kCommands[] = {
    // clang-format off
    add_model,
    add_cluster,
    add_check,
    add_profile,
    add_train,
    add_corpus,
    add_trace,
    add_collective,
    add_measure,
    add_simulate,
    add_plan,
    add_validate,
    add_accuracy,
    add_export,
    add_doctor,
    add_report,
    add_quickstart,
    // clang-format on
    nullptr,
};

int run(int argc, char** argv) {
    CLI::App app(
        "moeplan: how long does one training step of this MoE model take on this cluster, laid out "
        "like this?\n"
        "Example: moeplan plan --model mixtral-8x7b --cluster dgx-h100:8",
        "moeplan");
    app.set_version_flag("--version", std::string("moeplan ") + kVersion);
    app.require_subcommand(1);
    Run chosen;
    std::string page;
    CLI::App* manual =
        app.add_subcommand("_manual", "")->group("");  // hidden: what the build installs
    manual->add_option("page", page)->required()->check(CLI::IsMember({"man", "bash"}));
    manual->callback([&] {
        chosen = [&] {
            std::fputs((page == "man" ? man_page(app) : bash_completion(app)).c_str(), stdout);
            return kDone;
        };
    });
    for (const AddCommand add : kCommands)
        if (add) add(app, chosen);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
        std::fprintf(stderr, "moeplan: %s\n", error.what());
        return kWrongInput;
    }
    return chosen ? chosen() : kWrongInput;
}

}  // namespace
}  // namespace moeplan::cli

int main(int argc, char** argv) {
    using namespace moeplan;
    end_cleanly_when_told();
    try {
        return cli::run(argc, argv);
    } catch (const Stopped& stopped) {
        std::fprintf(stderr, "moeplan: %s\n", stopped.what());
        return 128 + stopped.signal;
    } catch (const InputError& error) {
        std::fprintf(stderr, "moeplan: %s\n", error.what());
        return cli::kWrongInput;
    } catch (const EnvironmentError& error) {
        std::fprintf(stderr, "moeplan: %s\n", error.what());
        return cli::kMachineLacks;
    } catch (const std::exception& error) {
        std::fprintf(
            stderr,
            "moeplan: internal error: %s\nPlease report this with the command that led to it.\n",
            error.what());
        return 70;
    }
}
