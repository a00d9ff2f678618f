/// `moeplan report`: one page over any of our outputs.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/command.hpp"
#include "cli/report/pages.hpp"
#include "core/errors.hpp"
#include "core/output_file.hpp"

namespace moeplan::cli {

void add_report(CLI::App& app, Run& run) {
    struct Words {
        std::vector<std::string> files;
        std::string html = "report.html", title;
    };
    const auto words = std::make_shared<Words>();
    CLI::App* sub =
        app.add_subcommand("report", "One page, with pictures, over any of our outputs");
    sub->add_option("files", words->files,
                    "reports, timelines, plans, validations, profiles, traces, training records")
        ->required();
    sub->add_option("--html", words->html, "the page to write")
        ->type_name("FILE")
        ->capture_default_str();
    sub->add_option("--title", words->title, "heading of the page");
    sub->footer(
        "Example: moeplan report build/quickstart/plan.json build/quickstart/top_k.trace.h5 --html "
        "report.html");
    sub->callback([words, &run] {
        run = [words] {
            std::vector<ReportFile> files;
            for (const auto& file : words->files) files.push_back(read_report_file(file));
            write_page(words->html, files, words->title);
            if (words->html != "-") std::printf("%s\n", words->html.c_str());
            return kDone;
        };
    });
}

}  // namespace moeplan::cli
