#include "simulator/graph/stage_programs.hpp"

#include <utility>

namespace moeplan {
namespace {

BackwardPart backward_part(Pass pass) {
    return pass == Pass::backward_input    ? BackwardPart::input
           : pass == Pass::backward_weight ? BackwardPart::weight
                                           : BackwardPart::both;
}

void add_pass(Program& program, const LayerPass& pass, int layer, int moe_layer) {
    program.steps.push_back({&pass, layer, moe_layer, {}});
}

void add_other(Program& program, std::function<void(LaneState&)> other) {
    program.steps.push_back({nullptr, 0, -1, std::move(other)});
}

}  // namespace

StagePrograms::StagePrograms(const StepCase& step, const PipelineShape& pipeline,
                             const StepLoads& loads, StagePasses& passes,
                             DataParallel& data_parallel, LaneWriter& writer)
    : step_(step),
      pipeline_(pipeline),
      loads_(loads),
      passes_(passes),
      data_parallel_(data_parallel),
      writer_(writer),
      forward_sends_(static_cast<std::size_t>(pipeline.last_virtual_stage() + 1) *
                         step.schedule.num_micro_batches,
                     kNoOp),
      backward_sends_(forward_sends_) {}

std::uint32_t& StagePrograms::sent(std::vector<std::uint32_t>& by, int virtual_stage,
                                   const Slot& slot) {
    return by[static_cast<std::size_t>(virtual_stage) * step_.schedule.num_micro_batches +
              slot.micro_batch];
}

StagePrograms::Place StagePrograms::place_of(int lane, const Slot& slot) const {
    const int here = pipeline_.virtual_stage_of(lane, slot.chunk);
    return {pipeline_.chunks_of(lane)[static_cast<std::size_t>(slot.chunk)], here, here == 0,
            here == pipeline_.last_virtual_stage(), pipeline_.leads_down(slot.chunk)};
}

Program StagePrograms::of(int lane, const Slot& slot, std::vector<int>& weights_left) {
    return slot.pass == Pass::forward ? forward(lane, slot) : backward(lane, slot, weights_left);
}

Program StagePrograms::forward(int lane, const Slot& slot) {
    Program out;
    out.micro_batch = slot.micro_batch;
    const auto [chunk, here, first, last, down] = place_of(lane, slot);
    if (!first) out.message = &sent(forward_sends_, here - 1, slot);
    if (first) {
        add_parameters(out, kEmbedding, slot);
        add_pass(out, passes_.embedding(true), 0, -1);
    }
    for (int l = chunk.first; l < chunk.first + chunk.count; ++l) {
        add_parameters(out, l, slot);
        add_pass(out, passes_.forward(step_.model.layers[l]), l, loads_.moe_layer(l));
    }
    if (last) {
        add_parameters(out, kHead, slot);
        for (int extra = 0; extra < step_.model.num_mtp_layers; ++extra) add_mtp_forward(out);
        add_pass(out, passes_.head_forward(), last_layer(), -1);
    } else if (pipeline_.turns_round(lane) && down) {
        add_hand_over(out, sent(forward_sends_, here, slot));
    } else {
        add_message(out, lane, slot, down);
    }
    return out;
}

Program StagePrograms::backward(int lane, const Slot& slot, std::vector<int>& weights_left) {
    Program out;
    out.micro_batch = slot.micro_batch;
    const auto [chunk, here, first, last, down] = place_of(lane, slot);
    const BackwardPart part = backward_part(slot.pass);
    const bool input = part != BackwardPart::weight, weight = part != BackwardPart::input;
    const bool last_time = weight && --weights_left[slot.chunk] == 0;
    const auto gradients = [&](int layer) {
        if (!weight) return;
        add_other(out, [this, layer, slot, last_time](LaneState& state) {
            data_parallel_.synchronise_gradients(state, layer, slot, last_time);
        });
    };
    if (input && !last) out.message = &sent(backward_sends_, here + 1, slot);
    if (last) {
        add_pass(out, passes_.head_backward(part), last_layer(), -1);
        for (int extra = 0; extra < step_.model.num_mtp_layers; ++extra)
            add_mtp_backward(out, part);
        gradients(kHead);
    }
    for (int l = chunk.first + chunk.count - 1; l >= chunk.first; --l) {
        if (input) add_parameters(out, l, slot);
        add_pass(out, passes_.backward(step_.model.layers[l], part), l, loads_.moe_layer(l));
        gradients(l);
    }
    if (first && weight) {
        add_pass(out, passes_.embedding(false), 0, -1);
        gradients(kEmbedding);
    }
    if (input && !first) {
        if (pipeline_.turns_round(lane) && !down)
            add_hand_over(out, sent(backward_sends_, here, slot));
        else
            add_message(out, lane, slot, !down);
    }
    return out;
}

/// A multi-token-prediction module is one more layer of the last kind with its own projection and
/// loss.
void StagePrograms::add_mtp_forward(Program& program) {
    const int last = last_layer();
    const LayerPass& layer = passes_.forward(step_.model.layers[last]);
    add_pass(program, passes_.mtp_projection_forward(), last, -1);
    add_pass(program, layer, last, loads_.moe_layer(last));
    add_pass(program, passes_.head_forward(), last, -1);
}

void StagePrograms::add_mtp_backward(Program& program, BackwardPart part) {
    const int last = last_layer();
    const LayerPass& layer = passes_.backward(step_.model.layers[last], part);
    add_pass(program, passes_.head_backward(part), last, -1);
    add_pass(program, layer, last, loads_.moe_layer(last));
    add_pass(program, passes_.mtp_projection_backward(part), last, -1);
}

void StagePrograms::add_parameters(Program& program, int layer, const Slot& slot) {
    add_other(program, [this, layer, slot](LaneState& state) {
        data_parallel_.wait_for_parameters(state, layer, slot);
    });
}

void StagePrograms::add_message(Program& program, int lane, const Slot& slot, bool to_next) {
    const bool forward = slot.pass == Pass::forward;
    std::uint32_t& at = sent(forward ? forward_sends_ : backward_sends_,
                             pipeline_.virtual_stage_of(lane, slot.chunk), slot);
    add_other(program, [this, slot, forward, to_next, &at](LaneState& state) {
        send(state, to_next ? Group::next_stage : Group::previous_stage,
             forward ? Phase::forward : Phase::backward, slot, at);
    });
}

void StagePrograms::add_hand_over(Program& program, std::uint32_t& at) {
    add_other(program, [this, &at](LaneState& state) { writer_.hand_over(state, at); });
}

void StagePrograms::send(LaneState& state, Group group, Phase phase, const Slot& slot,
                         std::uint32_t& at) {
    const PassContext& context = passes_.context();
    ExchangeDemand demand;
    demand.kind = Collective::send_recv;
    demand.group = group;
    const auto tokens =
        static_cast<double>(context.software.scatters_messages ? context.shapes.routed_tokens
                                                               : context.shapes.split_tokens);
    demand.payload = Bytes{tokens * step_.model.hidden_size * context.shapes.element.value};
    at = writer_.exchange(state, demand,
                          group == Group::next_stage ? Stream::forward_send : Stream::backward_send,
                          Part::pipeline_comm, phase, 0, slot.micro_batch, {state.last});
    writer_.receive(state, at);  // a chunk without layers passes on what it got
}

}  // namespace moeplan
