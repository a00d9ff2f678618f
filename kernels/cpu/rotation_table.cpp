/// Sines and cosines of the rotary embedding. A step asks for the same ones in every layer, so they are
/// made once and kept. Not among the loops that are compiled for each instruction set: those may not
/// bring functions of the standard library along.
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_kernels.hpp"

namespace moeplan::cpu {
namespace {

/// Positions whose numbers are kept; further ones are made each time.
constexpr std::int64_t kMostKept = std::int64_t{1} << 15;

template <class T>
class RotationTable {
  public:
    const T* at(std::int64_t position, std::int64_t head_size, double theta) {
        if (head_size != head_size_ || theta != theta_) {
            head_size_ = head_size, theta_ = theta, known_ = 0;
            table_.clear();
        }
        if (position < 0 || position >= kMostKept) {
            other_.resize(std::size_t(head_size_));
            make(position, other_.data());
            return other_.data();
        }
        if (position >= known_) table_.resize(std::size_t((position + 1) * head_size_));
        for (; known_ <= position; ++known_) make(known_, table_.data() + known_ * head_size_);
        return table_.data() + position * head_size_;
    }

  private:
    void make(std::int64_t position, T* out) const {
        const std::int64_t half = head_size_ / 2;
        for (std::int64_t i = 0; i < half; ++i) {
            const double frequency = std::pow(theta_, -2.0 * double(i) / double(head_size_));
            const double angle = double(position) * frequency;
            out[i] = T(std::cos(angle));
            out[half + i] = T(std::sin(angle));
        }
    }
    std::vector<T> table_, other_;
    std::int64_t head_size_ = 0, known_ = 0;
    double theta_ = 0;
};

}  // namespace

template <class T>
const T* rotation(std::int64_t position, std::int64_t head_size, double theta) {
    thread_local RotationTable<T> table;
    return table.at(position, head_size, theta);
}
template const float* rotation<float>(std::int64_t, std::int64_t, double);
template const double* rotation<double>(std::int64_t, std::int64_t, double);

}  // namespace moeplan::cpu
