#pragma once
/// Quantities as people write them ("400 Gb/s", "2 us", "80 GiB"), and back.

#include <string>
#include <string_view>

#include "core/units.hpp"

namespace moeplan {

/// Parse a number with its unit. A bare number is refused: the unit is part of the value.
/// @throws std::invalid_argument with what was expected; readers of files turn it into an
/// InputError with its place.
Seconds parse_seconds(std::string_view text);  ///< ns us ms s min h
Bytes parse_bytes(
    std::string_view text);  ///< B KB MB GB TB (powers of ten), KiB MiB GiB TiB (of two)
BytesPerSecond parse_bytes_per_second(
    std::string_view text);  ///< GB/s, GiB/s … bytes; Gb/s, Gbit/s … bits
FlopsPerSecond parse_flops_per_second(std::string_view text);  ///< GFlop/s TFlop/s PFlop/s

/// Short forms for people: three significant digits and a fitting unit ("1.84 ms", "93.1 GiB", "50
/// GB/s").
std::string to_text(Seconds);
std::string to_text(Bytes);
std::string to_text(BytesPerSecond);
std::string to_text(FlopsPerSecond);
std::string to_text(Flops);

/// Exact forms for files: the shortest decimal that reads back to the same double, in a base-ten
/// unit.
std::string to_exact_text(Seconds);
std::string to_exact_text(Bytes);
std::string to_exact_text(BytesPerSecond);
std::string to_exact_text(FlopsPerSecond);

}  // namespace moeplan
