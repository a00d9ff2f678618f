#pragma once
/// How this process gets its memory from the system.

namespace moeplan {

/// From here on in large steps, and what is freed is kept for the next one. A step with loads of
/// its own in every layer and micro-batch is hundreds of MB in pieces of a few kB: page by page,
/// and given back after every candidate, that costs a quarter of its time. Tensors of a training
/// step, else mapped apart in small pages that the next step touches for the first time again and
/// that a message between processes walks over one by one, lie in one heap that is kept. Changes no
/// result; does nothing where the C library has no such settings.
void take_memory_in_large_steps();

}  // namespace moeplan
