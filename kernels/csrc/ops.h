// The inner loops of the codec over one tile. Two sets, byte-equal: portable and AVX2 + BMI2, chosen at run time.
#pragma once
#include <cstring>

#include "tile.h"

namespace zp {

constexpr u32 GROUP = 64;                      // elements handled per step
constexpr u32 STREAM = TILE / GROUP + 2;       // words of one bit stream, with room for one word read or written ahead
typedef u64 Streams[3][2][STREAM];             // cascade levels 2-4, two planes each

struct Sums { u32 exponents, nonzero; u32 low; };  // low: OR of fp32 low halves

// The next tile's memory, fetched while this one is computed on: bytes to read and to write per group of this tile.
struct Ahead {
    const u8* read;
    u32 read_step;
    u8* write;
    u32 write_step;
    void fetch(u32 group) const {
        for (u32 i = 0; i < read_step; i += 64) __builtin_prefetch(read + (u64)group * read_step + i, 0);
        for (u32 i = 0; i < write_step; i += 64) __builtin_prefetch(write + (u64)group * write_step + i, 1);
    }
};

// Fetches what a loop over large arrays needs later, a cache line each; past an array's end it does nothing. Processors
// do this by themselves, but late: by a third (measured by `zipplan codec bench` on an x86-64 virtual machine).
constexpr u32 DISTANCE = 2048;  // bytes
inline void fetch_read(const u8* p) { __builtin_prefetch((const void*)((u64)p + DISTANCE), 0); }
inline void fetch_write(const u8* p) { __builtin_prefetch((const void*)((u64)p + DISTANCE), 1); }

struct Ops {
    // m elements -> exponents e[m], the rest (bytes, then planes), low halves of fp32.
    void (*split[DTYPES])(const u8* src, u32 m, u8* e, u8* rest, u8* low, Sums* sums);
    void (*merge[DTYPES])(const u8* e, const u8* rest, const u8* low, u32 m, u8* dst);
    // e is readable up to the next multiple of GROUP. Both return the number of escapes.
    u32 (*window_encode)(const u8* e, u32 m, u32 base, u8* planes, u8* escapes, const Ahead& next);
    u32 (*window_decode)(const u8* planes, u32 m, u32 base, const u8* escapes, u8* e, const Ahead& next);
    u32 (*cascade_encode)(const u8* e, u32 m, u32 base, const u8* code_of, u8* planes, Streams levels, u32* count, u8* escapes, const Ahead& next);
    u32 (*cascade_decode)(const u8* planes, u32 m, const u8* exponent_of, const Streams levels, u32* count, const u8* escapes, u8* e, const Ahead& next);
    // Planes of m elements of 1, 2 or 4 bytes (entry size / 2) against a reference; encode returns the end of the planes.
    u8* (*delta_encode[3])(const u8* src, const u8* ref, u64 m, u8* masks, u8* planes);
    void (*delta_decode[3])(const u8* masks, const u8* planes, const u8* ref, u64 m, u8* dst);
    // A region's part of the checksum: `bytes` is a multiple of 64, `first` the index of its first 32-bit word.
    u64 (*weighted_sum)(const u8* region, u64 bytes, u64 first);
};
extern const Ops portable_ops;
const Ops* avx2_ops();  // null where the processor or the compiler has none

namespace {
inline u64 load64(const u8* p) { u64 x; std::memcpy(&x, p, 8); return x; }
inline void store64(u8* p, u64 x) { std::memcpy(p, &x, 8); }
inline u32 first_bit(u64 mask) { return mask ? (u32)__builtin_ctzll(mask) : GROUP; }
inline u64 valid_mask(u32 m, u32 start) { return m - start >= GROUP ? ~0ull : (1ull << (m - start)) - 1; }

inline void put(u64* stream, u32 pos, u64 bits) {
    u32 w = pos / 64, s = pos % 64;
    stream[w] |= bits << s;
    stream[w + 1] = (bits >> 1) >> (63 - s);
}
inline u64 get(const u64* stream, u32 pos) {
    u32 w = pos / 64, s = pos % 64;
    return stream[w] >> s | (stream[w + 1] << 1) << (63 - s);
}

// Escapes of a group, in element order. Four moves without a branch cover nearly every group of Gaussian data (a loop
// would cost a mispredicted branch per group): e[GROUP] and four bytes past the escapes may be read or written.
template <class B> inline u8* put_escapes(u8* out, u64 mask, const u8* e) {
    u8* end = out + B::count(mask);
    for (int k = 0; k < 4; k++, mask &= mask - 1) *out++ = e[first_bit(mask)];
    for (; mask; mask &= mask - 1) *out++ = e[first_bit(mask)];
    return end;
}
template <class B> inline const u8* get_escapes(const u8* in, u64 mask, u8* e) {
    const u8* end = in + B::count(mask);
    for (int k = 0; k < 4; k++, mask &= mask - 1) e[first_bit(mask)] = *in++;
    for (; mask; mask &= mask - 1) e[first_bit(mask)] = *in++;
    return end;
}

// B supplies, for a group: planes of codes and exponents back from them, bits packed by a mask and back, their count.
template <class B> u32 window_encode(const u8* e, u32 m, u32 base, u8* planes, u8* escapes, const Ahead& next) {
    u32 stride = plane_bytes(m);
    std::memset(planes + 3 * stride - 16, 0, 16);
    std::memset(planes + 2 * stride - 16, 0, 16);
    std::memset(planes + stride - 16, 0, 16);
    u8* out = escapes;
    for (u32 i = 0; i < m; i += GROUP) {
        u64 p[3], valid = valid_mask(m, i);
        next.fetch(i / GROUP);
        B::window_planes(e + i, base, p);
        for (int k = 0; k < 3; k++) store64(planes + k * stride + i / 8, p[k] & valid);
        out = put_escapes<B>(out, ~(p[0] | p[1] | p[2]) & valid, e + i);
    }
    return (u32)(out - escapes);
}
template <class B> u32 window_decode(const u8* planes, u32 m, u32 base, const u8* escapes, u8* e, const Ahead& next) {
    u32 stride = plane_bytes(m);
    const u8* in = escapes;
    for (u32 i = 0; i < m; i += GROUP) {
        u64 p[3] = {load64(planes + i / 8), load64(planes + stride + i / 8), load64(planes + 2 * stride + i / 8)};
        next.fetch(i / GROUP);
        B::window_expand(p, base, e + i);
        in = get_escapes<B>(in, ~(p[0] | p[1] | p[2]) & valid_mask(m, i), e + i);
    }
    return (u32)(in - escapes);
}

template <class B> u32 cascade_encode(const u8* e, u32 m, u32 base, const u8* code_of, u8* planes, Streams levels, u32* count, u8* escapes, const Ahead& next) {
    u32 stride = plane_bytes(m), n2 = 0, n3 = 0, n4 = 0;
    std::memset(planes + stride - 16, 0, 16);
    std::memset(planes + 2 * stride - 16, 0, 16);
    for (int l = 0; l < 3; l++) levels[l][0][0] = levels[l][1][0] = 0;
    const typename B::Codes codes(base, code_of);
    u8* out = escapes;
    for (u32 i = 0; i < m; i += GROUP) {
        next.fetch(i / GROUP);
        u64 b[4], valid = valid_mask(m, i);  // b[0], b[1]: digit; b[2], b[3]: level
        B::cascade_planes(e + i, codes, b);
        u64 on2 = (b[2] | b[3]) & valid, on3 = b[3] & valid, on4 = b[2] & b[3] & valid;
        store64(planes + i / 8, (b[0] | on2) & valid);
        store64(planes + stride + i / 8, (b[1] | on2) & valid);
        u64 d2[2] = {b[0] | on3, b[1] | on3}, d3[2] = {b[0] | on4, b[1] | on4}, d4[2] = {b[0], b[1]};
        B::pack(on2, d2), B::pack(on3, d3), B::pack(on4, d4);
        put(levels[0][0], n2, d2[0]), put(levels[0][1], n2, d2[1]);
        put(levels[1][0], n3, d3[0]), put(levels[1][1], n3, d3[1]);
        put(levels[2][0], n4, d4[0]), put(levels[2][1], n4, d4[1]);
        n2 += B::count(on2), n3 += B::count(on3), n4 += B::count(on4);
        out = put_escapes<B>(out, on4 & b[0] & b[1], e + i);
    }
    count[0] = n2, count[1] = n3, count[2] = n4;
    return (u32)(out - escapes);
}
template <class B> u32 cascade_decode(const u8* planes, u32 m, const u8* exponent_of, const Streams levels, u32* count, const u8* escapes, u8* e, const Ahead& next) {
    u32 stride = plane_bytes(m), n2 = 0, n3 = 0, n4 = 0;
    const u8* in = escapes;
    const typename B::Exponents exponents(exponent_of);
    for (u32 i = 0; i < m; i += GROUP) {
        u64 valid = valid_mask(m, i), b[4];
        next.fetch(i / GROUP);
        u64 b0 = load64(planes + i / 8) & valid, b1 = load64(planes + stride + i / 8) & valid;
        u64 on2 = b0 & b1;
        u64 d2[2] = {get(levels[0][0], n2), get(levels[0][1], n2)};
        B::unpack(on2, d2);
        u64 on3 = d2[0] & d2[1], d3[2] = {get(levels[1][0], n3), get(levels[1][1], n3)};
        B::unpack(on3, d3);
        u64 on4 = d3[0] & d3[1], d4[2] = {get(levels[2][0], n4), get(levels[2][1], n4)};
        B::unpack(on4, d4);
        n2 += B::count(on2), n3 += B::count(on3), n4 += B::count(on4);
        b[0] = (b0 & ~on2) | (d2[0] & ~on3) | (d3[0] & ~on4) | d4[0];
        b[1] = (b1 & ~on2) | (d2[1] & ~on3) | (d3[1] & ~on4) | d4[1];
        b[2] = (on2 & ~on3) | on4;
        b[3] = on3;
        B::cascade_expand(b, exponents, e + i);
        in = get_escapes<B>(in, d4[0] & d4[1], e + i);
    }
    count[0] = n2, count[1] = n3, count[2] = n4;
    return (u32)(in - escapes);
}
}  // namespace
}  // namespace zp
