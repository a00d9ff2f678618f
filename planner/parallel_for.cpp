#include "planner/parallel_for.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace moeplan {

void parallel_for(std::size_t count, int num_threads, const std::function<void(std::size_t)>& work,
                  const std::function<void(std::size_t)>& done) {
    const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
    const std::size_t threads =
        std::clamp<std::size_t>(num_threads > 0 ? static_cast<std::size_t>(num_threads) : cores, 1,
                                std::max<std::size_t>(count, 1));
    std::atomic<std::size_t> next = 0, finished = 0;
    std::mutex mutex;
    std::size_t failed_at = count;
    std::exception_ptr failure;

    const auto run = [&](bool reports) {
        for (std::size_t i = next++; i < count; i = next++) {
            try {
                work(i);
            } catch (...) {
                const std::lock_guard lock(mutex);
                if (i < failed_at) {
                    failed_at = i;
                    failure = std::current_exception();
                }
            }
            const std::size_t so_far = ++finished;
            if (reports && done) done(so_far);
        }
    };
    {
        std::vector<std::jthread> others;
        for (std::size_t t = 1; t < threads; ++t) others.emplace_back(run, false);
        run(true);
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace moeplan
