// CUDA's built-ins on the CPU, as far as the codec's kernels use them: one block at a time, a fiber per thread, and a
// scheduler that picks the next warp at random from a seed. It stops a launch, and says where, when
//   - a lane calls a warp collective without being in its mask, or lanes of a warp meet in different ones (divergence);
//   - a collective or barrier waits for lanes that have left the kernel, or all wait (deadlock);
//   - threads of a block meet in different barriers;
//   - shared memory is larger than what a block has on every architecture, or was written past its end.
// Shared memory starts as random bytes. What it cannot show: memory order between blocks, races that every schedule hides,
// missing __syncwarp between lanes that run in lockstep here, and speed.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)0)
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __builtin_assume(x)

struct Dim { unsigned x, y, z; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static Dim threadIdx, blockIdx, blockDim, gridDim;

namespace shim {
constexpr size_t STACK = 64 << 10, SHARED = 48 << 10, MARGIN = 256;
enum Kind { NONE, SHUFFLE, VOTE, REDUCE, SYNC_WARP };
const char* const NAMES[] = {"", "shuffle", "vote", "reduction", "__syncwarp"};

struct Fiber {
    void* stack;
#if defined(__x86_64__)
    void* sp;
#else
    ucontext_t context;
#endif
    bool done, waiting;
};
struct Warp {
    int kind, line;
    unsigned mask, arrived, round;
    uint64_t value[2][32];  // of this round and the one before: a lane may still read that one
};

static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static unsigned now, live, at_barrier, barrier_line;
static uint64_t seed;
static std::string failure;
alignas(128) static unsigned char memory[SHARED + MARGIN];
static size_t shared_bytes;
static void (*entry)();
#if defined(__x86_64__)
static void* home;
#else
static ucontext_t home;
#endif

inline uint64_t random() {  // xorshift64*
    seed ^= seed >> 12, seed ^= seed << 25, seed ^= seed >> 27;
    return seed * 2685821657736338717ull;
}

#if defined(__x86_64__)
// Saves what a call must keep, and goes on where `to` was left. 9 ns; swapcontext takes 280, most of it a system call.
extern "C" void zp_shim_switch(void** from, void* to);
asm(R"(
.text
.type zp_shim_switch,@function
zp_shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size zp_shim_switch, .-zp_shim_switch
)");
#endif
inline void leave() {  // to the scheduler
#if defined(__x86_64__)
    zp_shim_switch(&fibers[now].sp, home);
#else
    swapcontext(&fibers[now].context, &home);
#endif
}
[[noreturn]] inline void stop(const std::string& what) {
    if (failure.empty()) failure = what + " (block " + std::to_string(blockIdx.x) + ", thread " + std::to_string(now) + ")";
    for (;;) leave();
}
inline void wait() {
    fibers[now].waiting = true;
    leave();
}
inline void wake_all_waiting(unsigned first, unsigned mask) {
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1) fibers[first + i].waiting = false;
}
inline void start() {
    entry();
    fibers[now].done = true;
    live--;
    for (;;) leave();
}

inline unsigned live_lanes(unsigned first) {
    unsigned mask = 0;
    for (unsigned i = 0; i < 32 && first + i < fibers.size(); i++) mask |= (unsigned)!fibers[first + i].done << i;
    return mask;
}
// All lanes of `mask` bring a value; each goes on once all are there. Returns the values of the round.
inline const uint64_t* meet(int kind, int line, unsigned mask, uint64_t value) {
    Warp& w = warps[now / 32];
    const unsigned lane = now % 32, first = now / 32 * 32;
    auto where = [&] { return std::string(NAMES[kind]) + " in line " + std::to_string(line); };
    if (!(mask >> lane & 1)) stop(where() + ": lane is not in its own mask " + std::to_string(mask));
    if (mask & ~live_lanes(first)) stop(where() + ": mask names lanes that left or never were");
    if (w.arrived && (w.kind != kind || w.line != line || w.mask != mask))
        stop("divergent warp: " + where() + " meets " + NAMES[w.kind] + " in line " + std::to_string(w.line));
    w.kind = kind, w.line = line, w.mask = mask, w.arrived |= 1u << lane;
    const unsigned round = w.round;
    w.value[round & 1][lane] = value;
    if (w.arrived == mask) {
        w.arrived = 0, w.round++;
        wake_all_waiting(first, mask);
    } else {
        while (w.round == round) wait();
    }
    return w.value[round & 1];
}
inline void barrier(int line) {
    if (at_barrier && barrier_line != (unsigned)line) stop("threads of a block wait in different barriers: lines " + std::to_string(barrier_line) + " and " + std::to_string(line));
    barrier_line = (unsigned)line;
    if (++at_barrier == live) {
        at_barrier = 0;
        for (Fiber& f : fibers) f.waiting = false;
    } else {
        wait();
    }
}
inline void* shared(size_t bytes) {
    if (bytes > SHARED) stop("more shared memory than a block has without asking: " + std::to_string(bytes));
    if (!shared_bytes) ASAN_POISON_MEMORY_REGION(memory + bytes, sizeof memory - bytes);
    shared_bytes = bytes;
    return memory;
}

inline void run_block(unsigned threads) {
    ASAN_UNPOISON_MEMORY_REGION(memory, sizeof memory);
    uint64_t poison = random() | 0x8000800080008000ull;
    for (size_t i = 0; i < sizeof memory; i += 8) std::memcpy(memory + i, &poison, 8);
    shared_bytes = 0, at_barrier = 0, live = threads;
    if (fibers.size() < threads)
        for (size_t i = fibers.size(); i < threads; i++) fibers.push_back({aligned_alloc(64, STACK)});
    static std::vector<Fiber> spare;
    while (fibers.size() > threads) spare.push_back(fibers.back()), fibers.pop_back();
    warps.assign((threads + 31) / 32, Warp());
    for (Fiber& f : fibers) {
        ASAN_UNPOISON_MEMORY_REGION(f.stack, STACK);
        f.done = f.waiting = false;
#if defined(__x86_64__)
        void** top = (void**)((char*)f.stack + STACK) - 2;
        *top = (void*)start;
        f.sp = top - 6;
#else
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack, f.context.uc_stack.ss_size = STACK;
        makecontext(&f.context, start, 0);
#endif
    }
    // A random warp runs for a random while, its lanes up or down: warps drift apart, and no order can be relied on.
    const unsigned all = (unsigned)warps.size();
    while (live && failure.empty()) {
        bool ran = false;
        const unsigned from = (unsigned)(random() % all);
        for (unsigned i = 0; i < all && !ran && failure.empty(); i++) {
            const unsigned first = (from + i) % all * 32, lanes = threads - first < 32 ? threads - first : 32;
            const bool down = random() & 1;
            for (unsigned steps = 1 + random() % 24, moved = 1; steps && moved && failure.empty(); steps--) {
                moved = 0;
                for (unsigned l = 0; l < lanes && failure.empty(); l++) {
                    const unsigned k = first + (down ? lanes - 1 - l : l);
                    Fiber& f = fibers[k];
                    if (f.done || f.waiting) continue;
                    ran = true, moved = 1, now = k, threadIdx = {k, 0, 0};
#if defined(__x86_64__)
                    zp_shim_switch(&home, f.sp);
#else
                    swapcontext(&home, &f.context);
#endif
                }
            }
        }
        if (!ran && failure.empty() && live) {
            now = 0;
            while (fibers[now].done) now++;
            const Warp& w = warps[now / 32];
            failure = "deadlock in block " + std::to_string(blockIdx.x) + ": " + std::to_string(at_barrier) + " of " + std::to_string(live) +
                      " threads at a barrier" + (w.arrived ? std::string(", others in a ") + NAMES[w.kind] + " in line " + std::to_string(w.line) : "");
        }
    }
    for (size_t i = shared_bytes; i < sizeof memory && failure.empty(); i += 8) {
        ASAN_UNPOISON_MEMORY_REGION(memory, sizeof memory);
        size_t from = i, part = 8 - i % 8;
        if (std::memcmp(memory + from, (char*)&poison + i % 8, part)) failure = "write past the end of shared memory in block " + std::to_string(blockIdx.x);
        i -= i % 8;
    }
}

template <class T> uint64_t bits(T v) {
    uint64_t b = 0;
    std::memcpy(&b, &v, sizeof v);
    return b;
}
template <class T> T shuffle(int line, unsigned mask, T v, unsigned from) {
    uint64_t got = meet(SHUFFLE, line, mask, bits(v))[from % 32];
    if (!(mask >> from % 32 & 1)) stop("shuffle in line " + std::to_string(line) + " reads a lane outside its mask");
    T r;
    std::memcpy(&r, &got, sizeof r);
    return r;
}
template <class F> unsigned over_lanes(const uint64_t* v, unsigned mask, F f) {
    unsigned r = 0;
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1) r = f(r, (unsigned)v[i], i);
    return r;
}
inline unsigned ballot(int line, unsigned mask, bool p) {
    return over_lanes(meet(VOTE, line, mask, p), mask, [](unsigned r, unsigned v, unsigned i) { return r | (v & 1) << i; });
}
inline unsigned reduce_add(int line, unsigned mask, unsigned x) {
    return over_lanes(meet(REDUCE, line, mask, x), mask, [](unsigned r, unsigned v, unsigned) { return r + v; });
}
inline unsigned reduce_or(int line, unsigned mask, unsigned x) {
    return over_lanes(meet(REDUCE, line, mask, x), mask, [](unsigned r, unsigned v, unsigned) { return r | v; });
}
template <class F> void launch(unsigned x, unsigned y, unsigned threads, F kernel) {
    static F* body;
    body = &kernel;
    entry = [] { (*body)(); };
    gridDim = {x, y, 1}, blockDim = {threads, 1, 1};
    for (unsigned j = 0; j < y; j++)
        for (unsigned i = 0; i < x && failure.empty(); i++) {
            blockIdx = {i, j, 0};
            run_block(threads);
        }
}
}  // namespace shim

