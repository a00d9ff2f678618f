/// `moeplan doctor`: what this machine has, what it lacks, and how to get it.

#include <sys/statvfs.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "core/child_process.hpp"
#include "core/data_files.hpp"
#include "core/errors.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"
#include "core/version.hpp"
#include "kernels/backend.hpp"

namespace moeplan::cli {
namespace {

namespace fs = std::filesystem;

struct Check {
    std::string what, found, remedy;  ///< no remedy: all is well
    std::string needed_for;
};

Check processor() {
    std::ifstream in("/proc/cpuinfo");
    std::string line, name = "unknown", sets;
    while (std::getline(in, line)) {
        const auto value = [&] { return std::string(trim(line.substr(line.find(':') + 1))); };
        if (line.starts_with("model name") && name == "unknown") name = value();
        if (line.starts_with("flags") && sets.empty())
            for (const auto& flag : split(value(), ' '))
                if (flag == "avx2" || flag == "avx512f" || flag == "avx512_bf16" ||
                    flag == "amx_bf16")
                    sets += " " + flag;
    }
    Check check{"processor",
                name + ", " + std::to_string(std::thread::hardware_concurrency()) + " cores," +
                    (sets.empty() ? " no AVX2" : sets),
                "", "training, profiling"};
    if (sets.empty())
        check.remedy =
            "works, but matrix products will be slow: a CPU with AVX2 is several times faster";
    return check;
}

Check memory() {
    const double bytes =
        static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
    Check check{"memory", to_text(Bytes{bytes}), "", "training"};
    if (bytes < 4e9) check.remedy = "the quickstart's models need about 2 GiB free";
    return check;
}

Check shipped_files() {
    try {
        return {"shipped files",
                data_folder().string() + " (" +
                    std::to_string(shipped_names("specs/models").size()) + " models, " +
                    std::to_string(shipped_names("specs/clusters").size()) + " clusters)",
                "", "everything"};
    } catch (const EnvironmentError& error) {
        return {"shipped files", "not found", error.what(), "everything"};
    }
}

Check mpi() {
    const auto program = find_program("mpirun");
    if (!program)
        return {"MPI", "no mpirun", "apt-get install openmpi-bin",
                "training on several ranks, validation"};
    const auto run = run_child(mpirun_words(2, {"true"}), {.environment = mpirun_environment()});
    if (run.status != 0)
        return {"MPI", "mpirun fails (status " + std::to_string(run.status) + ")",
                std::string(trim(run.error)).substr(0, 300),
                "training on several ranks, validation"};
    return {"MPI", program->string() + ", two ranks started", "",
            "training on several ranks, validation"};
}

Check gpu() {
    const std::string why = why_missing(Device::cuda);
    if (!why.empty())
        return {"GPU", "none usable", why, "profiling and training on a GPU (planning needs none)"};
    const DeviceFacts& facts = *backend_for(Device::cuda).facts;
    return {"GPU",
            std::string(facts.name) + ", " +
                to_text(Bytes{static_cast<double>(facts.memory_bytes)}) + ", driver " +
                facts.driver,
            "", "profiling and training on a GPU"};
}

Check corpus() {
    if (!find_program("apt-get") || !find_program("dpkg-deb"))
        return {"default corpus", "no apt-get",
                "give your own text: --data FOLDER or --data FILE.jsonl",
                "training without --data"};
    return {"default corpus", "apt-get and dpkg-deb are here", "", "training without --data"};
}

Check room() {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    fs::path folder = cache && *cache ? fs::path(cache) : fs::path(home && *home ? home : "/tmp");
    std::error_code error;
    while (!fs::exists(folder, error) && folder.has_parent_path()) folder = folder.parent_path();
    struct statvfs stat {};
    if (statvfs(folder.c_str(), &stat) != 0)
        return {"cache folder", folder.string(), "cannot be read", "the corpus"};
    const Bytes free{static_cast<double>(stat.f_bavail) * static_cast<double>(stat.f_frsize)};
    Check check{"cache folder", folder.string() + ", " + to_text(free) + " free", "", "the corpus"};
    if (access(folder.c_str(), W_OK) != 0)
        check.remedy = "not writable: set XDG_CACHE_HOME to a folder that is";
    else if (free.value < 1e9)
        check.remedy = "the corpus and its packages need about 0.5 GiB";
    return check;
}

}  // namespace

void add_doctor(CLI::App& app, Run& run) {
    static OutputWords output;
    CLI::App* sub =
        app.add_subcommand("doctor", "What this machine has, what it lacks, and how to get it");
    add_output_flags(*sub, output, false);
    sub->footer("Example: moeplan doctor");
    sub->callback([&run] {
        run = [] {
            const std::vector<Check> checks = {processor(), memory(), shipped_files(), mpi(),
                                               gpu(),       corpus(), room()};
            Json answer = json_header("doctor");
            answer["moeplan"] = kVersion;
            int lacks = 0;
            for (const auto& check : checks) {
                answer["checks"].push_back({{"what", check.what},
                                            {"found", check.found},
                                            {"ok", check.remedy.empty()},
                                            {"remedy", check.remedy},
                                            {"needed_for", check.needed_for}});
                lacks += !check.remedy.empty();
                if (output.quiet()) continue;
                std::printf("%-4s %-15s %s\n", check.remedy.empty() ? "ok" : "--",
                            check.what.c_str(), check.found.c_str());
                if (!check.remedy.empty())
                    std::printf("     %-15s %s\n     %-15s needed for: %s\n", "",
                                check.remedy.c_str(), "", check.needed_for.c_str());
            }
            if (!output.quiet())
                std::printf(
                    lacks == 0
                        ? "Everything is here.\n"
                        : "%d of %zu could be better; what is marked ok works without them.\n",
                    lacks, checks.size());
            write_answer(output, answer);
            return static_cast<int>(kDone);
        };
    });
}

}  // namespace moeplan::cli
