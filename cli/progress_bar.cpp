#include "cli/progress_bar.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/quantity_text.hpp"

namespace moeplan::cli {

using Clock = std::chrono::steady_clock;

ProgressBar::ProgressBar(std::string title)
    : title_(std::move(title)),
      begin_(Clock::now()),
      last_(begin_),
      terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
    if (drawn_ && terminal_) std::fprintf(stderr, "\r\033[K");
}

void ProgressBar::show(double done, std::string_view doing) {
    const auto now = Clock::now();
    const double since = std::chrono::duration<double>(now - last_).count(),
                 spent = std::chrono::duration<double>(now - begin_).count();
    if (since < (terminal_ ? 0.1 : 10.0)) return;
    last_ = now;
    done = std::clamp(done, 0.0, 1.0);
    const std::string left =
        done > 0.01 ? to_text(Seconds{spent * (1 - done) / done}) + " left" : "";
    if (terminal_) {
        constexpr int kWidth = 24;
        std::string bar(static_cast<std::size_t>(done * kWidth), '#');
        bar.resize(kWidth, '.');
        std::fprintf(stderr, "\r\033[K%s [%s] %3.0f %%  %s  %.*s", title_.c_str(), bar.c_str(),
                     done * 100, left.c_str(),
                     static_cast<int>(std::min<std::size_t>(doing.size(), 60)), doing.data());
        std::fflush(stderr);
        drawn_ = true;
    } else {
        std::fprintf(stderr, "%s: %.0f %%, %s  %.*s\n", title_.c_str(), done * 100, left.c_str(),
                     static_cast<int>(doing.size()), doing.data());
    }
}

Progress ProgressBar::callback() {
    return [this](double done, std::string_view doing) { show(done, doing); };
}

}  // namespace moeplan::cli
