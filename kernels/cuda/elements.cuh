// 32 elements of any dtype: from and to memory at any address, and split into exponents and rest as tile.h says.
#pragma once
namespace zp {
ZP_HD u32 words_of(int d) { return PER * item_bytes(d) / 4; }

// Bytes 4i to 4i + 3 of a buffer at any address, zeros past its end. Reads nothing outside it.
__device__ __noinline__ u32 word_at(const u8* p, u32 bytes, u32 i) {
    u32 at = 4 * i, shift = (u32)(u64)p & 3;
    if (at + 4 <= bytes && shift == 0) return *(const u32*)(p + at);
    if (at >= 4 && at + 8 <= bytes) {
        const u32* q = (const u32*)(p + at - shift);
        return __funnelshift_r(q[0], q[1], 8 * shift);
    }
    u32 word = 0;
    for (u32 b = 0; b < 4; b++)
        if (at + b < bytes) word |= (u32)p[at + b] << (8 * b);
    return word;
}
template <int D> __device__ void load(const u8* tile, u32 first, u32 m, u32 (&raw)[words_of(D)]) {
    const u8* p = tile + first * item_bytes(D);
    __builtin_assume(__isGlobal(tile));  // said of pointers that come from memory: saves the generic loads and stores
    if (((u64)tile & 15) == 0 && first + PER <= m) {
        for (u32 w = 0; w < words_of(D); w += 4) {
            uint4 v = *(const uint4*)(p + 4 * w);
            raw[w] = v.x, raw[w + 1] = v.y, raw[w + 2] = v.z, raw[w + 3] = v.w;
        }
    } else {
#pragma unroll
        for (u32 w = 0; w < words_of(D); w++) raw[w] = word_at(tile, m * item_bytes(D), first * item_bytes(D) / 4 + w);
    }
}
template <int D> __device__ void store(u8* tile, u32 first, u32 m, const u32 (&raw)[words_of(D)]) {
    u8* p = tile + first * item_bytes(D);
    __builtin_assume(__isGlobal(tile));
    if (((u64)tile & 15) == 0 && first + PER <= m) {
        for (u32 w = 0; w < words_of(D); w += 4) *(uint4*)(p + 4 * w) = make_uint4(raw[w], raw[w + 1], raw[w + 2], raw[w + 3]);
        return;
    }
    u32 bytes = first < m ? (m - first < PER ? m - first : PER) * item_bytes(D) : 0;
    bool halves = item_bytes(D) > 1 && ((u64)tile & 1) == 0;
#pragma unroll
    for (u32 w = 0; w < words_of(D); w++)
#pragma unroll
        for (u32 b = 0; b < 4; b += 2) {
            u32 at = 4 * w + b, two = raw[w] >> (8 * b);
            if (halves && at < bytes) {
                *(u16*)(p + at) = (u16)two;
            } else {
                if (at < bytes) p[at] = (u8)two;
                if (at + 1 < bytes) p[at + 1] = (u8)(two >> 8);
            }
        }
}

// e: exponents. rest: low byte after the exponent. planes: its bits above or, for 8-bit dtypes, all. low: halves of fp32.
template <int D> struct Parts {
    u32 e[8], rest[8], planes[4], low[PER / 2];
};

template <int D> __device__ void split(const u32 (&raw)[words_of(D)], Parts<D>& x) {
    constexpr u32 shift = Rest<D>::bits % 8;  // where the exponent starts in the byte that holds it
    u32 high[8];
    for (int w = 0; w < 8; w++) {
        if constexpr (item_bytes(D) == 1) {
            high[w] = ((raw[w] << 1) & ~ONES) | ((raw[w] >> 7) & ONES);
        } else {
            u32 a, b;
            if constexpr (D == FP32) {
                a = prmt(raw[4 * w], raw[4 * w + 1], 0x7632), b = prmt(raw[4 * w + 2], raw[4 * w + 3], 0x7632);
                x.low[2 * w] = prmt(raw[4 * w], raw[4 * w + 1], 0x5410), x.low[2 * w + 1] = prmt(raw[4 * w + 2], raw[4 * w + 3], 0x5410);
            } else {
                a = raw[2 * w], b = raw[2 * w + 1];
            }
            high[w] = prmt(a << 1, b << 1, 0x7531);
            x.rest[w] = (prmt(a << 1, b << 1, 0x6420) & ~ONES) | ((prmt(a, b, 0x7531) >> 7) & ONES);
        }
        x.e[w] = shift ? (high[w] >> shift) & ((255u >> shift) * ONES) : high[w];
    }
    if constexpr (shift > 0) {
        for (int w = 0; w < 8; w++) high[w] &= ((1u << shift) - 1) * ONES;
        pair_up(high, x.planes);
        pairs_to_planes(x.planes);
    }
}
template <int D> __device__ void merge(Parts<D>& x, u32 (&raw)[words_of(D)]) {
    constexpr u32 shift = Rest<D>::bits % 8;
    u32 high[8];
    if constexpr (shift > 0) planes_to_codes(x.planes, high);
    for (int w = 0; w < 8; w++) {
        u32 h = shift ? x.e[w] << shift | high[w] : x.e[w];
        if constexpr (item_bytes(D) == 1) {
            raw[w] = ((h >> 1) & ~HIGH) | ((h << 7) & HIGH);
        } else {
            u32 a = prmt(x.rest[w], h, 0x5140), b = prmt(x.rest[w], h, 0x7362);
            a = ((a >> 1) & 0x7fff7fffu) | ((a << 15) & 0x80008000u), b = ((b >> 1) & 0x7fff7fffu) | ((b << 15) & 0x80008000u);
            if constexpr (D == FP32) {
                raw[4 * w] = prmt(x.low[2 * w], a, 0x5410), raw[4 * w + 1] = prmt(x.low[2 * w], a, 0x7632);
                raw[4 * w + 2] = prmt(x.low[2 * w + 1], b, 0x5410), raw[4 * w + 3] = prmt(x.low[2 * w + 1], b, 0x7632);
            } else {
                raw[2 * w] = a, raw[2 * w + 1] = b;
            }
        }
    }
}

// What tile_base needs of 32 exponents: their sum, and how many are not 0.
struct Sums { u32 exponents, nonzero; };
__device__ inline Sums add_up(const u32 (&e)[8]) {
    Sums s = {0, 0};
    for (int w = 0; w < 8; w++) {
        s.exponents = __dp4a(e[w], ONES, s.exponents);
        s.nonzero = __dp4a(nonzero_bytes(e[w]) & HIGH, ONES, s.nonzero);
    }
    s.nonzero /= 128;
    return s;
}
}  // namespace zp
