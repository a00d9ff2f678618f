#include "core/json.hpp"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "core/errors.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"

namespace moeplan {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1}
                                   << 30;  // a JSON file beyond 1 GiB is not one of ours
constexpr int kMostNesting = 200;

/// What stands at a place, short enough for a message.
std::string shown(const Json& value) {
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > 60) text = text.substr(0, 57) + "…";
    return text;
}

/// RFC 6901: "~" and "/" inside a key are escaped.
std::string escaped(std::string_view key) {
    std::string out;
    for (const char c : key) {
        if (c == '~')
            out += "~0";
        else if (c == '/')
            out += "~1";
        else
            out += c;
    }
    return out;
}

Json parse(std::string_view text, const std::string& name) {
    int depth = 0;
    bool quoted = false;
    for (std::size_t i = 0; i < text.size();
         ++i) {  // a parser's recursion must not be at a hostile file's mercy
        const char c = text[i];
        if (quoted) {
            if (c == '\\')
                ++i;
            else if (c == '"')
                quoted = false;
        } else if (c == '"')
            quoted = true;
        else if (c == '[' || c == '{') {
            if (++depth > kMostNesting)
                throw InputError(name, "", "nesting deeper than 200", "a plain JSON file");
        } else if (c == ']' || c == '}')
            --depth;
    }
    // A key that stands twice in an object would silently win over its first value.
    std::vector<std::set<std::string>> keys;
    std::string twice;
    const auto watch = [&](int, Json::parse_event_t event, Json& item) {
        if (event == Json::parse_event_t::object_start) {
            keys.emplace_back();
        } else if (event == Json::parse_event_t::object_end) {
            keys.pop_back();
        } else if (event == Json::parse_event_t::key && twice.empty()) {
            const auto& key = item.get_ref<const std::string&>();
            if (!keys.back().insert(key).second) twice = key;
        }
        return true;
    };
    try {
        Json value = Json::parse(text, watch);
        if (!twice.empty())
            throw InputError(name, "", "\"" + twice + "\" twice in one object", "each key once");
        return value;
    } catch (const nlohmann::json::exception& error) {
        std::string what = error.what();
        if (const auto at = what.find("parse error"); at != std::string::npos)
            what = what.substr(at);
        throw InputError(name, "", "", "valid JSON (" + what + ")");
    }
}

}  // namespace

JsonReader::JsonReader(std::shared_ptr<const std::string> file, std::shared_ptr<const Json> root,
                       std::string pointer, const Json* value)
    : file_(std::move(file)), root_(std::move(root)), pointer_(std::move(pointer)), value_(value) {}

JsonReader JsonReader::from_file(const std::filesystem::path& file) {
    std::error_code error;
    if (std::filesystem::is_directory(file, error))
        throw InputError(file.string(), "", "a folder", "a JSON file");
    std::ifstream in(file, std::ios::binary);
    if (!in) throw InputError(file.string(), "", "", "a readable file");
    std::string text;
    char buffer[1 << 16];
    while (in.read(buffer, sizeof buffer) || in.gcount() > 0) {
        text.append(buffer, static_cast<std::size_t>(in.gcount()));
        if (text.size() > kMostBytes)
            throw InputError(file.string(), "", "over 1 GiB", "a smaller JSON file");
    }
    return from_text(text, file.string());
}

JsonReader JsonReader::from_text(std::string_view text, std::string name) {
    Json value = parse(text, name);
    return from_value(std::move(value), std::move(name));
}

JsonReader JsonReader::from_value(Json value, std::string name) {
    auto root = std::make_shared<const Json>(std::move(value));
    const Json* at = root.get();
    return JsonReader(std::make_shared<const std::string>(std::move(name)), std::move(root), "",
                      at);
}

bool JsonReader::is_object() const { return value_->is_object(); }
bool JsonReader::is_array() const { return value_->is_array(); }
bool JsonReader::is_string() const { return value_->is_string(); }
bool JsonReader::is_number() const { return value_->is_number(); }
bool JsonReader::is_bool() const { return value_->is_boolean(); }
bool JsonReader::is_null() const { return value_->is_null(); }

