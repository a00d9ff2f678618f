#include "kernels/graphed_calls.hpp"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <string>

namespace moeplan {
namespace {

/// Lists of calls that are kept of one stretch: micro-batches in flight have tensors of their own.
constexpr std::size_t kKept = 8;
/// A stretch that is new so often in a row will be new again.
constexpr int kMissesAtMost = 32;

struct LetGo {
    CachingAllocator& memory;
    ~LetGo() { memory.let_go(); }
};

class ZeroCall final : public RecordedCall {
  public:
    explicit ZeroCall(const SetZero& zero) : zero_(zero) {}
    Status run(const Backend& backend, Stream_* stream) const override {
        return backend.set_zero(zero_.to, zero_.bytes, stream);
    }
    bool same_as(const RecordedCall& other) const override {
        const auto* zero = dynamic_cast<const ZeroCall*>(&other);
        return zero && zero->zero_ == zero_;
    }
    std::string_view name() const override { return "set_zero"; }

  private:
    SetZero zero_;
};

}  // namespace

GraphedCalls::GraphedCalls(CachingAllocator& memory)
    : memory_(memory), backend_(memory.backend()) {
    const char* wanted = std::getenv("MOEPLAN_CUDA_GRAPHS");
    on_ = backend_.graphs && !(wanted && std::string_view(wanted) == "0");
}

GraphedCalls::~GraphedCalls() {
    for (const auto& [name, stretch] : stretches_)
        for (const Seen& seen : stretch.seen)
            if (seen.graph) backend_.graphs->release(seen.graph);
}

void GraphedCalls::begin(std::string_view name) {
    assert(!collecting_);
    if (!on_) return;
    auto found = stretches_.find(name);
    if (found == stretches_.end()) found = stretches_.emplace(std::string(name), Stretch{}).first;
    if (found->second.given_up) return;
    current_ = &found->second;
    collected_.clear();
    collecting_ = true;
    memory_.hold();  // tensors that end here are still named by calls that have not run
}

void GraphedCalls::add(const SetZero& zero) {
    collected_.push_back(std::make_unique<ZeroCall>(zero));
}

void GraphedCalls::give_up(Stream_* stream) {
    if (!collecting_) return;
    collecting_ = false;
    current_->given_up = true;
    const LetGo let_go{memory_};
    const Calls calls = std::move(collected_);
    collected_.clear();
    ++counts_.one_by_one;
    run_one_by_one(calls, stream);
}

void GraphedCalls::drop() {
    collecting_ = false;
    collected_.clear();
    memory_.let_go();
}

void GraphedCalls::end(Stream_* stream) {
    if (!collecting_) return;
    collecting_ = false;
    const LetGo let_go{memory_};
    Calls calls = std::move(collected_);
    collected_.clear();
    Stretch& stretch = *current_;
    ++clock_;
    const auto same = std::find_if(stretch.seen.begin(), stretch.seen.end(), [&](const Seen& s) {
        return std::equal(s.calls.begin(), s.calls.end(), calls.begin(), calls.end(),
                          [](const auto& a, const auto& b) { return a->same_as(*b); });
    });
    if (same == stretch.seen.end()) {
        if (++stretch.misses_in_a_row > kMissesAtMost) stretch.given_up = true;
        if (stretch.seen.size() == kKept) {
            const auto oldest = std::min_element(
                stretch.seen.begin(), stretch.seen.end(),
                [](const Seen& a, const Seen& b) { return a.last_used < b.last_used; });
            if (oldest->graph) check(backend_.graphs->release(oldest->graph), "release of a graph");
            stretch.seen.erase(oldest);
        }
        ++counts_.one_by_one;
        run_one_by_one(calls, stream);
        stretch.seen.push_back({std::move(calls), nullptr, clock_});
        return;
    }
    stretch.misses_in_a_row = 0;
    same->last_used = clock_;
    if (!same->graph) {
        if (record(calls, stream, &same->graph).code != kOk) {
            stretch.given_up = true;
            ++counts_.one_by_one;
            return run_one_by_one(calls, stream);
        }
        ++counts_.recorded;
    } else {
        ++counts_.replayed;
    }
    check(backend_.graphs->launch(same->graph, stream), "launch of a graph");
}

void GraphedCalls::run_one_by_one(const Calls& calls, Stream_* stream) const {
    for (const auto& call : calls)
        check(memory_.with_memory([&] { return call->run(backend_, stream); }), call->name());
}

/// Nothing of it runs: where a row fails while it is recorded, all of them can still be run.
Status GraphedCalls::record(const Calls& calls, Stream_* stream, Graph_** out) const {
    Stream_* recording = nullptr;
    if (const Status begun = backend_.graphs->begin(stream, &recording); begun.code != kOk)
        return begun;
    Status status;
    for (const auto& call : calls)
        if (status = call->run(backend_, recording); status.code != kOk) break;
    const Status ended = backend_.graphs->end(recording, out);
    if (status.code != kOk && *out) {
        backend_.graphs->release(*out);
        *out = nullptr;
    }
    return status.code != kOk ? status : ended;
}

}  // namespace moeplan
