// One block decodes one tile, or the same tile of every sender, and sums. Nothing is read or written outside the regions
// and outs whatever the frames hold: what cannot be right is reported in `status`, and the block stops.
#pragma once
namespace zp {
template <int C> struct DecodeShared {
    u32 scan[WARPS], level_total[3];
    u32 exponent_of[4];                        // bytes, by code
    u32 digits[3][2][TILE / 32 + 2];           // levels 2 to 4, each plane on whole words; a word past the end may be read
    u16 ahead[3][TILE / 32 + 1];               // how many go on before a word of a level
};
template <> struct DecodeShared<WINDOW> { u32 scan[WARPS]; };
template <> struct DecodeShared<RAW> {};

__device__ inline u32 bits_at(const u32* stream, u32 at) { return __funnelshift_r(stream[at / 32], stream[at / 32 + 1], at & 31); }

__device__ inline u32 level_count(const Record& r, u32 l) { return l == 0 ? r.count[0] : l == 1 ? r.count[1] : r.count[2]; }

// Copies the digits of levels 2 to 4 from byte `skip` of the variable part on to words of their own.
template <int C> __device__ void stage_digits(const u8* var, u32 bytes, u32 skip, const Record& r, DecodeShared<C>& s) {
#pragma unroll 1
    for (u32 stream = warp(); stream < 6; stream += WARPS) {
        const u32 l = stream / 2, length = level_count(r, l);
        u32 from = skip + (stream & 1 ? level_bytes(length) : 0);
        for (u32 k = 0; k < 2; k++) from += k < l ? 2 * level_bytes(r.count[k]) : 0;
#pragma unroll 1
        for (u32 w = lane(); w <= length / 32; w += 32) {
            u32 at = from + 4 * w, shift = 8 * (at & 3), q = at & ~3u;
            u32 low = q < bytes ? *(const u32*)(var + q) : 0, high = shift && q + 4 < bytes ? *(const u32*)(var + q + 4) : 0;
            u32 keep = length - 32 * w < 32 ? below_bit(length - 32 * w) : ~0u;
            s.digits[l][stream & 1][w] = __funnelshift_r(low, high, shift) & keep;
        }
    }
}
// For every word of levels 2 to 4: how many of the elements before it go on. A warp takes a level.
template <int C> __device__ void count_digits(const Record& r, DecodeShared<C>& s) {
    if (warp() >= 3) return;
    const u32 l = warp(), last = level_count(r, l) / 32;
    u32 total = 0;
#pragma unroll 1
    for (u32 from = 0; from <= last; from += 32) {
        const u32 w = from + lane(), here = w <= last ? __popc(s.digits[l][0][w] & s.digits[l][1][w]) : 0, upto = inclusive(here);
        if (w <= last) s.ahead[l][w] = (u16)(total + upto - here);
        total += __shfl_sync(WHOLE, upto, 31);
    }
    if (lane() == 0) s.level_total[l] = total;
}
// Digits of the elements `on` that reached level l (counted from 0 for level 2), `at` of the tile's before them.
// Returns which go on, and moves `at` to their place in the next level.
template <int C> __device__ u32 take_digits(const DecodeShared<C>& s, int l, u32 on, u32& at, u32 (&d)[2]) {
    const u32 w = at / 32, before = below_bit(at & 31);
    d[0] = bits_at(s.digits[l][0], at), d[1] = bits_at(s.digits[l][1], at);
    at = s.ahead[l][w] + __popc(s.digits[l][0][w] & s.digits[l][1][w] & before);
    if (l == 0) {
        Moves moves(on);
        d[0] = moves.unpack(d[0]), d[1] = moves.unpack(d[1]);
    } else {
        unpack_few(on, d[0], d[1]);
    }
    return d[0] & d[1];
}

// The thread's part of a tile of m elements. False, for the whole block, if the tile cannot be right.
template <int C, int D>
__device__ bool decode_tile(const Args& a, u64 frame, u32 t, u32 m, DecodeShared<C>& s, u32 (&raw)[words_of(D)]) {
    const FrameView f = a.frames[frame];
    __builtin_assume(__isGlobal(f.bytes) && __isGlobal(f.dynamic));
    const u32 first = threadIdx.x * PER;
    if constexpr (C == RAW) {
        load<D>(f.bytes + HEADER + (u64)t * TILE * item_bytes(D), first, m, raw);
        return true;
    } else {
        const u8 *slot = f.bytes + slot_offset(C, D, a.slack, t), *body = slot + RECORD;
        union { uint4 words; Record record; } u = {*(const uint4*)slot};
        const Record r = u.record;
        auto wrong = [&](int field) {
            if (threadIdx.x == 0) report(a, frame, t + 1, field);
            return false;
        };
        Fault fault = record_fault(C, D, a.slack, m, f.dynamic_bytes, r);
        if (fault.field) return wrong(fault.field);
        const u8* spilled = f.dynamic + r.offset();
        if (r.mode == STORED) {
            const u32 bytes = m * item_bytes(D), size = body_bytes(C, D, a.slack, m);
#pragma unroll
            for (u32 w = 0; w < words_of(D); w++) {
                u32 at = first * item_bytes(D) + 4 * w;
                raw[w] = at < size ? *(const u32*)(body + at) : at < bytes ? *(const u32*)(spilled + at - size) : 0;
            }
            return true;
        }
        const u32 valid = first >= m ? 0 : m - first >= 32 ? ~0u : below_bit(m - first);
        const u32 bytes = variable_bytes(D, m, r), lows = low_bytes(D, r.mode, m);
        const u8* var = bytes > a.slack ? spilled : body + fixed_bytes(C, D, m);
        u32 planes[4] = {0, 0, 0, 0};
        Parts<D> x = {};
        if (first < padded(m)) {
            if constexpr (rest_bytes(D)) {
                uint4 v = *(const uint4*)(body + first), w = *(const uint4*)(body + first + 16);
                x.rest[0] = v.x, x.rest[1] = v.y, x.rest[2] = v.z, x.rest[3] = v.w;
                x.rest[4] = w.x, x.rest[5] = w.y, x.rest[6] = w.z, x.rest[7] = w.w;
            }
            const u32* plane = (const u32*)(body + padded(m) * rest_bytes(D)) + threadIdx.x;
            const u32 stride = plane_bytes(m) / 4;
            for (int p = 0; p < (int)rest_planes(D); p++, plane += stride) x.planes[p] = *plane;
            for (int p = 0; p < (int)code_planes(C); p++, plane += stride) planes[p] = *plane;
        }
        if (D == FP32 && lows) {
#pragma unroll
            for (u32 i = 0; i < PER / 2; i++)  // `var` is a multiple of 4
                x.low[i] = first + PER <= m ? *(const u32*)(var + 2 * first + 4 * i) : word_at(var, lows, first / 2 + i);
        }

        // Where the thread's elements stand among those that go on to level 2 (or that escape).
        const u32 on = (C == WINDOW ? ~(planes[0] | planes[1] | planes[2]) : planes[0] & planes[1]) & valid;
        u32 at = inclusive(__popc(on)), total = 0, escapes;
        if (lane() == 31) s.scan[warp()] = at;
        at -= __popc(on);
        if constexpr (C == CASCADE) {
            stage_digits(var + (lows & ~3u), bytes - (lows & ~3u), lows & 3, r, s);
            if (threadIdx.x < 16) {
                const u32 digit = threadIdx.x % 4, symbol = digit < 3 ? a.rankings[16 * frame + threadIdx.x / 4 * 3 + digit] : ZERO_SYMBOL;
                set_byte(s.exponent_of, threadIdx.x, symbol == ZERO_SYMBOL ? 0 : r.base + symbol);
            }
        }
        __syncthreads();
        for (u32 w = 0; w < WARPS; w++) {
            if (w < warp()) at += s.scan[w];
            total += s.scan[w];
        }
        const u8* list = var + bytes - r.escapes;
        if constexpr (C == WINDOW) {
            if (total != r.escapes) return wrong(TILE_CODES);
            escapes = on;
            const u32 before = every_byte((r.base - 1) & 255);
            planes_to_codes(planes, x.e);
            for (int w = 0; w < 8; w++) x.e[w] = (x.e[w] + (before & ~HIGH)) ^ (before & HIGH);
        } else {
            count_digits(r, s);
            __syncthreads();
            if (total != r.count[0] || s.level_total[0] != r.count[1] || s.level_total[1] != r.count[2] || s.level_total[2] != r.escapes)
                return wrong(TILE_CODES);
            u32 d2[2], d3[2], d4[2];
            const u32 on3 = take_digits(s, 0, on, at, d2), on4 = take_digits(s, 1, on3, at, d3);
            escapes = take_digits(s, 2, on4, at, d4);
            u32 b[4];
            b[0] = (planes[0] & ~on) | (d2[0] & ~on3) | (d3[0] & ~on4) | d4[0];
            b[1] = (planes[1] & ~on) | (d2[1] & ~on3) | (d3[1] & ~on4) | d4[1];
            b[2] = (on & ~on3) | on4, b[3] = on3;
            const u32 table[4] = {s.exponent_of[0], s.exponent_of[1], s.exponent_of[2], s.exponent_of[3]};
            planes_to_pairs(b);
            for (int p = 0; p < 4; p++) {
                u32 low = look_up(table, b[p]), high = look_up(table, b[p] >> 16);
                x.e[2 * p] = prmt(low, high, 0x6420), x.e[2 * p + 1] = prmt(low, high, 0x7531);
            }
        }
        const u32 absent = C == WINDOW ? (r.base - 1) & 255 : 0;  // what stands in x.e for an escape so far
#pragma unroll 1
        for (u32 left = escapes; left; left &= left - 1) flip_byte(x.e, __ffs(left) - 1, list[at++] ^ absent);
        merge<D>(x, raw);
        return true;
    }
}

// False if the frame's header was wrong (`open` reported it) or its checksum does not fit.
__device__ inline bool sound(const Args& a, u64 frame) {
    const FrameView f = a.frames[frame];
    if (!f.bytes) return false;
    bool fits = !a.checksummed || a.sums[frame] == f.checksum;
    if (!fits && threadIdx.x == 0) report(a, frame, 0, CHECKSUM);
    return fits;
}

template <int C, int D> __device__ void decode(const Args& a, DecodeShared<C>& s) {
    const u32 chunk = chunk_of(a.chunks, blockIdx.x, [&](u32 i) { return a.table[i].first_tile; });
    const Chunk k = a.table[chunk];
    const u32 t = blockIdx.x - k.first_tile, m = tile_elements(k.n, t);
    u32 raw[words_of(D)];
    if (!sound(a, chunk) || !decode_tile<C, D>(a, chunk, t, m, s, raw)) return;
    store<D>((u8*)k.address + (u64)t * TILE * item_bytes(D), threadIdx.x * PER, m, raw);
}

// Sums in FP32, in the order of senders, and rounds once.
template <int C, int D> __device__ void decode_reduce(const Args& a, DecodeShared<C>& s) {
    constexpr u32 bits = 8 * item_bytes(D), in_word = 32 / bits;
    const u32 chunk = chunk_of(a.chunks, blockIdx.x, [&](u32 i) { return a.table[i].first_tile; });
    const Chunk k = a.table[chunk];
    const u32 t = blockIdx.x - k.first_tile, m = tile_elements(k.n, t);
    u32 raw[words_of(D)];
    float sum[PER];
    for (u32 sender = 0; sender < a.senders; sender++) {
        const u64 frame = (u64)sender * a.chunks + chunk;
        if (!sound(a, frame) || !decode_tile<C, D>(a, frame, t, m, s, raw)) return;
        for (u32 i = 0; i < PER; i++) {
            float v = __uint_as_float(widen<D>((raw[i / in_word] >> (i % in_word * bits)) & (~0u >> (32 - bits))));
            sum[i] = sender == 0 ? v : sum[i] + v;
        }
        __syncthreads();  // the next sender's tile takes over what is shared
    }
    for (u32 w = 0; w < words_of(D); w++) {
        raw[w] = 0;
        for (u32 i = 0; i < in_word; i++) raw[w] |= narrow<D>(__float_as_uint(sum[w * in_word + i])) << (i * bits);
    }
    store<D>((u8*)k.address + (u64)t * TILE * item_bytes(D), threadIdx.x * PER, m, raw);
}
}  // namespace zp
