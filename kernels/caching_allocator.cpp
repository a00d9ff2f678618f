#include "kernels/caching_allocator.hpp"

#include <algorithm>
#include <functional>

#include "core/errors.hpp"
#include "core/quantity_text.hpp"
#include "core/units.hpp"

namespace moeplan {
namespace {

/// Sizes grow in eighths of a power of two, so that exchanges whose row counts change from step to
/// step find their block again.
std::size_t block_size(std::size_t bytes) {
    std::size_t step = 64;
    while (step * 16 < bytes) step *= 2;
    return std::max<std::size_t>(64, (bytes + step - 1) / step * step);
}

/// An idle block may be so many times larger than asked. Row counts of experts change with every
/// batch, and the first touch of new memory is dear, above all in a virtual machine. Not where
/// there are graphs: a tensor that takes another's place moves both.
constexpr std::size_t kMostSlack = 2;

std::string size_text(std::uint64_t bytes) { return to_text(Bytes{double(bytes)}); }

}  // namespace

/// One of this stream's if there is one. Where work becomes graphs, which know addresses, the lowest:
/// then a step that begins with the same idle blocks as the last takes each tensor from the same
/// place. Elsewhere the last one given back: it is still in the cache.
std::vector<CachingAllocator::Idle>::iterator CachingAllocator::choose(std::vector<Idle>& idle,
                                                                       Stream_* stream) const {
    const auto better = [&](const Idle& a, const Idle& b) {
        if ((a.stream == stream) != (b.stream == stream)) return a.stream == stream;
        return backend_.graphs ? std::less<void*>()(a.block, b.block) : a.order > b.order;
    };
    return std::min_element(idle.begin(), idle.end(), better);
}

void* CachingAllocator::take(std::size_t bytes, Stream_* stream) {
    const std::size_t size = block_size(bytes), most = backend_.graphs ? size : kMostSlack * size;
    if (const auto fits = idle_.lower_bound(size); fits != idle_.end() && fits->first <= most) {
        std::vector<Idle>& idle = fits->second;
        const auto chosen = choose(idle, stream);
        if (chosen->stream != stream)
            check(backend_.streams->follow(stream, chosen->stream), "follow");
        void* const block = chosen->block;
        cached_ -= fits->first;
        idle.erase(chosen);
        if (idle.empty()) idle_.erase(fits);
        in_use_ += bytes;
        peak_ = std::max(peak_, in_use_);
        return block;
    }
    void* block = nullptr;
    Status status = backend_.allocate(size, &block);
    ++device_calls_;
    std::uint64_t given_back = 0;
    if (status.code == kOutOfMemory && (given_back = free_cached()) > 0) {
        status = backend_.allocate(size, &block);
        ++device_calls_;
    }
    if (status.code == kOutOfMemory)
        throw EnvironmentError(
            std::string(status.message) + " for " + purpose() + " (" + size_text(bytes) +
            "); tensors in use take " + size_text(in_use_) +
            (given_back > 0 ? ", and " + size_text(given_back) + " that lay idle were given back" : "") +
            ". A smaller model, --micro-batch or --seq needs less");
    check(status, "allocate");
    size_of_[block] = size;
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
    return block;
}

void CachingAllocator::give(void* block, std::size_t bytes, Stream_* stream) {
    const std::size_t size = size_of_.at(block);
    in_use_ -= bytes;
    cached_ += size;
    idle_[size].push_back({block, stream, holds_, ++gives_});
}

CachingAllocator::~CachingAllocator() {
    let_go();
    free_cached();
}

void CachingAllocator::hold() {
    ++holds_;
    holding_ = true;
}

std::uint64_t CachingAllocator::free_cached() {
    std::uint64_t freed = 0;
    for (auto& [size, idle] : idle_)
        freed += size * std::erase_if(idle, [&](const Idle& each) {
                     if (holding_ && each.hold == holds_) return false;
                     backend_.release(each.block);
                     size_of_.erase(each.block);
                     return true;
                 });
    std::erase_if(idle_, [](const auto& of_size) { return of_size.second.empty(); });
    cached_ -= freed;
    return freed;
}

std::string CachingAllocator::purpose() const {
    if (what_.empty()) return "a tensor";
    return std::string(what_) + (whose_.empty() ? "" : " of " + std::string(whose_));
}

}  // namespace moeplan
