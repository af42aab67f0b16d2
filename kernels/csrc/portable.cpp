// Inner loops in plain C++: what every processor without AVX2 runs, written so that compilers vectorise them.
#include "split.h"

namespace zp {
namespace {
struct Portable {
    static u64 plane(const u8* v, int bit) {
        u64 p = 0;
        for (int k = 0; k < 8; k++) p |= (u64)bits8(load64(v + 8 * k), bit) << (8 * k);
        return p;
    }
    static void window_planes(const u8* e, u32 base, u64* p) {
        alignas(64) u8 code[GROUP];
        for (u32 i = 0; i < GROUP; i++) {
            u8 d = (u8)(e[i] - base);
            code[i] = d < WINDOW_WIDTH ? d + 1 : 0;
        }
        for (int k = 0; k < 3; k++) p[k] = plane(code, k);
    }
    static void window_expand(u64 p0, u64 p1, u64 p2, u32 base, u8* e) {
        for (int k = 0; k < 8; k++, p0 >>= 8, p1 >>= 8, p2 >>= 8)
            store64(e + 8 * k, spread8(p0 & 255) | spread8(p1 & 255) << 1 | spread8(p2 & 255) << 2);
        for (u32 i = 0; i < GROUP; i++) e[i] = (u8)(e[i] + base - 1);
    }
    static void cascade_planes(const u8* e, u32 base, const u8* code_of, u64* b) {
        alignas(64) u8 code[GROUP];
        for (u32 i = 0; i < GROUP; i++) code[i] = code_of[symbol_of(e[i], base)];
        for (int k = 0; k < 4; k++) b[k] = plane(code, k);
    }
    static void cascade_expand(const u64* b, const u8* exponent_of, u8* e) {
        for (int k = 0; k < 8; k++) {
            u64 code = spread8((b[0] >> (8 * k)) & 255) | spread8((b[1] >> (8 * k)) & 255) << 1 | spread8((b[2] >> (8 * k)) & 255) << 2 |
                       spread8((b[3] >> (8 * k)) & 255) << 3;
            for (int i = 0; i < 8; i++) e[8 * k + i] = exponent_of[(code >> (8 * i)) & 15];
        }
    }
    static u64 pext(u64 x, u64 mask) {
        u64 r = 0;
        for (int k = 0; mask; mask &= mask - 1, k++) r |= ((x >> __builtin_ctzll(mask)) & 1) << k;
        return r;
    }
    static u64 pdep(u64 x, u64 mask) {
        u64 r = 0;
        for (; mask; mask &= mask - 1, x >>= 1) r |= (x & 1) << __builtin_ctzll(mask);
        return r;
    }
};
}  // namespace

const Ops portable_ops = {
    {nullptr, split<Portable, BF16>, split<Portable, FP16>, split<Portable, FP32>, split<Portable, E4M3>, split<Portable, E5M2>},
    {nullptr, merge<Portable, BF16>, merge<Portable, FP16>, merge<Portable, FP32>, merge<Portable, E4M3>, merge<Portable, E5M2>},
    window_encode<Portable>, window_decode<Portable>, cascade_encode<Portable>, cascade_decode<Portable>,
};
}  // namespace zp
