// Work recorded once and launched again as one: a CUDA graph.
//
// The default stream cannot be recorded, so every owner has a stream beside it that only ever records. Kernels given to that one use the
// owner's scratch memory and workspace (owner_of): graphs of one owner run one after the other, as its kernels do. Recording is
// "relaxed", so that a kernel which meets a new shape may still allocate.

#include "kernels/cuda/graphs.hpp"

#include <map>
#include <mutex>

#include "kernels/cuda/launch.hpp"

namespace moeplan::cuda {
namespace {

std::mutex mutex;
/// Owner → the stream that records for it, and back.
std::map<cudaStream_t, cudaStream_t>& recorders() {
    static auto& all = *new std::map<cudaStream_t, cudaStream_t>;
    return all;
}
std::map<cudaStream_t, cudaStream_t>& owners() {
    static auto& all = *new std::map<cudaStream_t, cudaStream_t>;
    return all;
}

Status begin(Stream_* owner, Stream_** recording) {
    const std::lock_guard lock(mutex);
    cudaStream_t& stream = recorders()[as_stream(owner)];
    if (!stream) {
        MOEPLAN_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        owners()[stream] = as_stream(owner);
    }
    MOEPLAN_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    *recording = reinterpret_cast<Stream_*>(stream);
    return {};
}

Status end(Stream_* recording, Graph_** out) {
    *out = nullptr;
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(as_stream(recording), &graph);
    if (ended != cudaSuccess) {
        (void)cudaGetLastError();                             // answered: it must not fail the next launch
        return cuda_failure(ended, "cudaStreamEndCapture", __FILE__, __LINE__);
    }
    cudaGraphExec_t ready = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&ready, graph, 0);
    if (made != cudaSuccess) (void)cudaGetLastError();
    MOEPLAN_CUDA(cudaGraphDestroy(graph));
    MOEPLAN_CUDA(made);
    *out = reinterpret_cast<Graph_*>(ready);
    return {};
}

Status launch(Graph_* graph, Stream_* stream) {
    MOEPLAN_CUDA(cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(graph), as_stream(stream)));
    return {};
}
Status release(Graph_* graph) {
    if (graph) MOEPLAN_CUDA(cudaGraphExecDestroy(reinterpret_cast<cudaGraphExec_t>(graph)));
    return {};
}

}  // namespace

cudaStream_t owner_of(cudaStream_t stream) {
    const std::lock_guard lock(mutex);
    const auto found = owners().find(stream);
    return found == owners().end() ? stream : found->second;
}

const GraphSet kGraphs{.begin = begin, .end = end, .launch = launch, .release = release};

}  // namespace moeplan::cuda
