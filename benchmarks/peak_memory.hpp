#pragma once

#include <sys/resource.h>

namespace moeplan {

/// Most memory that this process has held so far: run one benchmark a process to tell them apart.
inline double peak_megabytes() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) / 1e3;
}

}  // namespace moeplan
