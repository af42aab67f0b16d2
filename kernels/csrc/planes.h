// Inner loops of `delta`: differences from a reference, 64 at a time, as bit planes; for elements of 1, 2 and 4 bytes.
#pragma once
#include "split.h"

namespace zp {
namespace {
template <int ITEM> struct Item;
template <> struct Item<1> { typedef u8 Word; typedef signed char Signed; };
template <> struct Item<2> { typedef u16 Word; typedef short Signed; };
template <> struct Item<4> { typedef u32 Word; typedef int Signed; };

template <class B, int ITEM> struct Planes {
    typedef typename Item<ITEM>::Word Word;
    static constexpr u32 L = B::VECTOR / ITEM;
    typedef typename Lanes<Word, L>::type V;
    typedef typename Lanes<typename Item<ITEM>::Signed, L>::type Signed;
    typedef typename Lanes<u8, L>::type Bytes;

    // Zigzag codes of x - ref: 0, -1, 1, -2, ... become 0, 1, 2, 3, ... Returns the bits set in any of them.
    static Word codes(const u8* x, const u8* ref, u8* z) {
        V any = {};
        for (u32 i = 0; i < GROUP; i += L) {
            V d = get<V>(x + ITEM * i) - get<V>(ref + ITEM * i);
            V code = (V)(d << 1) ^ (V)((Signed)d >> (8 * ITEM - 1));
            set(z + ITEM * i, code);
            any |= code;
        }
        Word mask = 0;
        for (u32 k = 0; k < L; k++) mask |= any[k];
        return mask;
    }
    // One mask per group, then the planes that it names, 8 bytes each, from bit 0 up. Returns the end of the planes.
    static u8* encode(const u8* src, const u8* ref, u64 m, u8* masks, u8* out) {
        alignas(64) u8 z[GROUP * ITEM], bytes[ITEM][GROUP], x_tail[GROUP * ITEM], ref_tail[GROUP * ITEM];
        for (u64 g = 0; g < m; g += GROUP, masks += ITEM) {
            const u8 *x = src + ITEM * g, *r = ref + ITEM * g;
            if (m - g < GROUP) {
                std::memset(x_tail, 0, sizeof x_tail), std::memset(ref_tail, 0, sizeof ref_tail);
                std::memcpy(x_tail, x, ITEM * (m - g)), std::memcpy(ref_tail, r, ITEM * (m - g));
                x = x_tail, r = ref_tail;
            }
            for (u32 i = 0; i < sizeof z; i += 64) fetch_read(x + i), fetch_read(r + i), fetch_write(out + i);
            Word mask = codes(x, r, z);
            std::memcpy(masks, &mask, ITEM);
            for (u32 k = 0; k < ITEM; k++) {
                u32 lane = mask >> (8 * k) & 255;
                if (!lane) continue;
                for (u32 i = 0; i < GROUP; i += L) set(bytes[k] + i, __builtin_convertvector((get<V>(z + ITEM * i) >> (8 * k)) & 255, Bytes));
                for (; lane; lane &= lane - 1, out += 8) store64(out, B::plane(bytes[k], __builtin_ctz(lane)));
            }
        }
        return out;
    }
    static void restore(const u8* ref, const u8 (*bytes)[GROUP], u8* dst) {
        for (u32 i = 0; i < GROUP; i += L) {
            V z = {};
            for (u32 k = 0; k < ITEM; k++) z |= __builtin_convertvector(get<Bytes>(bytes[k] + i), V) << (8 * k);
            set(dst + ITEM * i, (V)(get<V>(ref + ITEM * i) + ((z >> 1) ^ (V)(0 - (z & 1)))));
        }
    }
    static void decode(const u8* masks, const u8* planes, const u8* ref, u64 m, u8* dst) {
        alignas(64) u8 bytes[ITEM][GROUP], tail[GROUP * ITEM];
        for (u64 g = 0; g < m; g += GROUP, masks += ITEM) {
            const u8* r = ref + ITEM * g;
            u8* to = dst + ITEM * g;
            const bool whole = m - g >= GROUP;
            for (u32 i = 0; i < sizeof tail; i += 64) fetch_read(r + i), fetch_write(to + i);
            Word mask;
            std::memcpy(&mask, masks, ITEM);
            if (!mask) {
                std::memmove(to, r, whole ? sizeof tail : ITEM * (m - g));
                continue;
            }
            for (u32 k = 0; k < ITEM; k++) {
                u64 p[8] = {};
                u32 lane = mask >> (8 * k) & 255, top = 1;
                for (; lane; lane &= lane - 1, planes += 8) top = __builtin_ctz(lane), p[top++] = load64(planes);
                B::expand(p, top, bytes[k]);
            }
            if (!whole) std::memcpy(tail, r, ITEM * (m - g));
            restore(whole ? r : tail, bytes, whole ? to : tail);
            if (!whole) std::memcpy(to, tail, ITEM * (m - g));
        }
    }
};
}  // namespace
}  // namespace zp
