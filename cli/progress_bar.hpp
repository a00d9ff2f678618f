#pragma once
/// Progress on standard error: a bar with rate and time left on a terminal, a line now and then
/// elsewhere.

#include <chrono>
#include <string>

#include "core/progress.hpp"

namespace moeplan::cli {

class ProgressBar {
  public:
    explicit ProgressBar(std::string title);
    ~ProgressBar();  ///< ends the line

    void show(double done, std::string_view doing);
    Progress callback();  ///< refers to this bar

  private:
    std::string title_;
    std::chrono::steady_clock::time_point begin_, last_;
    bool terminal_, drawn_ = false;
};

}  // namespace moeplan::cli
