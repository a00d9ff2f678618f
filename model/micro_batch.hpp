#pragma once
/// From packed text to what the layers read.

#include "model/layers/attention.hpp"
#include "model/text/token_data.hpp"

namespace moeplan {

/// @param index        names what is drawn for it; see MicroBatch
/// @param loss_weight  its share of the step's loss
MicroBatch on_device(Runtime&, const TokenBatch&, std::int64_t index, double loss_weight);

}  // namespace moeplan
