#pragma once
/// Every tolerance that tests use, named once, with the reason for its size.

namespace moeplan {

/// Paper arithmetic against the same formula in doubles: some tens of roundings of 1.1e-16 each,
/// with two decades of room.
inline constexpr double kArithmetic = 1e-12;

/// Two engines that share links by the same rule: thousands of sums of rates in another order, and
/// SimGrid's 1e-12 s clock grain.
inline constexpr double kFlowEngines = 1e-9;

/// The closed form of a step against its flows when ranks have unequal loads: max-min shares leave a port idle for some per
/// cent of an exchange among few ranks, and exchanges are some per cent of a step.
inline constexpr double kUnequalExchange = 1e-3;

/// A device kernel against the CPU in f64 on the same rounded inputs:
/// Sums of tensors against published peaks of an allocator: kernels' workspaces, reduction buckets
/// and what lives between two kernels are not in the sum (largest difference of the rows at
/// hand 3.3 %).
inline constexpr double kPublishedPeakMemory = 0.05;

/// |a − b| ≤ u_out·|b| + kAccumulation·√terms·u_f32·Σ|summand|.
/// u_out is the rounding of the stored result (bf16 keeps 8 bits, f32 24); the second term is the
/// rounding of `terms` f32 operations, which grows like a random walk (√terms), with 8 times room
/// for its tail and for exp, log and sin of 2 to 4 roundings each.
inline constexpr double kRoundoffF32 = 0x1p-24, kRoundoffBf16 = 0x1p-8, kAccumulation = 8;

/// A loss of some 32 tokens in f32 on two devices: sums of up to 64 products in another order, √64 · 2⁻²⁴ each, through a dozen
/// layers. After an update AdamW divides a gradient near zero by its own size, so that its rounding can turn a whole step of it.
inline constexpr double kTrainerStep = 2e-6, kTrainerAfterUpdates = 1e-4;

/// A loss of a small untrained model in bf16 against f32: each of two layers stores about a dozen tensors rounded to 2⁻⁹, random in
/// sign, so hidden states and logits are off by some √24 · 2⁻⁹ = 1 % of their size. Logits of an untrained head are within ±0.3, so a
/// token's loss is off by .003 in 4.2 nats, and the mean of 32 tokens or more by 1/√32 of that: 1.3e-4, with 4 times room for its tail.
inline constexpr double kTrainerBf16 = 5e-4;

/// |a − b| ≤ tolerance · |b|, or both zero.
inline bool close(double a, double b, double tolerance = kArithmetic) {
    const double d = a > b ? a - b : b - a, size = b < 0 ? -b : b;
    return d <= tolerance * size;
}

}  // namespace moeplan
