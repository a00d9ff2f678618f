#pragma once
/// Stretches of work whose calls are the same again and again, launched as one graph each.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/caching_allocator.hpp"
#include "kernels/kernel_set.hpp"

namespace moeplan {

/// Set to zero: the one call that is no row of the table.
struct SetZero {
    void* to = nullptr;
    std::size_t bytes = 0;
    bool operator==(const SetZero&) const = default;
};

/// One call of a stretch: which row, and everything it was given.
class RecordedCall {
  public:
    virtual ~RecordedCall() = default;
    virtual Status run(const Backend&, Stream_*) const = 0;
    virtual bool same_as(const RecordedCall&) const = 0;
    virtual std::string_view name() const = 0;
};

/// What layers ask of a stretch: its calls are collected first, then
///
/// * run one by one, the first time that exactly these calls are seen,
/// * recorded as a graph and launched, the second time,
/// * launched, from then on.
///
/// "Exactly" is: the same rows in the same order with the same shapes, numbers and pointers. A
/// stretch whose tensors lie elsewhere or have another shape is another list of calls, and gets a
/// graph of its own; so a graph can be unused, never wrong. A stretch that keeps changing is given
/// up and runs as if there were no graphs. Where a graph cannot be made the calls run one by one.
class GraphedCalls {
  public:
    /// @param memory  whose idle blocks go back to the device when a call lacks memory of its own
    explicit GraphedCalls(CachingAllocator& memory);
    ~GraphedCalls();
    GraphedCalls(const GraphedCalls&) = delete;
    GraphedCalls& operator=(const GraphedCalls&) = delete;

    /// False: this device has no graphs, or $MOEPLAN_CUDA_GRAPHS is 0.
    bool on() const { return on_; }

    /// From here to `end` calls are collected. @param name  of the stretch
    void begin(std::string_view name);
    bool collecting() const { return collecting_; }
    template <class Args>
    void add(Status (*row)(const Args*, Stream_*), const Args& args, std::string_view name) {
        collected_.push_back(std::make_unique<Row<Args>>(row, args, name));
    }
    void add(const SetZero& zero);
    /// Runs what was collected. @throws EnvironmentError with the row's name
    void end(Stream_* stream);
    /// What was collected runs now, one by one, and the rest of the stretch as it comes: something
    /// waits for it.
    void give_up(Stream_* stream);
    /// What was collected is forgotten: an exception passes.
    void drop();

    struct Counts {
        std::uint64_t one_by_one = 0, recorded = 0, replayed = 0;  ///< stretches
        bool operator==(const Counts&) const = default;
    };
    const Counts& counts() const { return counts_; }

  private:
    template <class Args>
    class Row final : public RecordedCall {
      public:
        Row(Status (*row)(const Args*, Stream_*), const Args& args, std::string_view name)
            : row_(row), args_(args), name_(name) {}
        Status run(const Backend&, Stream_* stream) const override { return row_(&args_, stream); }
        bool same_as(const RecordedCall& other) const override {
            const auto* row = dynamic_cast<const Row*>(&other);
            return row && row->row_ == row_ && row->args_ == args_;
        }
        std::string_view name() const override { return name_; }

      private:
        Status (*row_)(const Args*, Stream_*);
        Args args_;
        std::string_view name_;
    };
    using Calls = std::vector<std::unique_ptr<RecordedCall>>;
    /// A list of calls that was seen, and its graph from the second time on.
    struct Seen {
        Calls calls;
        Graph_* graph = nullptr;
        std::uint64_t last_used = 0;
    };
    struct Stretch {
        std::vector<Seen> seen;
        int misses_in_a_row = 0;
        bool given_up = false;
    };
    void run_one_by_one(const Calls&, Stream_*) const;
    Status record(const Calls&, Stream_*, Graph_** out) const;

    CachingAllocator& memory_;
    const Backend& backend_;
    bool on_ = false, collecting_ = false;
    Stretch* current_ = nullptr;
    Calls collected_;
    std::map<std::string, Stretch, std::less<>> stretches_;
    std::uint64_t clock_ = 0;
    Counts counts_;
};

}  // namespace moeplan
