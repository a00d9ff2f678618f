#include "core/errors.hpp"

#include <utility>

namespace moeplan {
namespace {

std::string sentence(const std::string& file, const std::string& field, const std::string& value,
                     const std::string& expected) {
    std::string out = file;
    if (!field.empty()) out += (out.empty() ? "" : ": ") + field;
    if (!value.empty()) out += (field.empty() && !file.empty() ? ": " : " is ") + value;
    if (!expected.empty()) out += (value.empty() ? ": expected " : ", expected ") + expected;
    return out;
}

}  // namespace

InputError::InputError(std::string file_, std::string field_, std::string value_,
                       std::string expected_)
    : std::runtime_error(sentence(file_, field_, value_, expected_)),
      file(std::move(file_)),
      field(std::move(field_)),
      value(std::move(value_)),
      expected(std::move(expected_)) {}

}  // namespace moeplan
