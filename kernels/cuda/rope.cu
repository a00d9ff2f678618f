// Rotary positions, in place.
//
// Shapes     x [num_tokens, num_heads, head_size], rows row_stride apart; positions [num_tokens]
// Mapping    a block a token; thread (i, j) turns pair i of heads j, j + blockDim.y, …: its angle is found once for all those heads.
//            Whole turns are taken off in f64 (in f32 an angle of position 100 000 is off by 1e-2), what is left of one is turned in
//            f32: rounding a half turn to 2⁻²⁵ moves the angle by π·2⁻²⁵ = 9.4e-8 at most, f64 by 3e-16 of the angle (3e-7 at 2³⁰),
//            and sincospif errs by 2 ulp, so that sines and cosines are within 2.2e-7 below position 2²⁵. (sincos in f64 keeps a
//            table for large arguments in local memory.)
// Result     deterministic
// Moves      2 values an element

#include <cmath>

#include "kernels/cuda/device_math.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(256) rope_kernel(T* __restrict__ x, const std::int32_t* __restrict__ positions, int num_heads, int head_size,
                                                   std::int64_t row_stride, double log_theta, float direction) {
    const std::int64_t token = blockIdx.x;
    const int half = head_size / 2;
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        const double angle = static_cast<double>(positions[token]) * exp(-2.0 * i / head_size * log_theta);
        const double turns = angle * 0.15915494309189533577;   // 1/2π
        float sine, cosine;
        sincospif(static_cast<float>(2.0 * (turns - rint(turns))), &sine, &cosine);
        sine *= direction;
        for (int head = threadIdx.y; head < num_heads; head += blockDim.y) {
            T* const pair = x + token * row_stride + static_cast<std::int64_t>(head) * head_size + i;
            const float a = to_float(pair[0]), b = to_float(pair[half]);
            pair[0] = from_float<T>(a * cosine - b * sine);
            pair[half] = from_float<T>(b * cosine + a * sine);
        }
    }
}

Status rotate(const char* kernel, const Rope* a, float direction, Stream_* stream) {
    if (a->num_tokens == 0 || a->num_heads == 0 || a->head_size < 2) return {};
    if (!fits_grid(a->num_tokens)) return unsupported(kernel, "more than 2^31 tokens");
    return with_format(kernel, a->format, [&](auto* type) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        const unsigned along = static_cast<unsigned>(threads_for_row(a->head_size / 2));
        const unsigned heads = static_cast<unsigned>(std::min<std::int64_t>(a->num_heads, 256 / along));
        MOEPLAN_LAUNCH((rope_kernel<T>), dim3(a->num_tokens), dim3(along, heads), 0, as_stream(stream), static_cast<T*>(a->x), a->positions,
                       static_cast<int>(a->num_heads), static_cast<int>(a->head_size), a->row_stride, std::log(a->theta), direction);
        return {};
    });
}

}  // namespace

Status rope_forward(const Rope* a, Stream_* stream) { return rotate("rope_forward", a, 1.0f, stream); }
Status rope_backward(const Rope* a, Stream_* stream) { return rotate("rope_backward", a, -1.0f, stream); }

}  // namespace moeplan::cuda
