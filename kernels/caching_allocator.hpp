#pragma once
/// Device memory that is kept for the next step: a step's tensors are those of the step before.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/backend.hpp"

namespace moeplan {

/// Blocks of a device, by size and by the stream that used them last.
///
/// A block that is given back is at once free for the stream that used it: that stream runs in order.
/// Another stream may take it too, and then waits for what the first has been given so far. When the
/// device has no more memory, all blocks that lie idle go back to it, and it is asked once more.
class CachingAllocator {
  public:
    explicit CachingAllocator(const Backend& backend) : backend_(backend) {}
    CachingAllocator(const CachingAllocator&) = delete;
    CachingAllocator& operator=(const CachingAllocator&) = delete;
    ~CachingAllocator();

    const Backend& backend() const { return backend_; }

    /// @param stream  whose work uses the block
    /// @throws EnvironmentError if the device has no more: how much was needed, for what, and how
    /// much was free
    void* take(std::size_t bytes, Stream_* stream = nullptr);
    void give(void* block, std::size_t bytes, Stream_* stream = nullptr);  ///< as taken

    /// Runs a call that may need memory of its own: where the device has none left, idle blocks go
    /// back to it and the call is made once more. (Calls ask for memory before they begin.)
    template <class Call>
    Status with_memory(Call call) {
        const Status status = call();
        return status.code == kOutOfMemory && free_cached() > 0 ? call() : status;
    }

    /// Idle blocks go back to the device, less those that are held. @return  their bytes
    std::uint64_t free_cached();
    /// Blocks given back from here on may be taken again, but not go back to the device until
    /// `let_go`: calls that have not run yet still name them.
    void hold();
    void let_go() { holding_ = false; }

    std::uint64_t in_use() const { return in_use_; }  ///< bytes asked for and not given back
    std::uint64_t peak() const { return peak_; }      ///< the most of them at a time
    std::uint64_t cached() const { return cached_; }  ///< bytes of idle blocks
    std::uint64_t device_calls() const { return device_calls_; }  ///< blocks the device was asked for
    void reset_peak() { peak_ = in_use_; }

    /// What blocks are for while it lives, for the words of a machine that lacks memory:
    /// "the gradient of layers.0.moe.experts.up". Views: the text must live as long.
    class Purpose {
      public:
        Purpose(CachingAllocator& of, std::string_view what, std::string_view whose = {})
            : allocator_(of), what_(of.what_), whose_(of.whose_) {
            of.what_ = what;
            of.whose_ = whose;
        }
        ~Purpose() {
            allocator_.what_ = what_;
            allocator_.whose_ = whose_;
        }
        Purpose(const Purpose&) = delete;
        Purpose& operator=(const Purpose&) = delete;

      private:
        CachingAllocator& allocator_;
        std::string_view what_, whose_;
    };
    std::string purpose() const;  ///< of blocks taken now

  private:
    struct Idle {
        void* block;
        Stream_* stream;
        std::uint64_t hold;   ///< the number of holds when it was given back
        std::uint64_t order;  ///< how many had been given back before
    };
    std::vector<Idle>::iterator choose(std::vector<Idle>& idle, Stream_* stream) const;
    const Backend& backend_;
    std::map<std::size_t, std::vector<Idle>> idle_;     ///< by size of block; none is empty
    std::unordered_map<void*, std::size_t> size_of_;  ///< of every block, lent or idle
    std::uint64_t in_use_ = 0, peak_ = 0, cached_ = 0, device_calls_ = 0;
    std::uint64_t holds_ = 0, gives_ = 0;
    bool holding_ = false;
    std::string_view what_, whose_;
};

}  // namespace moeplan
