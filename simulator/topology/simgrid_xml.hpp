#pragma once
/// Numbers as SimGrid's platform files write them.

#include <string>

namespace moeplan {

/// "50GBps" (bytes), "1Gbps" (bits), "125MBps", "1e9": bytes per second. "KiBps" are powers of two.
double simgrid_bandwidth(const std::string& text);
/// "2us", "50ns", "1e-6": seconds.
double simgrid_latency(const std::string& text);
/// "400Tf", "1Gf", "1e9": flops per second. All throw std::invalid_argument with what was expected.
double simgrid_speed(const std::string& text);

}  // namespace moeplan
