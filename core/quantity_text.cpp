#include "core/quantity_text.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <span>
#include <stdexcept>

#include "core/text.hpp"

namespace moeplan {
namespace {

struct Unit {
    std::string_view name;
    double factor;
};

constexpr std::array kSeconds = {Unit{"s", 1},     Unit{"ms", 1e-3}, Unit{"us", 1e-6},
                                 Unit{"µs", 1e-6}, Unit{"ns", 1e-9}, Unit{"min", 60},
                                 Unit{"h", 3600}};
constexpr double kKi = 1024;
constexpr std::array kBytes = {Unit{"B", 1},
                               Unit{"KB", 1e3},
                               Unit{"kB", 1e3},
                               Unit{"MB", 1e6},
                               Unit{"GB", 1e9},
                               Unit{"TB", 1e12},
                               Unit{"KiB", kKi},
                               Unit{"MiB", kKi* kKi},
                               Unit{"GiB", kKi* kKi* kKi},
                               Unit{"TiB", kKi* kKi* kKi* kKi}};
constexpr std::array kRates = {Unit{"B/s", 1},          Unit{"KB/s", 1e3},
                               Unit{"MB/s", 1e6},       Unit{"GB/s", 1e9},
                               Unit{"TB/s", 1e12},      Unit{"KiB/s", kKi},
                               Unit{"MiB/s", kKi* kKi}, Unit{"GiB/s", kKi* kKi* kKi},
                               Unit{"Kb/s", 125},       Unit{"Mb/s", 125e3},
                               Unit{"Gb/s", 125e6},     Unit{"Tb/s", 125e9},
                               Unit{"Kbit/s", 125},     Unit{"Mbit/s", 125e3},
                               Unit{"Gbit/s", 125e6},   Unit{"Tbit/s", 125e9}};
constexpr std::array kWork = {Unit{"Flop/s", 1},     Unit{"MFlop/s", 1e6},  Unit{"GFlop/s", 1e9},
                              Unit{"TFlop/s", 1e12}, Unit{"PFlop/s", 1e15}, Unit{"GFLOP/s", 1e9},
                              Unit{"TFLOP/s", 1e12}, Unit{"PFLOP/s", 1e15}};

double parse(std::string_view text, std::span<const Unit> units, const char* example) {
    const std::string wanted = std::string("a number with its unit, as ") + example;
    text = trim(text);
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || !std::isfinite(number) || number < 0)
        throw std::invalid_argument(wanted);
    const std::string_view unit = trim(text.substr(static_cast<std::size_t>(end - text.data())));
    for (const auto& [name, factor] : units)
        if (unit == name) return number * factor;
    std::string known;
    for (const auto& [name, factor] : units)
        known += (known.empty() ? "" : " ") + std::string(name);
    throw std::invalid_argument(wanted + " (units: " + known + ")");
}

/// Three significant digits, no exponent: 1.84, 93.1, 412.
std::string three_digits(double x) {
    char buffer[32];
    const double size = std::abs(x);
    std::snprintf(buffer, sizeof buffer,
                  size >= 99.95 || x == 0 ? "%.0f"
                  : size >= 9.995         ? "%.1f"
                                          : "%.2f",
                  x);
    return buffer;
}

std::string scaled(double value, std::span<const Unit> steps) {  // steps from large to small
    for (const auto& [name, factor] : steps)
        if (std::abs(value) >= factor * 0.9995)
            return three_digits(value / factor) + " " + std::string(name);
    return three_digits(value / steps.back().factor) + " " + std::string(steps.back().name);
}

}  // namespace

Seconds parse_seconds(std::string_view text) { return {parse(text, kSeconds, "\"2 us\"")}; }
Bytes parse_bytes(std::string_view text) { return {parse(text, kBytes, "\"80 GB\"")}; }
BytesPerSecond parse_bytes_per_second(std::string_view text) {
    return {parse(text, kRates, "\"400 Gb/s\"")};
}
FlopsPerSecond parse_flops_per_second(std::string_view text) {
    return {parse(text, kWork, "\"989 TFlop/s\"")};
}

std::string to_text(Seconds t) {
    static constexpr std::array steps = {Unit{"h", 3600},  Unit{"min", 60},  Unit{"s", 1},
                                         Unit{"ms", 1e-3}, Unit{"us", 1e-6}, Unit{"ns", 1e-9}};
    return scaled(t.value, steps);
}
std::string to_text(Bytes b) {
    static constexpr std::array steps = {Unit{"TiB", kKi * kKi * kKi * kKi},
                                         Unit{"GiB", kKi * kKi * kKi}, Unit{"MiB", kKi * kKi},
                                         Unit{"KiB", kKi}, Unit{"B", 1}};
    return scaled(b.value, steps);
}
std::string to_text(BytesPerSecond r) {
    static constexpr std::array steps = {Unit{"TB/s", 1e12}, Unit{"GB/s", 1e9}, Unit{"MB/s", 1e6},
                                         Unit{"KB/s", 1e3}, Unit{"B/s", 1}};
    return scaled(r.value, steps);
}
std::string to_text(FlopsPerSecond r) {
    static constexpr std::array steps = {Unit{"PFlop/s", 1e15}, Unit{"TFlop/s", 1e12},
                                         Unit{"GFlop/s", 1e9}, Unit{"MFlop/s", 1e6},
                                         Unit{"Flop/s", 1}};
    return scaled(r.value, steps);
}
std::string to_text(Flops f) {
    static constexpr std::array steps = {Unit{"EFlop", 1e18}, Unit{"PFlop", 1e15},
                                         Unit{"TFlop", 1e12}, Unit{"GFlop", 1e9},
                                         Unit{"MFlop", 1e6},  Unit{"Flop", 1}};
    return scaled(f.value, steps);
}

namespace {

/// The largest base-ten unit in which the decimal text reads back to the very same double.
std::string exact(double value, std::span<const Unit> steps) {
    for (const auto& [name, factor] : steps) {
        if (value < factor && factor > steps.back().factor) continue;
        const std::string text = exact_text(value / factor) + " " + std::string(name);
        if (std::stod(text) * factor == value) return text;
    }
    return exact_text(value / steps.back().factor) + " " + std::string(steps.back().name);
}

}  // namespace

std::string to_exact_text(Seconds t) {
    static constexpr std::array steps = {Unit{"ms", 1e-3}, Unit{"us", 1e-6}, Unit{"ns", 1e-9},
                                         Unit{"s", 1}};
    if (t.value >= 1 || t.value == 0) return exact_text(t.value) + " s";
    return exact(t.value, steps);
}
std::string to_exact_text(Bytes b) {
    static constexpr std::array steps = {Unit{"GB", 1e9}, Unit{"MB", 1e6}, Unit{"KB", 1e3},
                                         Unit{"B", 1}};
    return exact(b.value, steps);
}
std::string to_exact_text(BytesPerSecond r) {
    static constexpr std::array steps = {Unit{"GB/s", 1e9}, Unit{"MB/s", 1e6}, Unit{"KB/s", 1e3},
                                         Unit{"B/s", 1}};
    return exact(r.value, steps);
}
std::string to_exact_text(FlopsPerSecond r) {
    static constexpr std::array steps = {Unit{"TFlop/s", 1e12}, Unit{"GFlop/s", 1e9},
                                         Unit{"MFlop/s", 1e6}, Unit{"Flop/s", 1}};
    return exact(r.value, steps);
}

}  // namespace moeplan
