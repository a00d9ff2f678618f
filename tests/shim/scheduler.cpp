// The fiber scheduler. Compiled without -fsanitize=thread even in the ThreadSanitizer build (it would report itself), but
// with the calls that tell the sanitizers which fiber runs and which accesses are ordered; see docs/cuda-shim.md.

#include "tests/shim/scheduler.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <boost/context/detail/fcontext.hpp>
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(SHIM_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace shim {

thread_local const Here* here = nullptr;

namespace {

namespace ctx = boost::context::detail;

constexpr int kWarp = 32;
constexpr unsigned kMaxThreads = 1024;              // per block
constexpr std::size_t kMaxShared = 227 * 1024;      // static and dynamic together, sm_90
constexpr std::size_t kMaxStaticShared = 48 * 1024;
#if defined(SHIM_TSAN)
constexpr std::size_t kStack = 1024 * 1024;         // of a fiber; ThreadSanitizer writes its reports on it
#else
constexpr std::size_t kStack = 128 * 1024;          // of a fiber; pages are touched on use
#endif

Schedule the_schedule;
std::string the_failure;
std::mutex failure_mutex;
std::atomic<std::uint64_t> num_launches, num_blocks, num_threads, num_switches;

/// A barrier to leave out, from the environment.
struct LeftOut {
    std::string file;
    int line = 0;
    std::atomic<std::uint64_t> times = 0;
    LeftOut() {
        const char* text = std::getenv("MOEPLAN_SHIM_LEAVE_OUT");
        if (!text) return;
        const std::string place = text;
        const std::size_t colon = place.rfind(':');
        if (colon == std::string::npos || (line = std::atoi(place.c_str() + colon + 1)) < 1) {
            std::fprintf(stderr, "MOEPLAN_SHIM_LEAVE_OUT is %s, expected a file and a line: norm.cu:61\n", text);
            std::exit(2);
        }
        file = "/" + place.substr(0, colon);
    }
    bool is(Site site) {
        if (site.line != line || !std::string_view(site.file).ends_with(file)) return false;
        ++times;
        return true;
    }
};
LeftOut left_out;

void fill_ones(void* p, std::size_t bytes) {        // a loop of its own: memset is intercepted and would count as a write
    auto* c = static_cast<volatile unsigned char*>(p);
    std::size_t i = 0;
    for (; i + 8 <= bytes; i += 8) *reinterpret_cast<volatile std::uint64_t*>(c + i) = ~std::uint64_t{0};
    for (; i < bytes; ++i) c[i] = 0xff;
}

class Lock {
  public:
    explicit Lock(std::atomic_flag& flag) : flag_(flag) {
        while (flag_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
    }
    ~Lock() { flag_.clear(std::memory_order_release); }

  private:
    std::atomic_flag& flag_;
};

/// Stacks, and the sanitizer's names for threads, are kept between launches: making one costs more than a small kernel.
struct Reserve {
    std::atomic_flag busy = ATOMIC_FLAG_INIT;       // a lock that ThreadSanitizer does not see: it must not order two workers
    std::vector<char*> stacks;
    std::vector<void*> tsan_fibers;
    char* stack() {
        const Lock lock(busy);
        if (stacks.empty()) {
            void* p = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (p == MAP_FAILED) std::abort();
            return static_cast<char*>(p);
        }
        char* s = stacks.back();
        stacks.pop_back();
        return s;
    }
    void give_back(const std::vector<char*>& s) {
        const Lock lock(busy);
        stacks.insert(stacks.end(), s.begin(), s.end());
    }
};
Reserve& reserve() {
    static Reserve& r = *new Reserve;               // outlives every worker
    return r;
}

enum class State { unstarted, ready, at_barrier, at_collective, ended };

struct CudaThread {
    Here here;
    State state = State::unstarted;
    ctx::fcontext_t context = nullptr;
    char* stack = nullptr;
    Site site{"", 0};
    // its part in a warp collective
    Collective kind = Collective::sync;
    unsigned mask = 0;
    std::uint64_t value = 0, result = 0;
    int source = 0;
    void* order_token = nullptr;                    // acquired when it goes on
    void* tsan_fiber = nullptr;
    void* asan_fake_stack = nullptr;
};

struct Rendezvous { unsigned arrived = 0, generation = 0; char tokens[2]; };

/// One OS thread's share of a launch: runs blocks one after the other.
class Worker {
  public:
    Worker(const char* name, Index3 grid, Index3 block, std::size_t dynamic_bytes, const std::function<void()>& body, int index)
        : name_(name), grid_(grid), block_(block), body_(body), dynamic_bytes_(dynamic_bytes), index_(index) {
        num_threads_ = block.x * block.y * block.z;
        threads_.resize(num_threads_);
        rendezvous_.resize((num_threads_ + kWarp - 1) / kWarp * kWarp);
        order_.resize(num_threads_);
        ready_.resize(num_threads_);
        random_ = the_schedule.seed * 0x9E3779B97F4A7C15ull + 0x1234567ull * static_cast<unsigned>(index + 1);
#if defined(SHIM_TSAN)
        {
            const Lock lock(reserve().busy);
            auto& spare = reserve().tsan_fibers;
            for (auto& t : threads_) {
                if (spare.empty()) spare.push_back(__tsan_create_fiber(0));
                t.tsan_fiber = spare.back();
                spare.pop_back();
            }
        }
        arena_ = static_cast<char*>(mmap(nullptr, 2 * kMaxShared, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
#endif
    }
    ~Worker() {
#if defined(SHIM_TSAN)
        {
            const Lock lock(reserve().busy);
            for (auto& t : threads_) reserve().tsan_fibers.push_back(t.tsan_fiber);
        }
        munmap(arena_, 2 * kMaxShared);
#else
        std::free(dynamic_);
        for (auto& a : arrays_) std::free(a.data);
#endif
        reserve().give_back(free_stacks_);
    }

    /// @return false if the block failed; failure() is set
    bool run_block(Index3 block);

    // called from fibers
    void sync_threads(Site);
    std::uint64_t collective(Collective, unsigned mask, std::uint64_t value, int source, Site);
    void* dynamic_shared();
    void* shared_array(const void* key, std::size_t bytes);
    /// A failure of the running thread takes three steps, so that its text belongs to the scheduler (for ThreadSanitizer) and no
    /// string is alive (for LeakSanitizer) when the fiber is abandoned.
    void leave_thread();
    void note(const std::string& what);
    [[noreturn]] void stop();
    int running() const { return running_; }

  private:
    struct Array { const void* key; void* data; std::size_t bytes; bool filled; };

    static void enter(ctx::transfer_t);
    int next_unstarted();
    int next_ready();
    std::uint64_t draw();
        void resume(int thread);
    void yield();
    void after_switch_in(CudaThread&);
    void make_ready(int thread) {
        threads_[thread].state = State::ready;
        ready_[(ready_head_ + num_ready_++) % num_threads_] = thread;
    }
    void complete(int first_lane, unsigned mask);
    void* take_bytes(std::size_t bytes);
    std::string who_waits() const;
    void record_failure(const std::string& what);

    const char* name_;
    Index3 grid_, block_, at_{0, 0, 0};
    const std::function<void()>& body_;
    std::size_t dynamic_bytes_, static_bytes_ = 0;
    int index_, running_ = -1;
    unsigned num_threads_ = 0, started_ = 0, num_ended_ = 0, num_at_barrier_ = 0;
    Site barrier_site_{"", 0};
    unsigned barrier_phase_ = 0;
    std::vector<CudaThread> threads_;
    std::vector<Rendezvous> rendezvous_;            // [thread]: indexed by the lowest lane of the mask
    std::vector<int> order_, ready_;                // ready_: a ring, never allocated from a fiber
    unsigned ready_head_ = 0, num_ready_ = 0;
    std::vector<char*> free_stacks_;
    std::vector<Array> arrays_;
    void* dynamic_ = nullptr;
    ctx::fcontext_t scheduler_ = nullptr;
    bool failed_ = false;
    std::uint64_t random_ = 1, switches_ = 0;
    char barrier_tokens_[2], begin_token_ = 0, end_token_ = 0;
#if defined(SHIM_TSAN)
    void* main_fiber_ = nullptr;
    char* arena_ = nullptr;
    std::size_t arena_used_ = 0;
#endif
#if defined(__SANITIZE_ADDRESS__)
    const void* scheduler_bottom_ = nullptr;
    std::size_t scheduler_size_ = 0;
    void* scheduler_fake_ = nullptr;
#endif
};

thread_local Worker* worker = nullptr;

inline void happens_before([[maybe_unused]] void* token) {
#if defined(SHIM_TSAN)
    __tsan_release(token);
#endif
}
inline void happens_after([[maybe_unused]] void* token) {
#if defined(SHIM_TSAN)
    __tsan_acquire(token);
#endif
}

std::uint64_t Worker::draw() {                      // splitmix64
    std::uint64_t z = (random_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

int Worker::next_unstarted() { return started_ < num_threads_ ? order_[started_++] : -1; }

int Worker::next_ready() {
    if (num_ready_ == 0) return -1;
    const auto at = [&](unsigned i) -> int& { return ready_[(ready_head_ + i) % num_threads_]; };
    if (the_schedule.order == Order::reverse) return at(--num_ready_);
    if (the_schedule.order == Order::random) std::swap(at(0), at(draw() % num_ready_));
    const int t = at(0);
    ready_head_ = (ready_head_ + 1) % num_threads_;
    --num_ready_;
    return t;
}

void Worker::after_switch_in(CudaThread& t) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(t.asan_fake_stack, &scheduler_bottom_, &scheduler_size_);
#endif
    (void)t;
}

void Worker::enter(ctx::transfer_t from) {
    Worker& w = *worker;
    w.scheduler_ = from.fctx;
    w.after_switch_in(w.threads_[w.running_]);
    for (;;) {
        happens_after(&w.begin_token_);
        w.body_();
        CudaThread& t = w.threads_[w.running_];
        happens_before(&w.end_token_);
        t.state = State::ended;
        ++w.num_ended_;
#if !defined(SHIM_TSAN)
        // The stack goes to the next thread at once, so that kernels without barriers never switch. Not under
        // ThreadSanitizer: two unordered threads on one stack would be a race of their locals.
        const bool start_another = the_schedule.order != Order::random || (w.draw() & 1);
        if (const int next = start_another ? w.next_unstarted() : -1; next >= 0) {
            w.threads_[next].stack = t.stack;
            t.stack = nullptr;
            w.running_ = next;
            here = &w.threads_[next].here;
            continue;
        }
#endif
        w.yield();
        assert(!"an ended thread was resumed");
    }
}

void Worker::yield() {
    CudaThread& t = threads_[running_];
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(t.state == State::ended ? nullptr : &t.asan_fake_stack, scheduler_bottom_, scheduler_size_);
#endif
#if defined(SHIM_TSAN)
    __tsan_switch_to_fiber(main_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
    const ctx::transfer_t back = ctx::jump_fcontext(scheduler_, nullptr);
    scheduler_ = back.fctx;
    after_switch_in(t);
    if (t.order_token) happens_after(t.order_token), t.order_token = nullptr;
}

void Worker::resume(int index) {
    CudaThread& t = threads_[index];
    running_ = index;
    here = &t.here;
    if (t.state == State::unstarted) {
        if (free_stacks_.empty()) free_stacks_.push_back(reserve().stack());
        t.stack = free_stacks_.back();
        free_stacks_.pop_back();
        t.context = ctx::make_fcontext(t.stack + kStack, kStack, &Worker::enter);
        t.asan_fake_stack = nullptr;
    }
    t.state = State::ready;
    ++switches_;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&scheduler_fake_, t.stack, kStack);
#endif
#if defined(SHIM_TSAN)
    __tsan_switch_to_fiber(t.tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
    const ctx::transfer_t back = ctx::jump_fcontext(t.context, nullptr);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(scheduler_fake_, nullptr, nullptr);
#endif
    CudaThread& now = threads_[running_];           // the stack may have been handed on
    now.context = back.fctx;
#if !defined(SHIM_TSAN)                             // there, stacks come back when the block is over
    if (now.state == State::ended && now.stack) free_stacks_.push_back(now.stack), now.stack = nullptr;
#endif
}

bool Worker::run_block(Index3 block) {
    at_ = block;
#if defined(SHIM_TSAN)
    main_fiber_ = __tsan_get_current_fiber();
#endif
    started_ = num_ended_ = num_at_barrier_ = 0;
    barrier_phase_ = 0;
    failed_ = false;
    ready_head_ = num_ready_ = 0;
    std::iota(order_.begin(), order_.end(), 0);
    if (the_schedule.order == Order::reverse) std::reverse(order_.begin(), order_.end());
    if (the_schedule.order == Order::random)
        for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[draw() % i]);
    for (unsigned i = 0; i < num_threads_; ++i) {
        CudaThread& t = threads_[i];
        t.here = {{i % block_.x, i / block_.x % block_.y, i / (block_.x * block_.y)}, block, block_, grid_};
        t.state = State::unstarted;
        t.order_token = nullptr;
    }
    for (auto& r : rendezvous_) r.arrived = 0;
    for (auto& a : arrays_) fill_ones(a.data, a.bytes), a.filled = true;
    if (dynamic_bytes_ && !dynamic_) dynamic_ = take_bytes(dynamic_bytes_);
    if (dynamic_) fill_ones(dynamic_, dynamic_bytes_);
    happens_after(&end_token_);
    happens_before(&begin_token_);

    while (!failed_ && num_ended_ < num_threads_) {
        int next;
        if (the_schedule.order == Order::random && num_ready_ > 0 && (draw() & 1))
            next = next_ready();
        else if ((next = next_unstarted()) < 0)
            next = next_ready();
        if (next < 0) {
            record_failure(who_waits());
            break;
        }
        resume(next);
    }
#if defined(SHIM_TSAN)
    for (auto& t : threads_)                        // threads that cannot go on: what they did is over, too
        if (t.state != State::ended && t.state != State::unstarted) {
            __tsan_switch_to_fiber(t.tsan_fiber, __tsan_switch_to_fiber_no_sync);
            __tsan_release(&end_token_);
            __tsan_switch_to_fiber(main_fiber_, __tsan_switch_to_fiber_no_sync);
        }
#endif
    happens_after(&end_token_);
    num_blocks += 1;
    num_threads += num_threads_;
    num_switches += switches_;
    switches_ = 0;
    for (auto& t : threads_)                        // fibers that cannot go on are abandoned
        if (t.stack) {
#if defined(__SANITIZE_ADDRESS__)
            ASAN_UNPOISON_MEMORY_REGION(t.stack, kStack);
#endif
            free_stacks_.push_back(t.stack), t.stack = nullptr;
        }
    return !failed_;
}

void Worker::record_failure(const std::string& what) {
    failed_ = true;
    char at[64];
    std::snprintf(at, sizeof at, ", block (%u,%u,%u): ", at_.x, at_.y, at_.z);
    const std::lock_guard lock(failure_mutex);
    if (the_failure.empty()) the_failure = name_ + std::string(at) + what;
}

void Worker::leave_thread() {
#if defined(SHIM_TSAN)
    __tsan_switch_to_fiber(main_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
}

void Worker::note(const std::string& what) { record_failure(what + " (thread " + std::to_string(running_) + ")"); }

void Worker::stop() {
    threads_[running_].state = State::at_barrier;
    yield();
    std::abort();                                   // a failed block is never resumed
}

std::string file_and_line(Site s) {
    std::string file = s.file;
    return file.substr(file.rfind('/') + 1) + ":" + std::to_string(s.line);
}

std::string Worker::who_waits() const {
    // Runs of threads in the same state, in words.
    std::string text;
    for (unsigned i = 0; i < num_threads_;) {
        const auto& t = threads_[i];
        unsigned j = i + 1;
        while (j < num_threads_ && threads_[j].state == t.state &&
               (t.state == State::ended || (threads_[j].site.line == t.site.line && threads_[j].mask == t.mask))) ++j;
        if (text.size() < 400) {
            text += (text.empty() ? "threads " : ", ") + std::to_string(i) + "…" + std::to_string(j - 1);
            if (t.state == State::ended) text += " have ended";
            if (t.state == State::at_barrier) text += " wait at the barrier " + file_and_line(t.site);
            if (t.state == State::at_collective) {
                char mask[16];
                std::snprintf(mask, sizeof mask, "%08x", t.mask);
                text += " wait for the lanes of mask " + std::string(mask) + " at " + file_and_line(t.site);
            }
        }
        i = j;
    }
    return text;
}

void Worker::sync_threads(Site site) {
    if (left_out.is(site)) return;
    const int self = running_;
    CudaThread& t = threads_[self];
    if (num_at_barrier_ == 0) barrier_site_ = site;
    if (site.line != barrier_site_.line || std::string_view(site.file) != barrier_site_.file)
        { leave_thread(), note("divergent barrier: some threads are at " + file_and_line(barrier_site_) + ", others at " + file_and_line(site)); stop(); }
    void* token = &barrier_tokens_[barrier_phase_ & 1];
    happens_before(token);
    t.order_token = token;
    t.site = site;
    t.mask = 0;
    t.state = State::at_barrier;
    if (++num_at_barrier_ == num_threads_) {
        num_at_barrier_ = 0;
        ++barrier_phase_;
        for (unsigned i = 0; i < num_threads_; ++i) make_ready(static_cast<int>(i));
    }
    yield();
}

void Worker::complete(int first, unsigned mask) {
    const int base = first / kWarp * kWarp;
    const Collective kind = threads_[first].kind;
    unsigned ballot = 0;
    if (kind == Collective::ballot)
        for (unsigned m = mask; m; m &= m - 1)
            if (threads_[base + __builtin_ctz(m)].value) ballot |= m & -m;
    for (unsigned m = mask; m; m &= m - 1) {
        CudaThread& t = threads_[base + __builtin_ctz(m)];
        switch (kind) {
            case Collective::sync: break;
            case Collective::ballot: t.result = ballot; break;
            case Collective::shuffle: t.result = threads_[t.source < 0 ? &t - threads_.data() : base + t.source].value; break;
            case Collective::match:
                t.result = 0;
                for (unsigned o = mask; o; o &= o - 1)
                    if (threads_[base + __builtin_ctz(o)].value == t.value) t.result |= o & -o;
                break;
        }
    }
}

std::uint64_t Worker::collective(Collective kind, unsigned mask, std::uint64_t value, int source, Site site) {
    if (kind == Collective::sync && left_out.is(site)) return 0;
    const int self = running_, lane = self % kWarp, base = self - lane;
    if (!(mask >> lane & 1)) { leave_thread(), note("lane " + std::to_string(lane) + " is not in its own mask at " + file_and_line(site)); stop(); }
    if (kind == Collective::shuffle && source >= 0 && (source >= kWarp || !(mask >> source & 1)))
        { leave_thread(), note("a shuffle reads lane " + std::to_string(source) + ", which is outside its mask, at " + file_and_line(site)); stop(); }
    const unsigned exists = num_threads_ - base >= kWarp ? ~0u : (1u << (num_threads_ - base)) - 1;
    if (mask & ~exists) { leave_thread(), note("the mask names lanes that the block does not have at " + file_and_line(site)); stop(); }
    CudaThread& t = threads_[self];
    t.kind = kind, t.mask = mask, t.value = value, t.source = source, t.site = site;
    const int first = base + __builtin_ctz(mask);
    Rendezvous& r = rendezvous_[first];
    for (unsigned m = r.arrived; m; m &= m - 1) {
        const CudaThread& other = threads_[base + __builtin_ctz(m)];
        if (other.mask != mask || other.kind != kind)
            { leave_thread(), note("lanes meet in different collectives: " + file_and_line(other.site) + " and " + file_and_line(site)); stop(); }
        break;                                      // those that arrived agree with each other
    }
    r.arrived |= 1u << lane;
    void* token = nullptr;
    if (kind == Collective::sync) {                 // the only warp collective that orders memory accesses
        token = &r.tokens[r.generation & 1];
        happens_before(token);
    }
    if (r.arrived == mask) {
        r.arrived = 0;
        ++r.generation;
        complete(first, mask);
        for (unsigned m = mask & ~(1u << lane); m; m &= m - 1) make_ready(base + __builtin_ctz(m));
        if (token) happens_after(token);
        return t.result;
    }
    t.order_token = token;
    t.state = State::at_collective;
    yield();
    return t.result;
}

void* Worker::take_bytes(std::size_t bytes) {
#if defined(SHIM_TSAN)
    // From an arena that the sanitizer has not seen allocated: its own malloc counts as a write by whoever calls it.
    void* p = arena_ + arena_used_;
    arena_used_ += (bytes + 15) / 16 * 16;
    return p;
#else
    return std::malloc(bytes);                      // exactly as long as asked, so that AddressSanitizer sees an overrun
#endif
}

void* Worker::dynamic_shared() {
    if (!dynamic_) { leave_thread(), note("the kernel reads dynamic shared memory, but its launch gave it none"); stop(); }
    return dynamic_;
}

void* Worker::shared_array(const void* key, std::size_t bytes) {
    for (const auto& a : arrays_)
        if (a.key == key) return a.data;
    static_bytes_ += bytes;
    if (static_bytes_ > kMaxStaticShared || static_bytes_ + dynamic_bytes_ > kMaxShared)
        { leave_thread(), note("more shared memory than a block may have: " + std::to_string(static_bytes_) + " static and " +
             std::to_string(dynamic_bytes_) + " dynamic bytes"); stop(); }
    void* p = take_bytes(bytes);
    fill_ones(p, bytes);
    arrays_.push_back({key, p, bytes, true});
    return p;
}

}  // namespace

std::optional<std::uint64_t> times_left_out() {
    if (left_out.line == 0) return {};
    return left_out.times.load();
}

void set_schedule(const Schedule& s) { the_schedule = s; }
Schedule schedule() { return the_schedule; }
const std::string& failure() { return the_failure; }
void clear_failure() { the_failure.clear(); }
Work work_done() { return {num_launches, num_blocks, num_threads, num_switches}; }

int launch(const char* name, Index3 grid, Index3 block, std::size_t dynamic_bytes, std::size_t dynamic_limit,
           const std::function<void()>& thread) {
    const std::uint64_t num_threads_asked = std::uint64_t{block.x} * block.y * block.z;
    const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
    ++num_launches;
    const auto refuse = [&](const std::string& why) {
        const std::lock_guard lock(failure_mutex);
        the_failure = std::string(name) + ": " + why;
        return 9;
    };
    if (!blocks || !num_threads_asked) return refuse("a launch with no blocks or no threads");
    if (num_threads_asked > kMaxThreads || block.z > 64) return refuse(std::to_string(num_threads_asked) + " threads in a block");
    if (grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) return refuse("a grid larger than a GPU takes");
    if (dynamic_bytes > dynamic_limit || dynamic_bytes > kMaxShared)
        return refuse(std::to_string(dynamic_bytes) + " bytes of dynamic shared memory, allowed are " + std::to_string(dynamic_limit));

    clear_failure();                                // of a launch before: the first worker that fails says why
    const int workers = static_cast<int>(std::min<std::uint64_t>(std::max(1, the_schedule.workers), blocks));
    std::atomic<bool> ok = true;
    // Made before the OS threads and ended after them: two workers share nothing that would order one before the other.
    std::vector<std::unique_ptr<Worker>> all;
    for (int i = 0; i < workers; ++i) all.push_back(std::make_unique<Worker>(name, grid, block, dynamic_bytes, thread, i));
    const auto share = [&](int index) {
        Worker& w = *all[index];
        worker = &w;
        // Worker w takes blocks w, w + workers, …: neighbouring blocks, which are the likeliest to collide, run on different ones.
        const std::uint64_t count = (blocks - index + workers - 1) / workers;
        for (std::uint64_t n = 0; n < count && ok; ++n) {
            const std::uint64_t i = the_schedule.order == Order::reverse ? count - 1 - n : n, b = index + i * workers;
            if (!w.run_block({static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                              static_cast<unsigned>(b / grid.x / grid.y)}))
                ok = false;
        }
        worker = nullptr;
        here = nullptr;
    };
    if (workers == 1) {
        share(0);
    } else {
        std::vector<std::thread> pool;
        for (int i = 0; i < workers; ++i) pool.emplace_back(share, i);
        for (auto& t : pool) t.join();
    }
    return ok ? 0 : 719;
}

void sync_threads(Site site) { worker->sync_threads(site); }
std::uint64_t warp_collective(Collective kind, unsigned mask, std::uint64_t value, int source, Site site) {
    return worker->collective(kind, mask, value, source, site);
}
void* dynamic_shared() { return worker->dynamic_shared(); }
void* shared_array(const void* key, std::size_t bytes) { return worker->shared_array(key, bytes); }
int lane() { return worker->running() % kWarp; }

}  // namespace shim
