#include "model/import/megatron.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <set>

#include "core/errors.hpp"
#include "core/text.hpp"

namespace moeplan {
namespace {

constexpr int kMost = 1 << 30;
constexpr int kMostLayers = 10'000;

bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

/// A word of the script after quotes and expansions, and how it stood there.
struct Word {
    std::string text;
    int line = 0;
    bool ends_statement = false;  ///< nothing else; a separator
    bool opens_array = false;     ///< NAME=(
    bool closes_array = false;
};

/// A shell's reading of words, as far as launch scripts need it.
class ScriptReader {
  public:
    ScriptReader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

    MegatronArguments read() {
        bool in_array = false, first = true;
        std::string array;
        while (at_ < text_.size()) {
            const auto word = next(in_array);
            if (!word) break;
            if (word->ends_statement) {
                if (!in_array) first = true;
                continue;
            }
            if (word->opens_array) {
                in_array = true;
                array = word->text;
                continue;
            }
            if (word->closes_array) {
                in_array = false;
                first = true;
                continue;
            }
            if (!in_array && first) {
                if (const auto equals = assignment(word->text); equals != std::string::npos) {
                    assign(word->text.substr(0, equals), word->text.substr(equals + 1), word->line);
                    continue;  // NAME=value may stand before a command: still "first"
                }
                if (word->text == "export" || word->text == "local" || word->text == "declare" ||
                    word->text == "readonly")
                    continue;
                branch(word->text);
                first = word->text == "then" || word->text == "else" || word->text == "do" ||
                        word->text == "elif" || word->text == "{";
            }
            take(*word);
        }
        flush();
        return arguments_;
    }

  private:
    static std::size_t assignment(std::string_view word) {
        std::size_t i = 0;
        while (i < word.size() && is_name_char(word[i])) ++i;
        if (i == 0 || i >= word.size() || std::isdigit(static_cast<unsigned char>(word[0])))
            return std::string::npos;
        if (word[i] == '=') return i;
        if (word[i] == '+' && i + 1 < word.size() && word[i + 1] == '=') return i + 1;
        return std::string::npos;
    }

    void branch(const std::string& word) {
        if (word == "if" || word == "case") ++depth_;
        if ((word == "fi" || word == "esac") && depth_ > 0) --depth_;
    }

    void assign(std::string name, const std::string& value, int line) {
        if (!name.empty() && name.back() == '+') {
            name.pop_back();
            variables_[name] += " " + value;
        } else {
            // Which branch would run is not ours to know: two different values are an ambiguity, if
            // anyone asks.
            if (depth_ > 0 && variables_.count(name) && branched_.count(name) &&
                variables_[name] != value)
                ambiguous_[name] = line;
            if (depth_ > 0)
                branched_.insert(name);
            else
                branched_.erase(name), ambiguous_.erase(name);
            variables_[name] = value;
        }
        if (value.find("--") != std::string::npos) {  // a string of flags
            ScriptReader inner(value, file_);
            inner.variables_ = variables_;
            for (auto& [key, argument] : inner.read()) arguments_[key] = {argument.value, line};
        }
    }

    /// Flags and their values, in order.
    void take(const Word& word) {
        std::string_view text = word.text;
        if (text.starts_with("--") && text.size() > 2 &&
            (std::isalpha(static_cast<unsigned char>(text[2])))) {
            flush();
            const auto equals = text.find('=');
            std::string key(text.substr(2, equals == std::string_view::npos ? equals : equals - 2));
            std::replace(key.begin(), key.end(), '_', '-');
            if (equals != std::string_view::npos)
                arguments_[key] = {std::string(text.substr(equals + 1)), word.line};
            else
                pending_ = key, pending_line_ = word.line;
            return;
        }
        if (!pending_.empty()) {
            arguments_[pending_] = {word.text, pending_line_};
            pending_.clear();
        }
    }
    void flush() {
        if (!pending_.empty()) arguments_[pending_] = {"true", pending_line_};
        pending_.clear();
    }

