#pragma once
/// A Hugging Face `config.json` as a model.

#include "core/json.hpp"
#include "model/model_spec.hpp"

namespace moeplan {

/// Whether an object looks like one: it names a `model_type` or `architectures`, or counts hidden
/// layers.
bool is_hugging_face(const JsonReader&);

/// @param name  of the model, when the file states none
/// @throws InputError for architectures whose layers are not softmax attention with a feed-forward
/// network
ModelSpec model_from_hugging_face(const JsonReader&, const std::string& name);

}  // namespace moeplan
