// Runs the tests that the stand-in for GoogleTest has collected: one line each.

#include <gtest/gtest.h>

#include <chrono>

int testing::run_all() {
    using namespace internal;
    int passed = 0, failed = 0, skipped = 0;
    std::string reason;
    for (std::size_t i = 0; i < tests().size(); ++i) {        // tests that take a value are added while this runs
        const Registered test = tests()[i];
        state() = {};
        const auto begin = std::chrono::steady_clock::now();
        test.run();
        if (test.name.empty()) continue;
        const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
        const State& s = state();
        ++(s.failed ? failed : s.skipped ? skipped : passed);
        if (s.skipped) reason = s.skip_reason;
        std::printf("%s %s (%.0f ms)\n", s.failed ? "FAILED " : s.skipped ? "SKIPPED" : "ok     ", test.name.c_str(), ms);
        std::fflush(stdout);
    }
    std::printf("%d passed, %d failed, %d skipped%s%s\n", passed, failed, skipped, skipped ? ": " : "", reason.c_str());
    return failed > 0;
}

int main() { return testing::run_all(); }
