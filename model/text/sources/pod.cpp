/// Perl's Plain Old Documentation (perlpod(1), perlpodspec(1)).

#include <map>

#include "core/text.hpp"
#include "model/text/sources/sources.hpp"

namespace moeplan::text {
namespace {

/// Deeper nesting than this is no writing of a person; the rest then stays as it stands.
constexpr int kDeepest = 40;

std::string entity(std::string_view name) {
    static const std::map<std::string_view, std::string_view> table = {
        {"lt", "<"},  {"gt", ">"},    {"verbar", "|"}, {"sol", "/"},
        {"amp", "&"}, {"quot", "\""}, {"nbsp", " "}};
    const auto at = table.find(name);
    return at == table.end() ? std::string() : std::string(at->second);
}

/// Resolves formatting codes from `i` on, until `closing` (empty: the end).
std::string resolve(std::string_view s, std::size_t& i, const std::string& closing, int depth) {
    std::string out;
    while (i < s.size()) {
        if (!closing.empty() && s.substr(i).starts_with(closing)) {
            i += closing.size();
            break;
        }
        const bool code =
            i + 1 < s.size() && s[i] >= 'A' && s[i] <= 'Z' && s[i + 1] == '<' && depth < kDeepest;
        if (!code) {
            out += s[i++];
            continue;
        }
        const char kind = s[i++];
        std::size_t brackets = 0;
        while (i < s.size() && s[i] == '<') ++brackets, ++i;
        // C<< … >>: as many brackets, and blanks inside them.
        std::string inner_closing(brackets, '>');
        if (brackets > 1) {
            while (i < s.size() && (s[i] == ' ' || s[i] == '\n')) ++i;
            inner_closing = " " + inner_closing;
        }
        std::string inner = resolve(s, i, inner_closing, depth + 1);
        if (kind == 'E')
            out += entity(inner);
        else if (kind == 'L')
            out += inner.substr(0, inner.find('|'));
        else if (kind != 'X' && kind != 'Z')
            out += inner;
    }
    return out;
}

std::string resolve(std::string_view s) {
    std::size_t i = 0;
    return resolve(s, i, "", 0);
}

}  // namespace

std::vector<std::string> pod_to_texts(std::string_view pod) {
    std::vector<std::string> out(1);
    bool outside = false, ignored = false, in_paragraph = false;
    std::string paragraph;
    const auto end_paragraph = [&] {
        if (!paragraph.empty() && !outside && !ignored) {
            if (paragraph[0] == ' ' || paragraph[0] == '\t') {
                out.back() += paragraph + '\n';  // verbatim
            } else if (paragraph[0] == '=') {
                const std::size_t name_end = paragraph.find_first_of(" \t\n");
                const std::string name = paragraph.substr(0, name_end);
                const std::string rest =
                    name_end == std::string::npos
                        ? ""
                        : resolve(trim(std::string_view(paragraph).substr(name_end)));
                if (name == "=head1") out.emplace_back();
                if (name.starts_with("=head") || (name == "=item" && rest != "*"))
                    out.back() += rest + "\n\n";
            } else {
                std::string words = resolve(paragraph);
                for (char& c : words)
                    if (c == '\n') c = ' ';
                out.back() += words + "\n\n";
            }
        }
        paragraph.clear();
    };
    for (const std::string& line : split(pod, '\n')) {
        if (trim(line).empty()) {
            end_paragraph();
            in_paragraph = false;
            continue;
        }
        if (line.starts_with("=") && !in_paragraph) {
            if (line.starts_with("=cut"))
                outside = true;
            else if (line.starts_with("=end"))
                ignored = false, outside = false;
            else
                outside = false;
            if (line.starts_with("=begin")) ignored = true;
            const bool command_without_text =
                line.starts_with("=cut") || line.starts_with("=end") ||
                line.starts_with("=begin") || line.starts_with("=for") ||
                line.starts_with("=encoding") || line.starts_with("=pod");
            if (command_without_text) {
                in_paragraph = true;
                continue;
            }
        } else if (in_paragraph && paragraph.empty()) {
            continue;  // the rest of a =for paragraph
        }
        in_paragraph = true;
        paragraph += line + '\n';
    }
    end_paragraph();
    return out;
}

}  // namespace moeplan::text
