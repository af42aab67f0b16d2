// What is not one tile's work: the table of chunks, places in the dynamic region, headers, checksums.
#pragma once
namespace zp {
// One thread per entry; several launches fill a long table. Parameters of a launch need no copy, and a graph keeps them.
__device__ inline void upload(const Args& a, const Upload& u) {
    const u32 i = threadIdx.x;
    if (u.first == 0 && i == 0) *a.status = ~0ull;
    if (i >= u.count) return;
    if (u.first + i < a.chunks) {
        a.table[u.first + i] = u.chunks[i];
        for (u32 r = 0; r < 16; r++) a.rankings[16 * (u.first + i) + r] = a.ranking[r];
        a.shifts[u.first + i] = a.shift;
    }
    if (!a.packed) a.offsets[u.first + i] = u.offsets[i];
    if (a.checksummed) a.sums[u.first + i] = 0;
}

// Sums the dynamic bytes of a chunk's tiles: before each segment, and of all. One block per chunk.
struct LayoutShared { u64 spill[32], below[32], above[32], stored[32]; };
__device__ inline void layout(const Args& a, LayoutShared& s) {
    const Chunk k = a.table[blockIdx.x];
    const u32 count = (u32)tiles(k.n), per = (count + 1023) / 1024 * 32;  // of a warp, in tiles
    const u32 from = warp() * per < count ? warp() * per : count, to = count - from < per ? count : from + per;
    const u32 *spills = a.spills + k.first_tile, *tallies = a.tallies + k.first_tile;
    u64 spill = 0, below = 0, above = 0, stored = 0;
    for (u32 t = from + lane(); t < to; t += 32) {
        u32 tally = tallies[t];
        spill += spills[t], below += tally & 8191, above += (tally >> 13) & 8191, stored += tally >> 26;
    }
    spill = warp_sum(spill), below = warp_sum(below), above = warp_sum(above), stored = warp_sum(stored);
    if (lane() == 0) s.spill[warp()] = spill, s.below[warp()] = below, s.above[warp()] = above, s.stored[warp()] = stored;
    __syncthreads();
    u64 before = warp_sum(lane() < warp() ? s.spill[lane()] : 0);
    for (u32 t = from; t < to; t += SEGMENT) {
        if (lane() == 0) a.segment_at[k.first_segment + t / SEGMENT] = before;
        before += __reduce_add_sync(WHOLE, t + lane() < to ? spills[t + lane()] : 0);
    }
    if (warp() == 0) {
        spill = warp_sum(s.spill[lane()]), below = warp_sum(s.below[lane()]), above = warp_sum(s.above[lane()]), stored = warp_sum(s.stored[lane()]);
        if (lane() == 0) {
            a.totals[blockIdx.x] = spill;
            i64* out = a.sizes + 4 * blockIdx.x;
            out[0] = (i64)align_up(spill, ALIGN), out[1] = (i64)below, out[2] = (i64)above, out[3] = (i64)stored;
        }
    }
}

// Moves a segment's tiles to the dynamic region; the first segment of a chunk closes the frame too.
template <int C, int D> __device__ void place(const Args& a) {
    const u32 chunk = chunk_of(a.chunks, blockIdx.x, [&](u32 i) { return a.table[i].first_segment; });
    const Chunk k = a.table[chunk];
    const u32 segment = blockIdx.x - k.first_segment, count = (u32)tiles(k.n), t0 = segment * SEGMENT;
    u64 start = 0;
    for (u32 i = lane(); i < chunk; i += 32) start += align_up(a.totals[i], ALIGN);
    u8 *frame = a.fixed + k.static_at, *dynamic = a.dynamic + warp_sum(start);
    if (C != RAW && t0 < count) {
        const u64 before = a.segment_at[blockIdx.x];
        const u32 size = t0 + lane() < count ? a.spills[k.first_tile + t0 + lane()] : 0, in_segment = inclusive(size) - size;
        for (u32 i = warp(); i < SEGMENT; i += blockDim.x / 32) {
            const u32 spill = __shfl_sync(WHOLE, size, i), t = t0 + i;
            const u64 at = before + __shfl_sync(WHOLE, in_segment, i);
            if (!spill) continue;
            u8* slot = frame + slot_offset(C, D, a.slack, t);
            const u32 mode = ((const Record*)slot)->mode, m = tile_elements(k.n, t), body = body_bytes(C, D, a.slack, m);
            const u8* from = mode == STORED ? (const u8*)k.address + (u64)t * TILE * item_bytes(D) + body
                                            : a.scratch + (u64)(k.first_tile + t) * spill_room(C, D, a.slack);
            const u32 bytes = mode == STORED ? m * item_bytes(D) - body : spill;
            for (u32 w = lane(); w < spill / 4; w += 32) *(u32*)(dynamic + at + 4 * w) = word_at(from, bytes, w);
            if (lane() == 0) ((Record*)slot)->set_offset(at);
        }
    }
    if (segment) return;
    const u64 used = C == RAW ? HEADER + k.n * item_bytes(D)
                     : k.n ? slot_offset(C, D, a.slack, count - 1) + slot_bytes(C, D, a.slack, tile_elements(k.n, count - 1)) : HEADER;
    const u64 whole = static_size(C, D, a.slack, k.n), filled = a.totals[chunk], total = align_up(filled, ALIGN);
    for (u64 i = used + threadIdx.x; i < whole; i += blockDim.x) frame[i] = 0;
    for (u64 i = filled + threadIdx.x; i < total; i += blockDim.x) dynamic[i] = 0;
    if (threadIdx.x == 0) {
        *(Header*)frame = make_header(C, D, a.checksummed, a.slack, k.n, total, a.rankings + 16 * chunk);
        a.frames[chunk] = {frame, dynamic, total, 0};
    }
}

// Checks the headers against what the caller expects, and finds the dynamic regions. One warp.
template <int C, int D> __device__ void open(const Args& a) {
    const u32 frames = a.senders * a.chunks;
    u64 at = 0;
    bool lost = false;  // behind a wrong header nothing is where packed regions should be
    for (u32 from = 0; from < frames; from += 32) {
        const u32 f = from + lane();
        const Chunk k = a.table[f < frames ? f % a.chunks : 0];
        u8* bytes = a.fixed + (f < frames ? f / a.chunks : 0) * a.stride + k.static_at;
        const Header h = *(const Header*)bytes;
        Fault fault = f < frames ? header_fault(h) : Fault{OK, 0, 0};
        if (f < frames && !fault.field)
            fault.field = h.codec != C ? CODEC : h.dtype != D ? DTYPE : h.elements != k.n ? ELEMENTS : h.slack != a.slack ? SLACK : h.flags != a.checksummed ? FLAGS : OK;
        u64 size = f < frames && !fault.field ? h.dynamic_bytes : 0, upto = size;
        for (u32 d = 1; d < 32; d *= 2) {
            u64 u = __shfl_up_sync(WHOLE, upto, d);
            if (lane() >= d) upto += u;
        }
        const u64 start = a.packed ? at + upto - size : f < frames ? a.offsets[f] : 0;
        at += __shfl_sync(WHOLE, upto, 31);
        if (!fault.field && (start > a.dynamic_bytes || size > a.dynamic_bytes - start)) fault.field = LENGTH;
        const u32 wrong = __ballot_sync(WHOLE, fault.field != OK);
        if (f < frames) {
            const bool reachable = !a.packed || (!lost && !(wrong & below_bit(lane())));
            const bool good = !fault.field && reachable;
            if (fault.field && reachable) report(a, f, 0, fault.field);
            a.frames[f] = {good ? bytes : nullptr, a.dynamic + start, size, h.checksum};
            for (u32 r = 0; r < 16; r++) a.rankings[16 * f + r] = h.ranking[r / 2] >> (4 * (r % 2)) & 15;
        }
        lost = lost || wrong;
    }
}

// Adds up the words of frame blockIdx.y; sums need no order. Writer: into its header, where the field counted as zero.
__device__ inline void checksum(const Args& a, bool writing) {
    const u64 frame = blockIdx.y;
    const FrameView f = a.frames[frame];
    if (!f.bytes) return;
    const u64 words = ((const Header*)f.bytes)->static_bytes / 4, all = words + f.dynamic_bytes / 4;
    u64 sum = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += (u64)gridDim.x * blockDim.x)
        if (i / 2 != 6) sum += weighted(i < words ? ((const u32*)f.bytes)[i] : ((const u32*)f.dynamic)[i - words], i);
    sum = warp_sum(sum);
    if (lane() == 0) atomicAdd(writing ? (u64*)(f.bytes + 48) : a.sums + frame, sum);
}
}  // namespace zp
