// What the host hands to every kernel, and how a block finds its work. Mirrored by kernels/cuda/launch.py.
// Needs csrc/tile.h, number.h and header.h before it: build.py puts the files one after another, none includes another.
#pragma once
namespace zp {
constexpr u32 THREADS = 128;          // of a block that works on one tile
constexpr u32 PER = TILE / THREADS;   // elements of a thread: one word of every bit plane
constexpr u32 WARPS = THREADS / 32;
constexpr u32 SEGMENT = 32;           // tiles that one block of `place` finishes
constexpr u32 WHOLE = 0xffffffffu;    // mask of a full warp
constexpr u32 UPLOAD = 100;           // table entries that one launch carries in its parameters (4 KiB at most)

struct Chunk {
    u64 address, n;                   // of the elements: read by encode, written by decode
    u64 static_at;                    // of its frame among the static regions of one sender
    u32 first_tile, first_segment;    // running numbers over all chunks; a chunk has one segment at least
};
struct FrameView {
    u8 *bytes, *dynamic;              // its regions
    u64 dynamic_bytes, checksum;
};
struct Args {
    u32 chunks, tiles, senders, slack;
    int base, shift;                  // base of every tile, or -1: each tile finds its own and adds `shift`
    u32 checksummed, measured;        // measured: `measure` finds shift or ranking of each chunk
    u32 packed, unused;               // packed: dynamic regions lie back to back, else at `offsets`
    u8 ranking[16];
    u8 *fixed, *dynamic;              // static regions of sender 0, 1, …, `stride` bytes each; dynamic regions
    u64 stride, dynamic_bytes;
    Chunk* table;
    u64* offsets;                     // per frame
    FrameView* frames;
    u8* rankings;                     // 16 bytes per frame
    int* shifts;                      // per chunk
    u32 *spills, *tallies;            // per tile: dynamic bytes; escapes below, above (13 bits each), stored
    u64 *segment_at, *totals;         // dynamic bytes of the chunk before a segment; of a chunk
    u8* scratch;                      // per tile `spill_room` bytes
    i64* sizes;                       // per chunk: dynamic bytes, escapes below, escapes above, stored tiles
    u64* sums;                        // per frame: checksum found
    u64* status;                      // lowest frame << 32 | (tile + 1) << 8 | field that is wrong; all ones: none
};
struct Upload {
    u32 first, count;
    Chunk chunks[UPLOAD];
    u64 offsets[UPLOAD];
};

ZP_HD u32 spill_room(int c, int d, u32 slack) { return (stored_spill(c, d, slack, TILE) + 15) & ~15u; }
ZP_HD u32 segments(u64 n) { return n ? (u32)((tiles(n) + SEGMENT - 1) / SEGMENT) : 1; }

__device__ inline u32 lane() { return threadIdx.x % 32; }
__device__ inline u32 warp() { return threadIdx.x / 32; }
__device__ inline u32 inclusive(u32 v) {  // running sum over the lanes of a warp
    for (u32 d = 1; d < 32; d *= 2) {
        u32 u = __shfl_up_sync(WHOLE, v, d);
        if (lane() >= d) v += u;
    }
    return v;
}
__device__ inline u64 warp_sum(u64 v) {
    for (u32 d = 16; d; d /= 2) v += __shfl_xor_sync(WHOLE, v, d);
    return v;
}
// The chunk whose tiles (or segments) hold number `i`: the last that starts at or before it.
template <class Start> __device__ u32 chunk_of(u32 chunks, u32 i, Start start) {
    u32 starts = 0;
#pragma unroll 1
    for (u32 from = 0; from < chunks; from += 32)
        starts += __popc(__ballot_sync(WHOLE, from + lane() < chunks && start(from + lane()) <= i));
    return starts - 1;
}
__device__ inline void report(const Args& a, u64 frame, u64 tile_plus_one, int field) {
    atomicMin(a.status, frame << 32 | tile_plus_one << 8 | (u64)field);
}
}  // namespace zp
