/// The part of roff that man pages use (man(7), groff_char(7)): enough to read them, not to typeset
/// them.

#include <algorithm>
#include <map>

#include "core/text.hpp"
#include "model/text/sources/sources.hpp"

namespace moeplan::text {
namespace {

const std::map<std::string_view, std::string_view>& special_characters() {
    static const std::map<std::string_view, std::string_view> table = {
        {"aq", "'"}, {"dq", "\""}, {"cq", "'"},  {"oq", "'"},  {"lq", "\""}, {"rq", "\""},
        {"em", "—"}, {"en", "–"},  {"hy", "-"},  {"mi", "-"},  {"bu", "*"},  {"co", "©"},
        {"rg", "®"}, {"tm", "™"},  {"ha", "^"},  {"ti", "~"},  {"rs", "\\"}, {"bs", "\\"},
        {"ga", "`"}, {"aa", "´"},  {"ba", "|"},  {"sl", "/"},  {"at", "@"},  {"sh", "#"},
        {"Do", "$"}, {"lB", "["},  {"rB", "]"},  {"lC", "{"},  {"rC", "}"},  {"la", "<"},
        {"ra", ">"}, {"<=", "<="}, {">=", ">="}, {"!=", "!="}, {"==", "=="}, {"+-", "±"},
        {"mu", "×"}, {"di", "÷"},  {"->", "->"}, {"<-", "<-"}, {"if", "∞"},  {"mc", "µ"},
        {"de", "°"}, {"12", "½"},  {"14", "¼"},  {"34", "¾"},  {"ul", "_"},  {"br", "|"},
        {"ss", "ß"}, {"ae", "æ"},  {"AE", "Æ"},  {"*p", "π"},  {"*e", "ε"},  {"*G", "Γ"},
        {"is", "∫"}, {"sr", "√"},  {"eu", "€"},  {"Po", "£"},  {"sc", "§"},  {"dg", "†"},
        {"fm", "′"}, {"pl", "+"},  {"eq", "="},  {"**", "*"},  {":a", "ä"},  {":o", "ö"},
        {":u", "ü"}, {":A", "Ä"},  {":O", "Ö"},  {":U", "Ü"},  {"'e", "é"},  {"`e", "è"}};
    return table;
}

/// Takes a name after \(, \[, \*, \f, \n: "(xx", "[name]" or one character. Advances `i` past it.
std::string_view take_name(std::string_view s, std::size_t& i) {
    if (i >= s.size()) return {};
    if (s[i] == '(') {
        const auto name = s.substr(i + 1, 2);
        i = std::min(s.size(), i + 3);
        return name;
    }
    if (s[i] == '[') {
        const auto end = s.find(']', i);
        const auto name = s.substr(i + 1, end == std::string_view::npos ? end : end - i - 1);
        i = end == std::string_view::npos ? s.size() : end + 1;
        return name;
    }
    return s.substr(i++, 1);
}

/// Text of one line: escapes resolved, comment cut. Sets `joined` when \c asks that no space
/// follows.
std::string unescape(std::string_view s, bool* joined = nullptr) {
    std::string out;
    for (std::size_t i = 0; i < s.size();) {
        if (s[i] != '\\') {
            out += s[i++];
            continue;
        }
        if (++i >= s.size()) break;
        const char c = s[i++];
        switch (c) {
            case '-':
                out += '-';
                break;
            case 'e':
            case '\\':
                out += '\\';
                break;
            case ' ':
            case '~':
            case '0':
                out += ' ';
                break;
            case '\'':
                out += '\'';
                break;
            case '`':
                out += '`';
                break;
            case 't':
                out += '\t';
                break;
            case '"':
            case '#':
                return out;  // comment
            case '&':
            case '|':
            case '^':
            case '%':
            case ':':
            case '/':
            case ',':
            case 'p':
            case 'd':
            case 'u':
            case 'r':
            case '{':
            case '}':
            case ')':
                break;
            case 'c':
                if (joined) *joined = true;
                break;
            case 'f':
            case '*':
            case 'n':
            case 'm':
            case 'M':
            case 'k':
            case 'F':
            case 'g':
            case 'Y':
                if (c == 'n' && i < s.size() && (s[i] == '+' || s[i] == '-')) ++i;
                take_name(s, i);
                break;
            case '(':
            case '[': {
                --i;
                const auto name = take_name(s, i);
                if (const auto at = special_characters().find(name);
                    at != special_characters().end())
                    out += at->second;
                break;
            }
            case 's':  // \s-1, \s+2, \s0, \s(12, \s[12], \s'12'
                if (i < s.size() && (s[i] == '+' || s[i] == '-')) ++i;
                if (i < s.size() && s[i] == '\'')
                    i = std::min(s.size(), s.find('\'', i + 1) == std::string_view::npos
                                               ? s.size()
                                               : s.find('\'', i + 1) + 1);
                else
                    take_name(s, i);
                break;
            case 'h':
            case 'v':
            case 'w':
            case 'l':
            case 'L':
            case 'D':
            case 'o':
            case 'b':
            case 'x':
            case 'X':
            case 'Z':
            case 'A':
            case 'B':
            case 'C':
            case 'H':
            case 'N':
            case 'R':
            case 'S': {
                if (i >= s.size()) break;
                const auto end = s.find(s[i], i + 1);
                i = end == std::string_view::npos ? s.size() : end + 1;
                break;
            }
            case 'z':
                break;
            default:
                out += c;
        }
    }
    return out;
}

/// Arguments of a macro: blanks part them, double quotes hold them together ("" inside is a quote).
std::vector<std::string> arguments(std::string_view s) {
    std::vector<std::string> out;
    std::size_t i = 0;
    while (true) {
        while (i < s.size() && (s[i] == ' ' || s[i] == '\t')) ++i;
        if (i >= s.size()) return out;
        if (s[i] == '\\' && i + 1 < s.size() && s[i + 1] == '"') return out;  // a comment
        std::string word;
        if (s[i] == '"') {
            for (++i; i < s.size(); ++i) {
                if (s[i] == '"' && i + 1 < s.size() && s[i + 1] == '"')
                    word += s[++i];
                else if (s[i] == '"')
                    break;
                else
                    word += s[i];
            }
            ++i;
        } else {
            while (i < s.size() && s[i] != ' ' && s[i] != '\t') {
                if (s[i] == '\\' && i + 1 < s.size()) word += s[i++];  // "\ " does not part
                word += s[i++];
            }
        }
        out.push_back(unescape(word));
    }
}

class Page {
  public:
    void line(std::string_view text) {
        if (skip_until_) {
            if (text == "..") skip_until_ = false;
            return;
        }
        if (text.starts_with('.') || text.starts_with('\'')) {
            request(text.substr(1));
            return;
        }
        if (in_table_header_) {
            if (trim(text).ends_with('.')) in_table_header_ = false;
            return;
        }
        if (in_table_ && (text == "_" || text == "=")) return;
        add(text);
    }
    std::string take() { return std::move(out_); }