#define __syncthreads() shim::barrier(__LINE__)
#define __syncwarp() ((void)shim::meet(shim::SYNC_WARP, __LINE__, ~0u, 0))
#define __shfl_sync(mask, v, from) shim::shuffle(__LINE__, mask, v, from)
#define __shfl_up_sync(mask, v, d) shim::shuffle(__LINE__, mask, v, threadIdx.x % 32 < (d) ? threadIdx.x % 32 : threadIdx.x % 32 - (d))
#define __shfl_xor_sync(mask, v, d) shim::shuffle(__LINE__, mask, v, threadIdx.x % 32 ^ (d))
#define __ballot_sync(mask, p) shim::ballot(__LINE__, mask, p)
#define __reduce_add_sync(mask, v) shim::reduce_add(__LINE__, mask, v)
#define __reduce_or_sync(mask, v) shim::reduce_or(__LINE__, mask, v)
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned s) { return (unsigned)(((uint64_t)high << 32 | low) >> (s & 31)); }
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 255) * (b >> i & 255);
    return c;
}
inline float __uint_as_float(unsigned x) { float f; std::memcpy(&f, &x, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned x; std::memcpy(&x, &f, 4); return x; }
template <class T> T atomicAdd(T* p, T v) { T old = *p; *p += v; return old; }
template <class T> T atomicOr(T* p, T v) { T old = *p; *p |= v; return old; }
template <class T> T atomicMin(T* p, T v) { T old = *p; if (v < old) *p = v; return old; }

#define ZP_PRMT
namespace zp {
inline unsigned prmt(unsigned a, unsigned b, unsigned select) {
    uint64_t from = (uint64_t)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        unsigned s = select >> (4 * i) & 15, byte = from >> (8 * (s & 7)) & 255;
        r |= (s & 8 ? (byte & 128 ? 255 : 0) : byte) << (8 * i);
    }
    return r;
}
}  // namespace zp
#define ZP_SHARED(type, name) type& name = *(type*)shim::shared(sizeof(type))
#define ZP_JOIN_(a, b, c) a##_##b##_##c
#define ZP_JOIN(a, b, c) ZP_JOIN_(a, b, c)
#define ZP_KERNEL(threads, blocks, name) static void ZP_JOIN(name, ZP_C, ZP_D)
