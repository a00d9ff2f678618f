#pragma once
/// What the trainer needs of nlohmann's JSON, where there is none: values are built, compared and written, never read.

#include <charconv>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "json_fwd.hpp"

namespace nlohmann {

class ordered_json {
  public:
    using Array = std::vector<ordered_json>;
    using Object = std::vector<std::pair<std::string, ordered_json>>;

    ordered_json() = default;
    ordered_json(bool v) : value_(v) {}
    ordered_json(const char* v) : value_(std::string(v)) {}
    ordered_json(std::string v) : value_(std::move(v)) {}
    template <class T>
        requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>)
    ordered_json(T v) {
        if constexpr (std::is_floating_point_v<T>)
            value_ = double(v);
        else
            value_ = std::int64_t(v);
    }
    template <class T>
    ordered_json(const std::vector<T>& v) : value_(Array(v.begin(), v.end())) {}
    /// Pairs that begin with a text are an object, everything else an array.
    ordered_json(std::initializer_list<ordered_json> parts) {
        bool object = true;
        for (const ordered_json& part : parts) {
            const Array* pair = std::get_if<Array>(&part.value_);
            object = object && pair && pair->size() == 2 && std::holds_alternative<std::string>((*pair)[0].value_);
        }
        if (!object) {
            value_ = Array(parts);
            return;
        }
        Object members;
        for (const ordered_json& part : parts) {
            const Array& pair = std::get<Array>(part.value_);
            members.emplace_back(std::get<std::string>(pair[0].value_), pair[1]);
        }
        value_ = std::move(members);
    }
    ordered_json(const ordered_json&) = default;
    ordered_json(ordered_json&&) = default;
    ordered_json& operator=(const ordered_json&) = default;
    ordered_json& operator=(ordered_json&&) = default;
    bool operator==(const ordered_json& o) const { return value_ == o.value_; }

    ordered_json& operator[](const std::string& key) {
        if (!std::holds_alternative<Object>(value_)) value_ = Object{};
        Object& members = std::get<Object>(value_);
        for (auto& [name, value] : members)
            if (name == key) return value;
        return members.emplace_back(key, ordered_json()).second;
    }
    void push_back(ordered_json v) {
        if (!std::holds_alternative<Array>(value_)) value_ = Array{};
        std::get<Array>(value_).push_back(std::move(v));
    }
    std::string dump() const {
        std::string out;
        write(out);
        return out;
    }

  private:
    static void write(std::string& out, const std::string& text) {
        out += '"';
        for (const char c : text) {
            if (c == '"' || c == '\\') out += '\\';
            out += static_cast<unsigned char>(c) < 32 ? ' ' : c;
        }
        out += '"';
    }
    template <class T>
    static void number(std::string& out, T v) {
        char text[40];
        out.append(text, std::to_chars(text, text + sizeof text, v).ptr);
    }
    void write(std::string& out) const {
        if (std::holds_alternative<std::monostate>(value_)) out += "null";
        if (const auto* v = std::get_if<bool>(&value_)) out += *v ? "true" : "false";
        if (const auto* v = std::get_if<std::int64_t>(&value_)) number(out, *v);
        if (const auto* v = std::get_if<double>(&value_)) std::isfinite(*v) ? number(out, *v) : void(out += "null");
        if (const auto* v = std::get_if<std::string>(&value_)) write(out, *v);
        if (const auto* v = std::get_if<Array>(&value_)) {
            out += '[';
            for (const ordered_json& part : *v) out += out.back() == '[' ? "" : ",", part.write(out);
            out += ']';
        }
        if (const auto* v = std::get_if<Object>(&value_)) {
            out += '{';
            for (const auto& [name, part] : *v) {
                if (out.back() != '{') out += ',';
                write(out, name);
                out += ':';
                part.write(out);
            }
            out += '}';
        }
    }
    std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
};

}  // namespace nlohmann
