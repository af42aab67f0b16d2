// Elements <-> exponent bytes and rest, for every dtype; loops that compilers vectorise for the target at hand.
#pragma once
#include "ops.h"

namespace zp {
namespace {
template <int D> inline u32 load(const u8* src, u32 i) {
    if constexpr (D == E4M3 || D == E5M2) return src[i];
    u16 x;
    std::memcpy(&x, src + (D == FP32 ? 4 * i + 2 : 2 * i), 2);
    return x;
}

template <class B, int D> void split(const u8* src, u32 m, u8* e, u8* rest, u8* low, Sums* sums) {
    constexpr u32 R = Rest<D>::bits, planes = D == FP16 || D == E5M2 ? 3 : D == E4M3 ? 4 : 0;
    constexpr bool bytes = R >= 8;
    u32 pad = padded(m), stride = plane_bytes(m);
    u8* plane_out = rest + (bytes ? pad : 0);
    alignas(64) u8 high[GROUP];
    Sums s = {0, 0, 0};
    if (bytes) std::memset(rest + pad - 128, 0, 128);
    for (u32 k = 1; k <= planes; k++) std::memset(plane_out + k * stride - 16, 0, 16);
    for (u32 g = 0; g < m; g += GROUP) {
        u32 count = m - g < GROUP ? m - g : GROUP;
        const u8* in = src + (u64)g * (D == FP32 ? 4 : R >= 8 ? 2 : 1);
        u8* eg = e + g;
        u8* rg = rest + (bytes ? g : 0);
        u32 sum = 0, nonzero = 0, lows = 0;
        auto body = [&](u32 i) {
            u32 y = rotated<D>(load<D>(in, i)), x = y >> R, r = y & ((1u << R) - 1);
            eg[i] = (u8)x;
            if constexpr (bytes) rg[i] = (u8)r;
            if constexpr (planes > 0) high[i] = (u8)(bytes ? r >> 8 : r);
        };
        if (count == GROUP) {
            for (u32 i = 0; i < GROUP; i++) body(i);
        } else {
            std::memset(high, 0, GROUP);
            std::memset(eg, 0, GROUP);
            for (u32 i = 0; i < count; i++) body(i);
        }
        for (u32 i = 0; i < GROUP; i++) sum += eg[i];  // padding adds 0 to both sums
        for (u32 i = 0; i < GROUP; i++) nonzero += eg[i] != 0;
        if constexpr (D == FP32) {
            for (u32 i = 0; i < count; i++) {
                u16 l;
                std::memcpy(&l, in + 4 * i, 2);
                std::memcpy(low + 2 * (g + i), &l, 2);
                lows |= l;
            }
        }
        for (u32 k = 0; k < planes; k++) store64(plane_out + k * stride + g / 8, B::plane(high, (int)k));
        s.exponents += sum, s.nonzero += nonzero, s.low |= lows;
    }
    *sums = s;
}

template <class B, int D> void merge(const u8* e, const u8* rest, const u8* low, u32 m, u8* dst) {
    constexpr u32 R = Rest<D>::bits, planes = D == FP16 || D == E5M2 ? 3 : D == E4M3 ? 4 : 0;
    constexpr bool bytes = R >= 8;
    u32 stride = plane_bytes(m);
    const u8* plane_in = rest + (bytes ? padded(m) : 0);
    alignas(64) u8 high[GROUP];
    for (u32 g = 0; g < m; g += GROUP) {
        u32 count = m - g < GROUP ? m - g : GROUP;
        u8* out = dst + (u64)g * (D == FP32 ? 4 : R >= 8 ? 2 : 1);
        if constexpr (planes > 0) {
            std::memset(high, 0, GROUP);
            for (u32 k = 0; k < planes; k++) {
                u64 p = load64(plane_in + k * stride + g / 8);
                for (int b = 0; b < 8; b++) store64(high + 8 * b, load64(high + 8 * b) | spread8((p >> (8 * b)) & 255) << k);
            }
        }
        auto body = [&](u32 i) {
            u32 r = bytes ? rest[g + i] : 0;
            if constexpr (planes > 0) r |= (u32)high[i] << (bytes ? 8 : 0);
            u32 x = unrotated<D>((u32)e[g + i] << R | r);
            if constexpr (D == FP32) {
                u16 l = 0;
                if (low) std::memcpy(&l, low + 2 * (g + i), 2);
                u32 w = x << 16 | l;
                std::memcpy(out + 4 * i, &w, 4);
            } else if constexpr (bytes) {
                u16 w = (u16)x;
                std::memcpy(out + 2 * i, &w, 2);
            } else {
                out[i] = (u8)x;
            }
        };
        if (count == GROUP)
            for (u32 i = 0; i < GROUP; i++) body(i);
        else
            for (u32 i = 0; i < count; i++) body(i);
    }
}
}  // namespace
}  // namespace zp
