#pragma once
/// JSON with a place in every message: a `JsonReader` knows the file and the pointer of what it
/// reads.

#include <filesystem>
#include <initializer_list>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/enum_names.hpp"
#include "core/units.hpp"

namespace moeplan {

using Json = nlohmann::ordered_json;  ///< keys stay in the order in which they were written

/// A value inside a JSON document, and where it stands. Cheap to copy; keeps the document alive.
class JsonReader {
  public:
    static JsonReader from_file(const std::filesystem::path& file);        ///< @throws InputError
    static JsonReader from_text(std::string_view text, std::string name);  ///< @throws InputError
    static JsonReader from_value(Json value, std::string name);

    const std::string& file() const { return *file_; }
    const std::string& pointer() const { return pointer_; }
    const Json& value() const { return *value_; }

    bool is_object() const;
    bool is_array() const;
    bool is_string() const;
    bool is_number() const;
    bool is_bool() const;
    bool is_null() const;

    bool has(std::string_view key) const;                        ///< present and not null
    JsonReader at(std::string_view key) const;                   ///< @throws InputError if absent
    std::optional<JsonReader> find(std::string_view key) const;  ///< empty if absent or null
    JsonReader at(std::size_t index) const;
    std::size_t size() const;               ///< of an array or object
    std::vector<JsonReader> items() const;  ///< of an array; @throws InputError if it is none
    std::vector<std::pair<std::string, JsonReader>> members() const;  ///< of an object

    long long integer(long long least = std::numeric_limits<long long>::min(),
                      long long most = std::numeric_limits<long long>::max()) const;
    int count(int least = 0,
              int most = std::numeric_limits<int>::max()) const;  ///< an integer that fits an int
    double number(double least = -std::numeric_limits<double>::infinity(),
                  double most = std::numeric_limits<double>::infinity()) const;  ///< finite
    bool boolean() const;
    std::string text() const;
    Seconds seconds() const;  ///< "2 us"; a bare number is refused
    Bytes bytes() const;
    BytesPerSecond bytes_per_second() const;
    FlopsPerSecond flops_per_second() const;
    template <class E>
    E choice() const {  ///< one of the names of an enumeration
        if (const auto value = from_name<E>(text())) return *value;
        fail(choices<E>());
    }

    int count_or(std::string_view key, int otherwise, int least = 0,
                 int most = std::numeric_limits<int>::max()) const;
    double number_or(std::string_view key, double otherwise) const;
    bool boolean_or(std::string_view key, bool otherwise) const;
    std::string text_or(std::string_view key, std::string otherwise) const;
    template <class E>
    E choice_or(std::string_view key, E otherwise) const {
        const auto found = find(key);
        return found ? found->choice<E>() : otherwise;
    }

    /// Refuse every key that is not in `known`, naming the nearest known one. "$schema", "version",
    /// "made" and keys that begin with "_" (comments) are always allowed at the root
    /// and in a document inside another (one with its own "$schema").
    void refuse_unknown(std::initializer_list<std::string_view> known) const;

    [[noreturn]] void fail(
        const std::string& expected) const;  ///< throws the InputError of this place

  private:
    JsonReader(std::shared_ptr<const std::string> file, std::shared_ptr<const Json> root,
               std::string pointer, const Json* value);
    std::shared_ptr<const std::string> file_;
    std::shared_ptr<const Json> root_;
    std::string pointer_;
    const Json* value_;
};

/// What every file of ours opens with.
/// @param kind  "cluster" → "$schema": "moeplan/cluster.schema.json", "version": 1
Json json_header(std::string_view kind);

/// Two-space indentation, arrays of numbers on one line, floats round-trip exact, a final newline.
/// Deterministic.
std::string to_file_text(const Json& value);

}  // namespace moeplan
