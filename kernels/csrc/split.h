// Elements <-> exponent bytes and rest, for every dtype, in the compiler's own vectors of VECTOR bytes.
#pragma once
#include "ops.h"

namespace zp {
namespace {
template <class T, u32 N> struct Lanes { typedef T type __attribute__((vector_size(N * sizeof(T)))); };
template <class V> inline V get(const u8* p) { V v; std::memcpy(&v, p, sizeof v); return v; }
template <class V> inline void set(u8* p, V v) { std::memcpy(p, &v, sizeof v); }

// What is rotated: an element of one or two bytes, or the upper half of fp32.
template <int D> struct Element { typedef u16 Word; };
template <> struct Element<E4M3> { typedef u8 Word; };
template <> struct Element<E5M2> { typedef u8 Word; };

// A group of 64 elements, all of it readable: exponents to e, rest bytes or rest planes' bits to `bytes` and `high`.
template <u32 VECTOR, int D> inline void split_group(const u8* in, u8* e, u8* bytes, u8* high, u8* low, u32* any_low) {
    typedef typename Element<D>::Word Word;
    constexpr u32 L = VECTOR / sizeof(Word), width = 8 * sizeof(Word), R = Rest<D>::bits;
    typedef typename Lanes<Word, L>::type V;
    typedef typename Lanes<u8, L>::type Bytes;
    for (u32 i = 0; i < GROUP; i += L) {
        V x;
        if constexpr (D == FP32) {
            typedef typename Lanes<u32, L>::type Wide;
            Wide w = get<Wide>(in + 4 * i);
            V half = __builtin_convertvector(w & 0xffff, V);
            set(low + 2 * i, half);
            for (u32 k = 0; k < L; k++) *any_low |= half[k];
            x = __builtin_convertvector(w >> 16, V);
        } else {
            x = get<V>(in + sizeof(Word) * i);
        }
        V y = x << 1 | x >> (width - 1);
        set(e + i, __builtin_convertvector(y >> R, Bytes));
        if constexpr (R >= 8) set(bytes + i, __builtin_convertvector(y & 255, Bytes));
        if constexpr (R > 8) set(high + i, __builtin_convertvector((y >> 8) & ((1 << (R - 8)) - 1), Bytes));
        if constexpr (R < 8) set(high + i, y);
    }
}
template <u32 VECTOR, int D> inline void merge_group(const u8* e, const u8* bytes, const u8* high, const u8* low, u8* out) {
    typedef typename Element<D>::Word Word;
    constexpr u32 L = VECTOR / sizeof(Word), width = 8 * sizeof(Word), R = Rest<D>::bits;
    typedef typename Lanes<Word, L>::type V;
    typedef typename Lanes<u8, L>::type Bytes;
    for (u32 i = 0; i < GROUP; i += L) {
        V y = __builtin_convertvector(get<Bytes>(e + i), V) << R;
        if constexpr (R >= 8) y |= __builtin_convertvector(get<Bytes>(bytes + i), V);
        if constexpr (R > 8) y |= __builtin_convertvector(get<Bytes>(high + i), V) << 8;
        if constexpr (R < 8) y |= get<V>(high + i);
        V x = y >> 1 | y << (width - 1);
        if constexpr (D == FP32) {
            typedef typename Lanes<u32, L>::type Wide;
            Wide w = __builtin_convertvector(x, Wide) << 16;
            if (low) w |= __builtin_convertvector(get<V>(low + 2 * i), Wide);
            set(out + 4 * i, w);
        } else {
            set(out + sizeof(Word) * i, x);
        }
    }
}

// B supplies: VECTOR, plane (one bit of 64 bytes), expand (bits of planes back to bytes), add_up.
template <class B, int D> void split(const u8* src, u32 m, u8* e, u8* rest, u8* low, Sums* sums) {
    const u32 stride = plane_bytes(m), item = item_bytes(D);
    u8* planes = rest + (rest_bytes(D) ? padded(m) : 0);
    alignas(64) u8 high[GROUP], tail[GROUP * 4];
    Sums s = {0, 0, 0};
    if (rest_bytes(D)) std::memset(rest + padded(m) - GROUP, 0, GROUP);
    for (u32 k = 1; k <= rest_planes(D); k++) std::memset(planes + k * stride - 8, 0, 8);
    for (u32 g = 0; g < m; g += GROUP) {
        const u8* in = src + item * g;
        if (m - g < GROUP) {
            std::memset(tail, 0, sizeof tail);
            std::memcpy(tail, in, item * (m - g));
            in = tail;
        }
        split_group<B::VECTOR, D>(in, e + g, rest + g, high, low + 2 * g, &s.low);
        for (u32 k = 0; k < rest_planes(D); k++) store64(planes + k * stride + g / 8, B::plane(high, (int)k));
        B::add_up(e + g, &s);  // padding adds 0
    }
    *sums = s;
}

template <class B, int D> void merge(const u8* e, const u8* rest, const u8* low, u32 m, u8* dst) {
    const u32 stride = plane_bytes(m), item = item_bytes(D);
    const u8* planes = rest + (rest_bytes(D) ? padded(m) : 0);
    alignas(64) u8 high[GROUP], tail[GROUP * 4], low_tail[GROUP * 2];
    for (u32 g = 0; g < m; g += GROUP) {
        bool whole = m - g >= GROUP;
        const u8* half = low ? low + 2 * g : nullptr;
        if (low && !whole) {
            std::memcpy(low_tail, half, 2 * (m - g));
            half = low_tail;
        }
        u64 p[4] = {0, 0, 0, 0};
        for (u32 k = 0; k < rest_planes(D); k++) p[k] = load64(planes + k * stride + g / 8);
        if (rest_planes(D)) B::expand(p, rest_planes(D), high);
        merge_group<B::VECTOR, D>(e + g, rest + g, high, half, whole ? dst + item * g : tail);
        if (!whole) std::memcpy(dst + item * g, tail, item * (m - g));
    }
}
}  // namespace
}  // namespace zp
