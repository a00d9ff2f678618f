/// HTML to text, for documentation pages: no scripts, no navigation, blocks on lines of their own.

#include <algorithm>
#include <map>
#include <set>

#include "core/text.hpp"
#include "model/text/sources/sources.hpp"

namespace moeplan::text {
namespace {

std::string lower(std::string_view s) {
    std::string out(s);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return out;
}

void add_code_point(std::string& out, unsigned long c) {
    if (c == 0 || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) c = 0xFFFD;
    if (c < 0x80) {
        out += static_cast<char>(c);
    } else if (c < 0x800) {
        out += static_cast<char>(0xC0 | c >> 6);
        out += static_cast<char>(0x80 | (c & 63));
    } else if (c < 0x10000) {
        out += static_cast<char>(0xE0 | c >> 12);
        out += static_cast<char>(0x80 | (c >> 6 & 63));
        out += static_cast<char>(0x80 | (c & 63));
    } else {
        out += static_cast<char>(0xF0 | c >> 18);
        out += static_cast<char>(0x80 | (c >> 12 & 63));
        out += static_cast<char>(0x80 | (c >> 6 & 63));
        out += static_cast<char>(0x80 | (c & 63));
    }
}

/// The entity at `i` (which points at '&'); advances past it. An unknown one stays as it stands.
void add_entity(std::string& out, std::string_view s, std::size_t& i) {
    static const std::map<std::string_view, unsigned long> table = {
        {"amp", '&'},      {"lt", '<'},       {"gt", '>'},        {"quot", '"'},
        {"apos", '\''},    {"nbsp", ' '},     {"copy", 0xA9},     {"reg", 0xAE},
        {"mdash", 0x2014}, {"ndash", 0x2013}, {"lsquo", 0x2018},  {"rsquo", 0x2019},
        {"ldquo", 0x201C}, {"rdquo", 0x201D}, {"hellip", 0x2026}, {"times", 0xD7},
        {"le", 0x2264},    {"ge", 0x2265}};
    const auto length = s.substr(i, 12).find(';');
    if (length == std::string_view::npos || length == 1) {
        out += s[i++];
        return;
    }
    const auto end = i + length;
    const auto name = s.substr(i + 1, length - 1);
    if (name[0] == '#') {
        unsigned long value = 0;
        const bool hexadecimal = name.size() > 1 && (name[1] == 'x' || name[1] == 'X');
        for (const char c : name.substr(hexadecimal ? 2 : 1)) {
            const int digit = c >= '0' && c <= '9'                  ? c - '0'
                              : hexadecimal && c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : hexadecimal && c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                                    : -1;
            if (digit < 0) break;
            value = value * (hexadecimal ? 16 : 10) + static_cast<unsigned long>(digit);
        }
        add_code_point(out, value == 0xA0 ? ' ' : value);
    } else if (const auto at = table.find(name); at != table.end()) {
        add_code_point(out, at->second);
    } else {
        out += s[i++];
        return;
    }
    i = end + 1;
}

const std::set<std::string, std::less<>>& block_elements() {
    static const std::set<std::string, std::less<>> names = {
        "p",  "div", "br", "hr",         "li",      "ul",      "ol",   "dl",
        "dt", "dd",  "tr", "table",      "pre",     "h1",      "h2",   "h3",
        "h4", "h5",  "h6", "blockquote", "section", "article", "title"};
    return names;
}

}  // namespace

std::string html_to_text(std::string_view s) {
    std::string out;
    int skipped_divs = 0, pre = 0;
    std::string skipped_element;  // head, script, style: until their end
    for (std::size_t i = 0; i < s.size();) {
        if (s[i] != '<') {
            if (skipped_divs > 0 || !skipped_element.empty()) {
                ++i;
            } else if (s[i] == '&') {
                add_entity(out, s, i);
            } else {
                const bool blank = s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r';
                if (!blank || pre > 0)
                    out += s[i];
                else if (!out.empty() && out.back() != ' ' && out.back() != '\n')
                    out += ' ';
                ++i;
            }
            continue;
        }
        if (s.substr(i).starts_with("<!--")) {
            const auto end = s.find("-->", i + 4);
            i = end == std::string_view::npos ? s.size() : end + 3;
            continue;
        }
        const auto end = s.find('>', i);
        if (end == std::string_view::npos) break;
        std::string_view tag = s.substr(i + 1, end - i - 1);
        i = end + 1;
        const bool closing = tag.starts_with('/'), empty = tag.ends_with('/');
        if (closing) tag.remove_prefix(1);
        const std::string name = lower(tag.substr(0, tag.find_first_of(" \t\n\r/")));
        if (!skipped_element.empty()) {
            if (closing && name == skipped_element) skipped_element.clear();
            continue;
        }
        if (name == "head" || name == "script" || name == "style") {
            if (!closing && !empty) skipped_element = name;
            continue;
        }
        if (skipped_divs > 0) {
            if (name == "div" && !empty) skipped_divs += closing ? -1 : 1;
            continue;
        }
        if (name == "div" && !closing && !empty &&
            (tag.find("\"navheader\"") != std::string_view::npos ||
             tag.find("\"navfooter\"") != std::string_view::npos ||
             tag.find("\"toc\"") != std::string_view::npos)) {
            skipped_divs = 1;
            continue;
        }
        if (name == "pre") pre = std::max(0, pre + (closing ? -1 : 1));
        if (name == "td" || name == "th") out += ' ';
        if (block_elements().contains(name)) {
            while (!out.empty() && out.back() == ' ') out.pop_back();
            out += (name == "p" || name == "pre" || name[0] == 'h') && !closing ? "\n\n" : "\n";
        }
    }
    return out;
}

}  // namespace moeplan::text