void JsonReader::fail(const std::string& expected) const {
    throw InputError(*file_, pointer_.empty() ? "/" : pointer_, shown(*value_), expected);
}

bool JsonReader::has(std::string_view key) const {
    if (!value_->is_object()) return false;
    const auto found = value_->find(std::string(key));
    return found != value_->end() && !found->is_null();
}

std::optional<JsonReader> JsonReader::find(std::string_view key) const {
    if (!has(key)) return std::nullopt;
    return at(key);
}

JsonReader JsonReader::at(std::string_view key) const {
    if (!value_->is_object()) fail("an object with \"" + std::string(key) + "\"");
    const auto found = value_->find(std::string(key));
    if (found == value_->end())
        throw InputError(*file_, pointer_ + "/" + escaped(key), "missing", "a value");
    return JsonReader(file_, root_, pointer_ + "/" + escaped(key), &*found);
}

JsonReader JsonReader::at(std::size_t index) const {
    if (!value_->is_array()) fail("an array");
    if (index >= value_->size()) fail("at least " + std::to_string(index + 1) + " entries");
    return JsonReader(file_, root_, pointer_ + "/" + std::to_string(index), &(*value_)[index]);
}

std::size_t JsonReader::size() const { return value_->size(); }

std::vector<JsonReader> JsonReader::items() const {
    if (!value_->is_array()) fail("an array");
    std::vector<JsonReader> out;
    for (std::size_t i = 0; i < value_->size(); ++i) out.push_back(at(i));
    return out;
}

std::vector<std::pair<std::string, JsonReader>> JsonReader::members() const {
    if (!value_->is_object()) fail("an object");
    std::vector<std::pair<std::string, JsonReader>> out;
    for (const auto& [key, value] : value_->items())
        out.emplace_back(key, JsonReader(file_, root_, pointer_ + "/" + escaped(key), &value));
    return out;
}

long long JsonReader::integer(long long least, long long most) const {
    const auto range = [&] {
        const bool below = least != std::numeric_limits<long long>::min(),
                   above = most < std::numeric_limits<int>::max();
        if (below && above)
            return "an integer " + std::to_string(least) + " … " + std::to_string(most);
        if (below) return "an integer of at least " + std::to_string(least);
        return std::string("an integer");
    };
    if (value_->is_number_float()) {
        const double x = value_->get<double>();
        if (x != std::floor(x) || std::abs(x) > 9e15 || x < static_cast<double>(least) ||
            x > static_cast<double>(most))
            fail(range());
        return static_cast<long long>(x);
    }
    if (!value_->is_number_integer()) fail(range());
    if (value_->is_number_unsigned() &&
        value_->get<unsigned long long>() >
            static_cast<unsigned long long>(std::numeric_limits<long long>::max()))
        fail(range());
    const auto x = value_->get<long long>();
    if (x < least || x > most) fail(range());
    return x;
}

int JsonReader::count(int least, int most) const { return static_cast<int>(integer(least, most)); }

double JsonReader::number(double least, double most) const {
    if (!value_->is_number()) fail("a number");
    const double x = value_->get<double>();
    if (!std::isfinite(x)) fail("a finite number");
    if (x < least || x > most) fail("a number " + exact_text(least) + " … " + exact_text(most));
    return x;
}

bool JsonReader::boolean() const {
    if (!value_->is_boolean()) fail("true or false");
    return value_->get<bool>();
}

std::string JsonReader::text() const {
    if (!value_->is_string()) fail("a text");
    return value_->get<std::string>();
}

#define MOEPLAN_READ_QUANTITY(type, name, parse, example)                     \
    type JsonReader::name() const {                                           \
        if (!value_->is_string()) fail("a value with its unit, as " example); \
        try {                                                                 \
            return parse(value_->get<std::string>());                         \
        } catch (const std::invalid_argument& error) {                        \
            fail(error.what());                                               \
        }                                                                     \
    }
