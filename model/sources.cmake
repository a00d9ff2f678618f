# Sources by what they need: the full build (model/CMakeLists.txt) takes all, kernels/standalone those that need neither JSON nor HDF5.

# Shapes, layouts, counts, memory.
set(model_spec_sources
  model_spec.cpp names.cpp op_counts.cpp kernel_work.cpp parallel_groups.cpp stage_layers.cpp frameworks.cpp check.cpp memory.cpp
  trainer_memory.cpp)
# What reads and writes them.
set(model_spec_file_sources
  model_spec_json.cpp load_model.cpp import/hugging_face.cpp import/megatron.cpp import/olmo_core.cpp import/text_file.cpp
  parallel_layout_json.cpp layout_words.cpp)
# Executable layers and training.
set(trainer_sources
  layers/tensor.cpp layers/rank_groups.cpp layers/parameters.cpp layers/norm.cpp layers/attention.cpp layers/feed_forward.cpp
  layers/moe.cpp layers/moe_dispatch.cpp layers/vocabulary.cpp layers/transformer.cpp
  routing/routing_rule.cpp routing/softmax_top_k.cpp routing/switch.cpp routing/gshard.cpp routing/x_moe.cpp routing/emo.cpp
  routing/sigmoid_top_k.cpp routing/domain.cpp
  optimizer.cpp optimizer_sharding.cpp pipeline.cpp micro_batch.cpp training_run.cpp training_step.cpp held_out.cpp step_record.cpp train.cpp
  synthetic_tokens.cpp)
# Checkpoints, recording, and what rests on them.
set(trainer_file_sources checkpoint.cpp trace_recorder.cpp expert_subsets.cpp)
