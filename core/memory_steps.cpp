#include "core/memory_steps.hpp"

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace moeplan {

void take_memory_in_large_steps() {
#ifdef __GLIBC__
    constexpr int kMiB = 1 << 20;
    // Of many of the system's large pages (2 MiB), which it gives to regions that can hold them.
    mallopt(M_TOP_PAD, 64 * kMiB);
    mallopt(M_TRIM_THRESHOLD, 1024 * kMiB);
    // To state one threshold is to fix the others: this is where glibc's own would end up.
    mallopt(M_MMAP_THRESHOLD, 32 * kMiB);
#endif
}

}  // namespace moeplan
