#include "cli/manual.hpp"

#include <CLI/CLI.hpp>
#include <vector>

#include "core/version.hpp"

namespace moeplan::cli {
namespace {

/// Text inside troff: backslashes and hyphens escaped, no line begins a request.
std::string troff(const std::string& text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if ((i == 0 || text[i - 1] == '\n') && (c == '.' || c == '\'')) out += "\\&";
        if (c == '\\')
            out += "\\e";
        else if (c == '-')
            out += "\\-";
        else
            out += c;
    }
    return out;
}

/// Subcommands meant for people: hidden ones (their names begin with "_") are left out.
std::vector<const CLI::App*> shown_subcommands(const CLI::App& app) {
    std::vector<const CLI::App*> out;
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
        if (!sub->get_name().empty() && sub->get_name()[0] != '_') out.push_back(sub);
    return out;
}

void describe(const CLI::App& app, const std::string& words, std::string& out) {
    out += ".SS \"" + troff(words) + "\"\n" + troff(app.get_description()) + "\n";
    for (const CLI::Option* option : app.get_options()) {
        const std::string name = option->get_name(option->get_positional(), true);
        if (name.empty()) continue;
        out += ".TP\n\\fB" + troff(name) + "\\fR\n" + troff(option->get_description()) + "\n";
    }
    if (!app.get_footer().empty()) out += ".PP\n.nf\n" + troff(app.get_footer()) + "\n.fi\n";
    for (const CLI::App* sub : shown_subcommands(app))
        describe(*sub, words + " " + sub->get_name(), out);
}

void completions(const CLI::App& app, const std::string& words, std::string& out) {
    std::string next;
    for (const CLI::App* sub : shown_subcommands(app)) next += sub->get_name() + " ";
    for (const CLI::Option* option : app.get_options())
        for (const std::string& name : option->get_lnames()) next += "--" + name + " ";
    if (!next.empty()) next.pop_back();
    out += "        \"" + words + "\") next=\"" + next + "\" ;;\n";
    for (const CLI::App* sub : shown_subcommands(app))
        completions(*sub, words + (words.empty() ? "" : " ") + sub->get_name(), out);
}

}  // namespace

std::string man_page(const CLI::App& app) {
    std::string out =
        std::string(".TH MOEPLAN 1 \"\" \"moeplan ") + kVersion + "\" \"User Commands\"\n";
    out +=
        ".SH NAME\nmoeplan \\- simulate and plan the training of mixture\\-of\\-experts models on "
        "clusters\n";
    out += ".SH SYNOPSIS\n\\fBmoeplan\\fR \\fISUBCOMMAND\\fR [\\fIoptions\\fR]\n";
    out += ".SH DESCRIPTION\n" + troff(app.get_description()) + "\n.SH SUBCOMMANDS\n";
    for (const CLI::App* sub : shown_subcommands(app)) describe(*sub, sub->get_name(), out);
    out +=
        ".SH EXIT STATUS\n0 done; 1 the answer is no; 2 the words or a file are wrong; 3 the "
        "machine lacks something.\n";
    out +=
        ".SH ENVIRONMENT\n.TP\nMOEPLAN_DATA\nThe folder that holds specs/ and schemas/, where they "
        "do not lie beside the binary.\n";
    return out;
}

std::string bash_completion(const CLI::App& app) {
    std::string cases;
    completions(app, "", cases);
    return "# bash completion of moeplan (zsh: autoload -U bashcompinit; bashcompinit, then source "
           "this)\n"
           "_moeplan() {\n"
           "    local current=\"${COMP_WORDS[COMP_CWORD]}\" words=\"\" next=\"\" i\n"
           "    for ((i = 1; i < COMP_CWORD; ++i)); do\n"
           "        case \"${COMP_WORDS[i]}\" in -*) break ;; *) words=\"${words:+$words "
           "}${COMP_WORDS[i]}\" ;; esac\n"
           "    done\n"
           "    case \"$words\" in\n" +
           cases +
           "    esac\n"
           "    COMPREPLY=($(compgen -W \"$next\" -- \"$current\"))\n"
           "    [[ ${#COMPREPLY[@]} -eq 0 ]] && COMPREPLY=($(compgen -f -- \"$current\"))\n"
           "}\n"
           "complete -o filenames -F _moeplan moeplan\n";
}

}  // namespace moeplan::cli
