// Floats of every dtype to FP32 and back, by integer arithmetic only, for decode_reduce. Host and device, include-free.
#pragma once
#include "tile.h"

namespace zp {
ZP_HD u32 exponent_bits(int d) { return d == BF16 || d == FP32 ? 8 : d == E4M3 ? 4 : 5; }
ZP_HD u32 mantissa_bits(int d) { return d == BF16 ? 7 : d == FP16 ? 10 : d == FP32 ? 23 : d == E4M3 ? 3 : 2; }

// Exact: every value of every dtype is an FP32 value. E4M3 is the "fn" form: no infinity, one NaN (0x7f).
template <int D> ZP_HD u32 widen(u32 x) {
    if (D == FP32) return x;
    if (D == BF16) return x << 16;
    const u32 E = exponent_bits(D), M = mantissa_bits(D), top = (1u << E) - 1;
    u32 sign = (x >> (E + M)) << 31, e = (x >> M) & top, f = x & ((1u << M) - 1);
    if (D == E4M3 ? (x & 0x7f) == 0x7f : e == top) return sign | 0x7f800000u | (f && D != E4M3 ? f << (23 - M) : D == E4M3 ? 0x400000u : 0u);
    if (e == 0) {
        if (f == 0) return sign;
        e = 1;
        while (!(f >> M)) f <<= 1, e--;  // subnormal: e runs below 1 as a wrapped unsigned, undone by the addition
        f &= (1u << M) - 1;
    }
    return sign | (e + 127 - ((1u << (E - 1)) - 1)) << 23 | f << (23 - M);
}

// Round to nearest, ties to even. NaN becomes the one positive quiet NaN of the dtype, so that every backend gives the
// same bytes. Overflow becomes infinity; in E4M3, which has none, the largest value, as torch and the hardware's
// saturating conversion do.
template <int D> ZP_HD u32 narrow(u32 w) {
    const u32 E = exponent_bits(D), M = mantissa_bits(D), drop = 23 - M;
    u32 a = w & 0x7fffffffu, sign = D == E4M3 || D == E5M2 ? (w >> 24) & 0x80 : D == FP32 ? w & 0x80000000u : (w >> 16) & 0x8000;
    const u32 nan = D == BF16 ? 0x7fc0 : D == FP16 ? 0x7e00 : D == FP32 ? 0x7fc00000 : 0x7f;
    const u32 over = D == E4M3 ? 0x7e : ((1u << E) - 1) << M;
    if (a > 0x7f800000u) return nan;
    if (D == FP32) return w;
    if (D == BF16) return sign | (a + 0x7fff + ((a >> 16) & 1)) >> 16;
    if (a == 0x7f800000u) return sign | over;
    int e = (int)(a >> 23) - 127 + (int)((1u << (E - 1)) - 1);
    u32 y;
    if (e >= 1) {
        if (e > (int)(1u << E)) return sign | over;
        u32 b = (a & 0x7fffff) | (u32)e << 23;
        y = (b + (1u << (drop - 1)) - 1 + ((b >> drop) & 1)) >> drop;
    } else {
        u32 f = (a & 0x7fffff) | (a >> 23 ? 0x800000 : 0), shift = drop + 1 - e;
        if (shift > 25) return sign;
        y = (f + (1u << (shift - 1)) - 1 + ((f >> shift) & 1)) >> shift;
    }
    return sign | (y < over ? y : over);
}
}  // namespace zp
