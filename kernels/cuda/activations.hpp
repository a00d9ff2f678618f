#pragma once
/// Activations and their gradients at one value, in f32.

#include "kernels/cuda/device_math.hpp"

namespace moeplan::cuda {

/// gelu(x) = x · Φ(x), Φ the normal distribution.
struct Gelu {
    __device__ float operator()(float x, float) const { return x * 0.5f * (1.0f + erff(x * 0.70710678118654752f)); }
};
struct GeluGradient {
    __device__ float operator()(float x, float dy) const {
        const float share = 0.5f * (1.0f + erff(x * 0.70710678118654752f));
        return dy * (share + x * 0.39894228040143268f * expf(-0.5f * x * x));
    }
};
/// A NaN passes: it must be seen, not made a zero.
struct Relu {
    __device__ float operator()(float x, float) const { return x <= 0 ? 0.0f : x; }
};
struct ReluGradient {
    __device__ float operator()(float x, float dy) const { return x <= 0 ? 0.0f : dy; }
};

/// silu(gate) · up.
__device__ __forceinline__ float swiglu(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }
/// With s = sigmoid(gate): dgate = dy · up · s · (1 + gate · (1 − s)), dup = dy · gate · s.
struct SwigluGradient {
    float dgate, dup;
};
__device__ __forceinline__ SwigluGradient swiglu_gradient(float gate, float up, float dy) {
    const float s = 1.0f / (1.0f + expf(-gate));
    return {dy * up * s * (1.0f + gate * (1.0f - s)), dy * gate * s};
}

}  // namespace moeplan::cuda