MOEPLAN_READ_QUANTITY(Seconds, seconds, parse_seconds, "\"2 us\"")
MOEPLAN_READ_QUANTITY(Bytes, bytes, parse_bytes, "\"80 GB\"")
MOEPLAN_READ_QUANTITY(BytesPerSecond, bytes_per_second, parse_bytes_per_second, "\"400 Gb/s\"")
MOEPLAN_READ_QUANTITY(FlopsPerSecond, flops_per_second, parse_flops_per_second, "\"989 TFlop/s\"")
#undef MOEPLAN_READ_QUANTITY

int JsonReader::count_or(std::string_view key, int otherwise, int least, int most) const {
    const auto found = find(key);
    return found ? found->count(least, most) : otherwise;
}
double JsonReader::number_or(std::string_view key, double otherwise) const {
    const auto found = find(key);
    return found ? found->number() : otherwise;
}
bool JsonReader::boolean_or(std::string_view key, bool otherwise) const {
    const auto found = find(key);
    return found ? found->boolean() : otherwise;
}
std::string JsonReader::text_or(std::string_view key, std::string otherwise) const {
    const auto found = find(key);
    return found ? found->text() : std::move(otherwise);
}

void JsonReader::refuse_unknown(std::initializer_list<std::string_view> known) const {
    if (!value_->is_object()) fail("an object");
    std::vector<std::string> names(known.begin(), known.end());
    // A document may stand inside another: a plan holds its cluster.
    const bool whole_file = pointer_.empty() || value_->contains("$schema");
    if (const auto version = find("version"); whole_file && version && version->is_number() &&
                                              version->value() != 1)
        version->fail("1, the only version of this format so far");
    for (const auto& [key, value] : value_->items()) {
        if (std::find(names.begin(), names.end(), key) != names.end()) continue;
        if (whole_file &&
            (key == "$schema" || key == "version" || key == "made" || key.starts_with("_")))
            continue;
        const std::string near = nearest_word(key, names);
        throw InputError(*file_, pointer_ + "/" + escaped(key), "an unknown key",
                         near.empty() ? "one of " + join(names, ", ") : "\"" + near + "\" perhaps");
    }
}

Json json_header(std::string_view kind) {
    Json out;
    out["$schema"] = "moeplan/" + std::string(kind) + ".schema.json";
    out["version"] = 1;
    return out;
}

namespace {

bool is_flat(const Json& value) {
    for (const auto& item : value)
        if (item.is_structured()) return false;
    return true;
}

void write(const Json& value, int indent, std::string& out) {
    const std::string pad(static_cast<std::size_t>(indent + 2), ' ');
    if (value.is_object() && !value.empty()) {
        out += "{\n";
        std::size_t i = 0;
        for (const auto& [key, item] : value.items()) {
            out += pad + Json(key).dump(-1, ' ', false, Json::error_handler_t::replace) + ": ";
            write(item, indent + 2, out);
            out += ++i < value.size() ? ",\n" : "\n";
        }
        out += std::string(static_cast<std::size_t>(indent), ' ') + "}";
    } else if (value.is_array() && !value.empty() && !is_flat(value)) {
        out += "[\n";
        for (std::size_t i = 0; i < value.size(); ++i) {
            out += pad;
            write(value[i], indent + 2, out);
            out += i + 1 < value.size() ? ",\n" : "\n";
        }
        out += std::string(static_cast<std::size_t>(indent), ' ') + "]";
    } else if (value.is_array() && !value.empty()) {
        out += "[";
        for (std::size_t i = 0; i < value.size(); ++i) {
            if (i > 0) out += ", ";
            write(value[i], indent, out);
        }
        out += "]";
    } else {
        out += value.dump(-1, ' ', false, Json::error_handler_t::replace);
    }
}

}  // namespace

std::string to_file_text(const Json& value) {
    std::string out;
    write(value, 0, out);
    return out + "\n";
}

}  // namespace moeplan
