/// Stable sort of routed slots by expert: a histogram, a running sum, a scatter. One thread; 4
/// passes over the ids, no flops.
#include "kernels/cpu/cpu_kernels.hpp"

namespace moeplan::cpu {

Status permutation_map(const PermutationMap* call, Stream_*) {
    const std::int64_t slots = call->units * call->top_k, experts = call->num_experts;
    std::int32_t* counts = call->rows_per_expert;
    for (std::int64_t e = 0; e < experts; ++e) counts[e] = 0;
    // row_of_slot first marks what is kept (0) or dropped (−1): with a capacity, choice by choice,
    // places taken in order of units.
    for (std::int64_t j = 0; j < call->top_k; ++j)
        for (std::int64_t u = 0; u < call->units; ++u) {
            const std::int64_t slot = u * call->top_k + j;
            const std::int32_t expert = call->expert_ids[slot];
            const bool kept =
                expert >= 0 && (call->capacity == 0 || counts[expert] < call->capacity);
            call->row_of_slot[slot] = kept ? 0 : -1;
            if (kept) ++counts[expert];
        }
    std::int32_t next = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
        call->offsets[e] = next;
        next += counts[e];
    }
    call->offsets[experts] = next;
    auto* place = static_cast<std::int32_t*>(scratch(6, sizeof(std::int32_t) * (experts + 1)));
    for (std::int64_t e = 0; e < experts; ++e) place[e] = call->offsets[e];
    for (std::int64_t slot = 0; slot < slots; ++slot) {
        if (call->row_of_slot[slot] < 0) continue;
        const std::int32_t row = place[call->expert_ids[slot]]++;
        call->row_of_slot[slot] = row;
        call->slot_of_row[row] = std::int32_t(slot);
    }
    return {};
}

}  // namespace moeplan::cpu
