#pragma once
/// Number formats of tensors, and precisions of training recipes.

#include <cstdint>
#include <string_view>

#include "core/enum_names.hpp"
#include "core/units.hpp"

namespace moeplan {

enum class NumberFormat : std::uint8_t {
    f64,
    f32,
    bf16,
    f16,
    fp8_e4m3,
    fp8_e5m2,
    i64,
    i32,
    u16,
    u8
};  ///< of a tensor
enum class Precision : std::uint8_t {
    fp32,
    fp16,
    bf16,
    fp8,
    mxfp8,
    nvfp4
};  ///< of a training recipe

Bytes size_of(NumberFormat);  ///< of one element

template <>
const EnumNames<NumberFormat>& enum_names<NumberFormat>();
template <>
const EnumNames<Precision>& enum_names<Precision>();

}  // namespace moeplan
