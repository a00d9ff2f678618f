#include "core/number_format.hpp"

namespace moeplan {

Bytes size_of(NumberFormat format) {
    switch (format) {
        case NumberFormat::f64:
        case NumberFormat::i64:
            return {8};
        case NumberFormat::f32:
        case NumberFormat::i32:
            return {4};
        case NumberFormat::bf16:
        case NumberFormat::f16:
        case NumberFormat::u16:
            return {2};
        case NumberFormat::fp8_e4m3:
        case NumberFormat::fp8_e5m2:
        case NumberFormat::u8:
            return {1};
    }
    return {0};
}

template <>
const EnumNames<NumberFormat>& enum_names<NumberFormat>() {
    static const EnumNames<NumberFormat> names = {
        {NumberFormat::f64, "f64"},           {NumberFormat::f32, "f32"},
        {NumberFormat::bf16, "bf16"},         {NumberFormat::f16, "f16"},
        {NumberFormat::fp8_e4m3, "fp8_e4m3"}, {NumberFormat::fp8_e5m2, "fp8_e5m2"},
        {NumberFormat::i64, "i64"},           {NumberFormat::i32, "i32"},
        {NumberFormat::u16, "u16"},           {NumberFormat::u8, "u8"}};
    return names;
}

template <>
const EnumNames<Precision>& enum_names<Precision>() {
    static const EnumNames<Precision> names = {
        {Precision::fp32, "fp32"}, {Precision::fp16, "fp16"},   {Precision::bf16, "bf16"},
        {Precision::fp8, "fp8"},   {Precision::mxfp8, "mxfp8"}, {Precision::nvfp4, "nvfp4"}};
    return names;
}

}  // namespace moeplan