  private:
    void add(std::string_view text) {
        bool joined = false;
        std::string words = unescape(text, &joined);
        if (in_table_) {
            std::string cell;
            for (const char c : words) cell += c == '\t' ? ' ' : c;
            if (cell == "T{" || cell == "T}") return;
            words = cell;
        }
        const bool own_line = verbatim_ || in_table_;
        if (trim(words).empty() && !own_line)
            paragraph();
        else
            put(words, own_line, joined);
    }
    void put(const std::string& words, bool own_line, bool joined = false) {
        if (own_line) {
            if (!out_.empty() && out_.back() == ' ') out_.back() = '\n';
            out_ += words + '\n';
        } else {
            out_ += words;
            if (!joined) out_ += ' ';
        }
    }
    void paragraph() {
        if (!out_.empty()) out_ += "\n\n";
    }
    void break_line() {
        if (!out_.empty() && out_.back() != '\n') out_ += '\n';
    }
    void request(std::string_view s) {
        std::size_t i = 0;
        while (i < s.size() && (s[i] == ' ' || s[i] == '\t')) ++i;
        const std::size_t begin = i;
        while (i < s.size() && s[i] != ' ' && s[i] != '\t') ++i;
        const std::string_view name = s.substr(begin, i - begin);
        const std::string_view rest = s.substr(i);
        if (name.starts_with("\\\"") || name.empty()) return;
        if (name == "SH" || name == "SS") {
            verbatim_ = false;
            paragraph();
            put(join(arguments(rest), " "), true);
        } else if (name == "PP" || name == "LP" || name == "P" || name == "sp" || name == "TP" ||
                   name == "HP") {
            paragraph();
        } else if (name == "IP") {
            paragraph();
            const auto args = arguments(rest);
            if (!args.empty()) put(args[0], false);
        } else if (name == "br" || name == "RS" || name == "RE" || name == "TQ") {
            break_line();
        } else if (name == "nf" || name == "EX") {
            break_line();
            verbatim_ = true;
        } else if (name == "fi" || name == "EE") {
            verbatim_ = false;
        } else if (name == "TS") {
            break_line();
            in_table_ = in_table_header_ = true;
        } else if (name == "TE") {
            in_table_ = in_table_header_ = false;
        } else if (name == "T&") {
            in_table_header_ = true;
        } else if (name == "B" || name == "I" || name == "SM" || name == "SB" || name == "UR" ||
                   name == "MT") {
            put(join(arguments(rest), " "), verbatim_);
        } else if (name == "BR" || name == "RB" || name == "BI" || name == "IB" || name == "IR" ||
                   name == "RI") {
            put(join(arguments(rest), ""), verbatim_);
        } else if (name == "OP") {
            put("[" + join(arguments(rest), " ") + "]", verbatim_);
        } else if (name == "de" || name == "ig" || name == "am" || name == "de1") {
            skip_until_ = true;
        }
        // What is left sets type (.ad, .hy, .ta …) or programs it (.if, .nr, .ds …): no words of
        // the text.
    }
    std::string out_;
    bool verbatim_ = false, in_table_ = false, in_table_header_ = false, skip_until_ = false;
};

}  // namespace

std::string roff_to_text(std::string_view text) {
    Page page;
    std::string pending;
    for (std::string& line : split(text, '\n')) {
        // A backslash at the end carries the line on (an escaped backslash does not).
        std::size_t slashes = 0;
        while (slashes < line.size() && line[line.size() - 1 - slashes] == '\\') ++slashes;
        if (slashes % 2 == 1 && pending.size() < 1 << 20) {
            pending += line.substr(0, line.size() - 1);
            continue;
        }
        page.line(pending.empty() ? line : pending + line);
        pending.clear();
    }
    if (!pending.empty()) page.line(pending);
    return page.take();
}

}  // namespace moeplan::text