    std::optional<Word> next(bool in_array) {
        for (;;) {
            while (at_ < text_.size() &&
                   (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r'))
                ++at_;
            if (at_ >= text_.size()) return std::nullopt;
            const char c = text_[at_];
            if (c == '\\' && at_ + 1 < text_.size() &&
                (text_[at_ + 1] == '\n' || text_[at_ + 1] == '\r')) {
                at_ = text_.find('\n', at_);
                if (at_ == std::string_view::npos) return std::nullopt;
                ++at_, ++line_;
                continue;
            }
            if (c == '#') {
                at_ = std::min(text_.find('\n', at_), text_.size());
                continue;
            }
            if (c == '\n') {
                ++at_, ++line_;
                flush_statement(in_array);
                if (in_array) continue;
                return Word{.line = line_, .ends_statement = true};
            }
            if (c == ';' || c == '|' || c == '&') {
                ++at_;
                flush_statement(in_array);
                return Word{.line = line_, .ends_statement = true};
            }
            if (c == '(' || c == ')') {
                ++at_;
                if (c == ')' && in_array) {
                    flush();
                    return Word{.line = line_, .closes_array = true};
                }
                return Word{.line = line_, .ends_statement = true};
            }
            return word();
        }
    }
    void flush_statement(bool in_array) {
        if (!in_array) flush();
    }

    Word word() {
        Word out{.line = line_};
        while (at_ < text_.size()) {
            const char c = text_[at_];
            if (std::isspace(static_cast<unsigned char>(c)) || c == ';' || c == '|' || c == '&' ||
                c == ')')
                break;
            if (c == '(') {
                if (assignment(out.text) == out.text.size() - 1 && !out.text.empty()) {
                    ++at_;
                    out.opens_array = true;
                    return out;
                }
                break;
            }
            if (c == '\\') {
                if (at_ + 1 < text_.size() && text_[at_ + 1] == '\n') break;
                if (at_ + 1 < text_.size()) out.text += text_[at_ + 1];
                at_ += 2;
                continue;
            }
            if (c == '\'') {
                const auto end = text_.find('\'', at_ + 1);
                if (end == std::string_view::npos) unclosed("'");
                count_lines(at_, end);
                out.text += text_.substr(at_ + 1, end - at_ - 1);
                at_ = end + 1;
                continue;
            }
            if (c == '"') {
                const int opened = line_;
                ++at_;
                bool closed = false;
                while (at_ < text_.size()) {
                    const char q = text_[at_];
                    if (q == '"') {
                        closed = true;
                        ++at_;
                        break;
                    }
                    if (q == '\\' && at_ + 1 < text_.size()) {
                        if (text_[at_ + 1] == '\n')
                            ++line_, out.text += ' ';
                        else
                            out.text += text_[at_ + 1];
                        at_ += 2;
                        continue;
                    }
                    if (q == '$') {
                        out.text += expand();
                        continue;
                    }
                    if (q == '\n') ++line_;
                    out.text += q;
                    ++at_;
                }
                if (!closed) line_ = opened, unclosed("\"");
                continue;
            }
            if (c == '`') {  // a command's output is not ours to know
                const auto end = text_.find('`', at_ + 1);
                if (end == std::string_view::npos) unclosed("`");
                count_lines(at_, end);
                out.text += "$(…)";
                at_ = end + 1;
                continue;
            }
            if (c == '$') {
                out.text += expand();
                continue;
            }
            out.text += c;
            ++at_;
        }
        if (out.text.empty() && at_ < text_.size() && text_[at_] == '\\')
            ++at_;  // a lone backslash
        return out;
    }

    void count_lines(std::size_t from, std::size_t to) {
        line_ +=
            static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(from),
                                        text_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    }
    [[noreturn]] void unclosed(const char* quote) const {
        throw InputError(file_, "line " + std::to_string(line_),
                         std::string("an unclosed ") + quote, "a closing one");
    }

    std::string value_of(const std::string& name, const std::string& otherwise, bool has_default) {
        if (const auto found = ambiguous_.find(name); found != ambiguous_.end())
            return "${" + name + "}";
        const auto found = variables_.find(name);
        if (found != variables_.end() && !(has_default && found->second.empty()))
            return found->second;
        return has_default ? otherwise : "${" + name + "}";
    }

    /// At a '$': what it stands for.
    std::string expand() {
        ++at_;
        if (at_ >= text_.size()) return "$";
        if (text_[at_] == '(') return arithmetic();
        if (text_[at_] == '{') {
            std::size_t depth = 0, end = at_;
            for (; end < text_.size(); ++end) {
                if (text_[end] == '{') ++depth;
                if (text_[end] == '}' && --depth == 0) break;
            }
            if (end >= text_.size()) unclosed("${");
            const std::string inside(text_.substr(at_ + 1, end - at_ - 1));
            at_ = end + 1;
            std::size_t i = 0;
            while (i < inside.size() && is_name_char(inside[i])) ++i;
            const std::string name = inside.substr(0, i);
            const std::string rest = inside.substr(i);
            if (rest.starts_with("["))
                return "";  // an array's words were taken where it was written
            if (rest.starts_with(":-") || rest.starts_with(":=") || rest.starts_with("-") ||
                rest.starts_with("=")) {
                const std::string given = rest.substr(rest[0] == ':' ? 2 : 1);
                if (++nesting_ > 20)
                    throw InputError(file_, "line " + std::to_string(line_), "",
                                     "fewer nested ${…}");
                ScriptReader inner(given, file_);
                inner.variables_ = variables_;
                inner.nesting_ = nesting_;
                const std::string otherwise = given.empty() ? "" : inner.word().text;
                --nesting_;
                return value_of(name, otherwise, true);
            }
            return value_of(name, "", false);
        }
        std::size_t i = at_;
        while (i < text_.size() && is_name_char(text_[i])) ++i;
        if (i == at_) {
            ++at_;
            return "";  // $@, $1, $?: not known
        }
        const std::string name(text_.substr(at_, i - at_));
        at_ = i;
        return value_of(name, "", false);
    }

    /// $(( a * b )) of numbers and variables, left to right with the usual precedence; anything
    /// else stays unknown.
    std::string arithmetic() {
        const bool sum = text_.substr(at_).starts_with("((");
        std::size_t depth = 0, end = at_;
        for (; end < text_.size(); ++end) {
            if (text_[end] == '(') ++depth;
            if (text_[end] == ')' && --depth == 0) break;
        }
        if (end >= text_.size()) unclosed("$(");
        count_lines(at_, end);
        const std::string inside(sum && end - at_ >= 4 ? text_.substr(at_ + 2, end - at_ - 3)
                                                       : std::string_view{});
        at_ = end + 1;
        if (!sum) return "$(…)";
        std::size_t i = 0;
        const auto space = [&] {
            while (i < inside.size() && std::isspace(static_cast<unsigned char>(inside[i]))) ++i;
        };
        bool good = true;
        int deep = 0;
        std::function<long long()> terms;
        const std::function<long long()> factor = [&]() -> long long {
            space();
            if (i < inside.size() && inside[i] == '(') {
                if (++deep > 50) return good = false, 0;
                ++i;
                const long long value = terms();
                space();
                if (i < inside.size() && inside[i] == ')')
                    ++i;
                else
                    good = false;
                --deep;
                return value;
            }
            if (i < inside.size() && inside[i] == '$') ++i;
            const bool brace = i < inside.size() && inside[i] == '{';
            if (brace) ++i;
            std::string name;
            while (i < inside.size() && is_name_char(inside[i])) name += inside[i++];
            if (brace) {
                if (i < inside.size() && inside[i] == '}')
                    ++i;
                else
                    good = false;
            }
            if (name.empty()) return good = false, 0;
            if (!std::isdigit(static_cast<unsigned char>(name[0])))
                name = value_of(name, "", false);
            if (name.empty() || name.size() > 12 ||
                name.find_first_not_of("0123456789") != std::string::npos)
                return good = false, 0;
            return std::atoll(name.c_str());
        };
        const auto bounded = [&](long long value) {
            if (std::llabs(value) > 1'000'000'000'000LL) good = false;
            return good ? value : 0;
        };
        const auto product = [&]() -> long long {
            long long value = factor();
            for (space(); good && i < inside.size() &&
                          (inside[i] == '*' || inside[i] == '/' || inside[i] == '%');
                 space()) {
                const char op = inside[i++];
                const long long by = factor();
                if (!good) return 0;
                if (op == '*') {
                    if (by != 0 &&
                        std::llabs(value) > 1'000'000'000'000LL / std::max(1LL, std::llabs(by)))
                        return good = false, 0;
                    value *= by;
                } else if (by == 0) {
                    return good = false, 0;
                } else {
                    value = op == '/' ? value / by : value % by;
                }
            }
            return value;
        };
        terms = [&]() -> long long {
            long long value = product();
            for (space(); good && i < inside.size() && (inside[i] == '+' || inside[i] == '-');
                 space()) {
                const char op = inside[i++];
                const long long by = product();
                value = bounded(op == '+' ? value + by : value - by);
            }
            return value;
        };
        const long long value = terms();
        space();
        return good && i == inside.size() ? std::to_string(value) : "$((" + inside + "))";
    }

    std::string_view text_;
    std::string file_;
    std::size_t at_ = 0;
    int line_ = 1, depth_ = 0, pending_line_ = 0, nesting_ = 0;
    std::string pending_;
    std::map<std::string, std::string> variables_;
    std::map<std::string, int> ambiguous_;
    std::set<std::string> branched_;
    MegatronArguments arguments_;
};

std::optional<int> whole_number(std::string_view text) {
    text = trim(text);
    if (text.empty() || text.size() > 10 ||
        text.find_first_not_of("0123456789") != std::string_view::npos)
        return std::nullopt;
    const long long value = std::atoll(std::string(text).c_str());
    return value <= kMost ? std::optional(static_cast<int>(value)) : std::nullopt;
}

/// Arguments with types, and a message that names file and line.
class Reader {
  public:
    Reader(const MegatronArguments& arguments, const std::string& file)
        : arguments_(arguments), file_(file) {}

    const MegatronArgument* find(const std::string& key) const {
        const auto found = arguments_.find(key);
        return found == arguments_.end() || found->second.value == "null" ||
                       found->second.value == "None"
                   ? nullptr
                   : &found->second;
    }
    [[noreturn]] void fail(const std::string& key, const std::string& expected) const {
        const auto& argument = arguments_.at(key);
        std::string more = expected;
        if (argument.value.find('$') != std::string::npos)
            more +=
                "; the file sets no single value for it (write the number, or NAME=… before it)";
        throw InputError(file_, "line " + std::to_string(argument.line) + ": --" + key,
                         argument.value, more);
    }
    int number(const std::string& key, int least = 1, int most = kMost) const {
        const auto value = whole_number(arguments_.at(key).value);
        if (!value || *value < least || *value > most)
            fail(key, "an integer " + std::to_string(least) +
                          (most < kMost ? " … " + std::to_string(most) : " or more"));
        return *value;
    }
    int number_or(const std::string& key, int otherwise, int least = 0, int most = kMost) const {
        return find(key) ? number(key, least, most) : otherwise;
    }
    double real_or(const std::string& key, double otherwise) const {
        const auto* found = find(key);
        if (!found) return otherwise;
        char* end = nullptr;
        const double value = std::strtod(found->value.c_str(), &end);
        if (end == found->value.c_str() || *end != 0 || !std::isfinite(value))
            fail(key, "a number");
        return value;
    }
    bool on(const std::string& key) const {
        const auto* found = find(key);
        return found && found->value != "false" && found->value != "False";
    }
    std::string text_or(const std::string& key, const std::string& otherwise) const {
        const auto* found = find(key);
        return found ? found->value : otherwise;
    }

  private:
    const MegatronArguments& arguments_;
    const std::string& file_;
};

}  // namespace

bool looks_like_script(std::string_view text) {
    return text.find("--num-layers") != std::string_view::npos ||
           text.find("--hidden-size") != std::string_view::npos ||
           text.find("--tensor-model-parallel-size") != std::string_view::npos ||
           text.find("--num-experts") != std::string_view::npos;
}

bool looks_like_yaml(std::string_view text) {
    for (const auto& line : split(text, '\n')) {
        std::string_view view = trim(line);
        if (view.starts_with("--")) view.remove_prefix(2);
        for (const char* key : {"num_layers:", "num-layers:", "hidden_size:", "hidden-size:"})
            if (view.starts_with(key)) return true;
    }
    return false;
}

MegatronArguments arguments_of_script(std::string_view text, const std::string& file) {
    return ScriptReader(text, file).read();
}

MegatronArguments arguments_of_yaml(std::string_view text, const std::string& file) {
    MegatronArguments out;
    int number = 0;
    for (const auto& raw : split(text, '\n')) {
        ++number;
        // A comment begins at the start or after a space, outside quotes.
        std::string line;
        char quote = 0;
        for (std::size_t i = 0; i < raw.size(); ++i) {
            if (quote == 0 && raw[i] == '#' &&
                (i == 0 || std::isspace(static_cast<unsigned char>(raw[i - 1]))))
                break;
            if (raw[i] == '"' || raw[i] == '\'')
                quote = quote == 0 ? raw[i] : quote == raw[i] ? 0 : quote;
            line += raw[i];
        }
        std::string_view view = trim(line);
        const auto colon = view.find(": ");
        if (colon == std::string_view::npos) continue;
        std::string key(trim(view.substr(0, colon)));
        if (key.starts_with("--")) key.erase(0, 2);
        std::replace(key.begin(), key.end(), '_', '-');
        std::string value(trim(view.substr(colon + 2)));
        if (value.size() >= 2 && (value.front() == '"' || value.front() == '\'') &&
            value.back() == value.front())
            value = value.substr(1, value.size() - 2);
        // ${NAME:-default} as in a script; other variables stay.
        if (value.starts_with("${"))
            if (const auto otherwise = value.find(":-");
                otherwise != std::string::npos && value.back() == '}')
                value = value.substr(otherwise + 2, value.size() - otherwise - 3);
        out[key] = {value, number};
    }
    (void)file;
    return out;
}

std::vector<int> moe_layer_pattern(std::string_view expression, int num_layers,
                                   const std::string& file, int line) {
    const auto fail = [&](const std::string& expected) -> void {
        throw InputError(file, "line " + std::to_string(line) + ": --moe-layer-freq",
                         std::string(expression), expected);
    };
    std::vector<int> out;
    if (const auto every = whole_number(expression)) {
        if (*every < 1) fail("at least 1");
        for (int i = 0; i < num_layers; ++i) out.push_back(i % *every == 0 ? 1 : 0);
        return out;
    }
    // A sum of lists of 0 and 1, each times a count; brackets may hold sums again: ([0]*3+[1]*58),
    // ([0,1]*24).
    std::size_t i = 0;
    int deep = 0;
    const auto space = [&] {
        while (i < expression.size() && std::isspace(static_cast<unsigned char>(expression[i])))
            ++i;
    };
    const auto digits = [&]() -> int {
        space();
        std::size_t end = i;
        while (end < expression.size() && std::isdigit(static_cast<unsigned char>(expression[end])))
            ++end;
        const auto value = whole_number(expression.substr(i, end - i));
        if (!value || *value > kMostLayers) fail("a Python list, as ([0]*3+[1]*58)");
        i = end;
        return *value;
    };
    std::function<std::vector<int>()> sum;
    const auto term = [&]() {
        std::vector<int> list;
        space();
        if (i < expression.size() && expression[i] == '(') {
            if (++deep > 20) fail("fewer brackets");
            ++i;
            list = sum();
            space();
            if (i >= expression.size() || expression[i] != ')') fail("a closing )");
            ++i;
            --deep;
        } else if (i < expression.size() && expression[i] == '[') {
            ++i;
            for (;;) {
                const int value = digits();
                if (value > 1) fail("entries 0 (dense) or 1 (MoE)");
                list.push_back(value);
                space();
                if (i < expression.size() && expression[i] == ',') {
                    ++i;
                    continue;
                }
                break;
            }
            if (i >= expression.size() || expression[i] != ']') fail("a closing ]");
            ++i;
        } else {
            fail("an integer or a Python list, as ([0]*3+[1]*58)");
        }
        for (space(); i < expression.size() && expression[i] == '*'; space()) {
            ++i;
            const int times = digits();
            if (static_cast<long long>(list.size()) * times > kMostLayers)
                fail("at most " + std::to_string(kMostLayers) + " layers");
            std::vector<int> repeated;
            for (int n = 0; n < times; ++n)
                repeated.insert(repeated.end(), list.begin(), list.end());
            list = std::move(repeated);
        }
        return list;
    };
    sum = [&]() {
        std::vector<int> all = term();
        for (space(); i < expression.size() && expression[i] == '+'; space()) {
            ++i;
            const auto more = term();
            all.insert(all.end(), more.begin(), more.end());
            if (all.size() > kMostLayers)
                fail("at most " + std::to_string(kMostLayers) + " layers");
        }
        return all;
    };
    out = sum();
    space();
    if (i != expression.size()) fail("nothing after the list");
    if (static_cast<int>(out.size()) != num_layers)
        fail("one entry a layer (" + std::to_string(num_layers) + ", here " +
             std::to_string(out.size()) + ")");
    return out;
}

ModelSpec model_from_megatron(const MegatronArguments& arguments, const std::string& file,
                              const std::string& name) {
    const Reader read(arguments, file);
    std::vector<std::string> missing;
    for (const char* key : {"num-layers", "hidden-size", "num-attention-heads"})
        if (!read.find(key)) missing.push_back(std::string("--") + key);
    if (!read.find("vocab-size") && !read.find("padded-vocab-size"))
        missing.push_back(
            "--vocab-size (Megatron takes it from the tokenizer; add it to a copy of the file)");
    if (!missing.empty())
        throw InputError(file, "", "",
                         "a complete set of Megatron arguments; missing: " + join(missing, ", "));

    ModelSpec out;
    out.name = name;
    out.hidden_size = read.number("hidden-size");
    const int num_layers = read.number("num-layers", 1, kMostLayers);
    out.vocab_size =
        read.number(read.find("padded-vocab-size") ? "padded-vocab-size" : "vocab-size");
    out.num_mtp_layers = read.number_or("mtp-num-layers", 0, 0, 100);
    out.max_sequence_length =
        read.number_or("max-position-embeddings",
                       read.find("seq-length") && whole_number(read.find("seq-length")->value)
                           ? read.number("seq-length")
                           : 0);
    // Megatron's own default is a table of positions.
    out.learned_positions =
        read.text_or("position-embedding-type", "learned_absolute") == "learned_absolute" &&
        !read.on("multi-latent-attention") && !read.on("use-rotary-position-embeddings");
    if (out.learned_positions && out.max_sequence_length == 0)
        throw InputError(file, "", "",
                         "--max-position-embeddings (or --position-embedding-type rope)");
    out.tied_embeddings = !read.on("untie-embeddings-and-output-weights");
    out.norm =
        read.text_or("normalization", "LayerNorm") == "RMSNorm" || read.on("multi-latent-attention")
            ? Norm::rms
            : Norm::layer;
    out.rope_theta = read.real_or("rotary-base", 10000);

    const int heads = read.number("num-attention-heads");
    Attention attention;
    const bool no_bias = read.on("disable-bias-linear");
    if (read.on("multi-latent-attention")) {
        // Defaults of megatron/core/transformer/transformer_config.py, MLATransformerConfig.
        attention = LatentAttention{.num_attention_heads = heads,
                                    .q_lora_rank = read.number_or("q-lora-rank", 0),
                                    .kv_lora_rank = read.number_or("kv-lora-rank", 512, 1),
                                    .nope_size = read.number_or("qk-head-dim", 128),
                                    .rope_size = read.number_or("qk-pos-emb-head-dim", 64),
                                    .value_size = read.number_or("v-head-dim", 128, 1)};
    } else {
        if (!read.find("kv-channels") && out.hidden_size % heads != 0)
            read.fail("num-attention-heads",
                      "a divisor of --hidden-size, as --kv-channels is not given");
        attention = GroupedQueryAttention{
            .num_attention_heads = heads,
            .num_kv_heads =
                read.on("group-query-attention") ? read.number_or("num-query-groups", 1, 1) : heads,
            .head_size = read.number_or("kv-channels", out.hidden_size / heads, 1),
            .bias = !no_bias || read.on("add-qkv-bias"),
            .output_bias = !no_bias,
            .qk_norm = read.on("qk-layernorm")};
    }
    const Activation activation = read.on("swiglu") || read.on("quick-geglu") ? Activation::swiglu
                                  : read.on("squared-relu")                   ? Activation::relu
                                                                              : Activation::gelu;
    const int dense_width = read.number_or(
        "ffn-hidden-size",
        activation == Activation::swiglu ? 8 * out.hidden_size / 3 / 64 * 64 : 4 * out.hidden_size,
        1);
    const DenseFeedForward dense{.dense_hidden_size = dense_width,
                                 .activation = activation,
                                 .bias = !no_bias && activation != Activation::swiglu};
    const int num_experts = read.number_or("num-experts", 0, 0, 65'534);
    std::optional<MoeFeedForward> moe;
    std::vector<int> is_moe(static_cast<std::size_t>(num_layers), 0);
    if (num_experts > 1) {
        MoeFeedForward one;
        one.num_experts = num_experts;
        one.top_k = read.number_or("moe-router-topk", 2, 1);
        if (one.top_k > num_experts)
            read.fail("moe-router-topk", "1 … --num-experts (" + std::to_string(num_experts) + ")");
        one.expert_hidden_size = read.number_or("moe-ffn-hidden-size", dense_width, 1);
        one.activation = activation;
        one.bias = dense.bias;
        one.shared_expert_hidden_size = read.number_or("moe-shared-expert-intermediate-size",
                                                       0);  // the sum over shared experts
        one.num_shared_experts = one.shared_expert_hidden_size > 0 ? 1 : 0;
        one.shared_gate =
            read.on("moe-use-shared-expert-gate") || read.on("moe-shared-expert-gate");
        one.selection_bias = read.on("moe-router-enable-expert-bias");
        if (read.text_or("moe-router-score-function", "softmax") == "sigmoid")
            one.routing = "sigmoid_top_k";
        one.renormalise_gates =
            !read.on("moe-router-pre-softmax") || one.routing == "sigmoid_top_k";
        one.num_groups = read.number_or("moe-router-num-groups", 0);
        one.top_k_groups = read.number_or("moe-router-group-topk", 0);
        if (one.num_groups <= 1) one.num_groups = one.top_k_groups = 0;
        one.routed_scale = read.real_or("moe-router-topk-scaling-factor", 1);
        one.z_loss_coefficient = read.real_or("moe-z-loss-coeff", 0);
        const std::string balancing = read.text_or("moe-router-load-balancing-type", "aux_loss");
        if (balancing != "none") one.balance_coefficient = read.real_or("moe-aux-loss-coeff", 0);
        if (balancing == "seq_aux_loss") one.balance = BalanceScope::sequence;
        if (balancing == "global_aux_loss") one.balance = BalanceScope::global;
        if (read.find("moe-expert-capacity-factor"))
            one.capacity_factor = read.real_or("moe-expert-capacity-factor", 1);
        moe = one;
        const auto* frequency = read.find("moe-layer-freq");
        is_moe = moe_layer_pattern(frequency ? frequency->value : "1", num_layers, file,
                                   frequency ? frequency->line : 0);
    }
    std::optional<int> window;
    if (const auto* found = read.find("window-size"); found && found->value.starts_with("("))
        window = whole_number(found->value.substr(1, found->value.find_first_of(",)") - 1));
    const bool alternate = window && read.find("window-attn-skip-freq");
    const int skip = alternate ? read.number_or("window-attn-skip-freq", 1, 1) : 0;
    for (int i = 0; i < num_layers; ++i) {
        LayerSpec layer{.attention = attention, .feed_forward = dense};
        if (is_moe[static_cast<std::size_t>(i)]) layer.feed_forward = *moe;
        if (window && !(alternate && (i + 1) % skip == 0))
            layer.window = *window + 1;  // Megatron counts the keys to the left of the token
        out.layers.push_back(std::move(layer));
    }
    require_sound(out, file);
    return out;
}

LayoutWords layout_from_megatron(const MegatronArguments& arguments, const std::string& file) {
    const Reader read(arguments, file);
    LayoutWords out;
    out["framework"] = "megatron-core";
    const std::map<std::string, std::string> sizes = {
        {"tensor-model-parallel-size", "tp"},   {"pipeline-model-parallel-size", "pp"},
        {"context-parallel-size", "cp"},        {"expert-model-parallel-size", "ep"},
        {"expert-tensor-parallel-size", "etp"}, {"micro-batch-size", "micro_batch"},
        {"global-batch-size", "global_batch"},  {"seq-length", "seq"}};
    for (const auto& [flag, key] : sizes)
        if (read.find(flag)) out[key] = std::to_string(read.number(flag));
    for (const auto& [flag, key] :
         {std::pair<const char*, const char*>{"sequence-parallel", "sequence_parallel"},
          {"account-for-embedding-in-pipeline-split", "account_for_embedding_in_pipeline_split"},
          {"account-for-loss-in-pipeline-split", "account_for_loss_in_pipeline_split"},
          {"overlap-grad-reduce", "overlap_gradients"},
          {"overlap-param-gather", "overlap_parameters"},
          {"tp-comm-overlap", "overlap_tensor"},
          {"overlap-moe-expert-parallel-comm", "overlap_experts"}})
        if (read.find(flag)) out[key] = read.on(flag) ? "true" : "false";
    if (const auto* layout = read.find("pipeline-model-parallel-layout"))
        out["pipeline_layout"] = layout->value;
    if (read.find("num-virtual-stages-per-pipeline-rank"))
        out["vpp"] = std::to_string(read.number("num-virtual-stages-per-pipeline-rank"));
    if (read.find("num-layers-per-virtual-pipeline-stage") && read.find("num-layers")) {
        const int pp = read.number_or("pipeline-model-parallel-size", 1, 1),
                  each = read.number("num-layers-per-virtual-pipeline-stage");
        const int layers = read.number("num-layers", 1, kMostLayers) +
                           read.on("account-for-embedding-in-pipeline-split") +
                           read.on("account-for-loss-in-pipeline-split");
        out["vpp"] = std::to_string(std::max(1, layers / (pp * each)));
    }
    if (read.on("use-megatron-fsdp") || read.on("use-torch-fsdp2"))
        out["zero"] = "3";
    else
        out["zero"] = read.on("use-distributed-optimizer") ? "1" : "0";
    out["precision"] = read.find("fp8-format") || read.find("fp8")
                           ? (read.text_or("fp8-recipe", "") == "mxfp8" ? "mxfp8" : "fp8")
                       : read.on("bf16") ? "bf16"
                       : read.on("fp16") ? "fp16"
                                         : "fp32";
    if (const auto* recipe = read.find("fp8-recipe")) out["fp8_recipe"] = recipe->value;
    if (const auto* granularity = read.find("recompute-granularity"))
        out["recompute"] = granularity->value;
    if (const auto* modules = read.find("recompute-modules"))
        out["recompute_modules"] = modules->value;
    const std::string dispatcher = read.text_or("moe-token-dispatcher-type", "");
    if (dispatcher == "flex")
        out["dispatcher"] = "deepep";
    else if (!dispatcher.empty())
        out["dispatcher"] = dispatcher;
    if (const auto* balancing = read.find("moe-router-load-balancing-type"))
        out["load_balancing"] = balancing->value;
    return out;
}

bool looks_like_pipeline_layout(std::string_view text) {
    text = trim(text);
    return !text.empty() && text.find_first_of("tE") != std::string_view::npos &&
           text.find_first_not_of("EtmLl|()*x0123456789, ") == std::string_view::npos &&
           (text.find('|') != std::string_view::npos ||
            (text.find('E') != std::string_view::npos && text.find('L') != std::string_view::npos));
}

PipelineLayout parse_pipeline_layout(std::string_view text, const std::string& flag) {
    const auto fail = [&](const std::string& expected) {
        throw InputError(flag, "", std::string(text), expected);
    };
    constexpr std::size_t kMostSymbols = 100'000;
    std::size_t i = 0;
    int deep = 0;
    std::function<std::string()> sequence;
    const auto times = [&]() -> int {  // after a symbol or a group: *n or xn
        if (i >= text.size() || (text[i] != '*' && text[i] != 'x')) return 1;
        ++i;
        std::size_t end = i;
        while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
        const auto value = whole_number(text.substr(i, end - i));
        if (!value || *value > kMostLayers) fail("a count after *");
        i = end;
        return value.value_or(1);
    };
    sequence = [&]() {
        std::string out;
        while (i < text.size() && text[i] != ')') {
            std::string unit;
            const char c = text[i];
            if (c == '(') {
                if (++deep > 20) fail("fewer brackets");
                ++i;
                unit = sequence();
                if (i >= text.size() || text[i] != ')') fail("a closing )");
                ++i;
                --deep;
            } else if (c == 'E' || c == 't' || c == 'm' || c == 'L' || c == '|') {
                unit = std::string(1, c);
                ++i;
            } else if (c == ' ' || c == ',') {
                ++i;
                continue;
            } else {
                fail(
                    "the letters E (embedding), t (layer), m (MTP), L (loss), | between stages, "
                    "(…)*n");
            }
            const int n = times();
            if (out.size() + unit.size() * static_cast<std::size_t>(n) > kMostSymbols)
                fail("a shorter layout");
            for (int k = 0; k < n; ++k) out += unit;
        }
        return out;
    };
    const std::string flat = sequence();
    if (i != text.size()) fail("an opening ( for each )");
    PipelineLayout out;
    out.layers.push_back(0);
    int embeddings = 0, losses = 0;
    for (const char c : flat) {
        if (c == '|') out.layers.push_back(0);
        if (c == 't') ++out.layers.back(), ++out.num_layers;
        if (c == 'm') ++out.num_mtp_layers;
        if (c == 'E') ++embeddings;
        if (c == 'L') ++losses;
    }
    if (embeddings > 1 || losses > 1 || (embeddings == 1 && flat[0] != 'E') ||
        (losses == 1 && flat.back() != 'L'))
        fail("E once at the front and L once at the end");
    if (out.num_layers == 0) fail("at least one layer t");
    return out;
}

}  // namespace moeplan
