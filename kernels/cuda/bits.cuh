// Bytes and bits of 32 elements in registers: word w of eight holds elements 4w to 4w + 3, one byte each.
#pragma once
namespace zp {
constexpr u32 HIGH = 0x80808080u, ONES = 0x01010101u;

#ifndef ZP_PRMT  // a shim that runs these kernels on the CPU brings its own
__device__ inline u32 prmt(u32 a, u32 b, u32 select) {  // __byte_perm lacks the sign mode (selector bit 3)
    u32 r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(select));
    return r;
}
#endif

__device__ inline u32 every_byte(u32 b) { return b * ONES; }
__device__ inline u32 below_bit(u32 i) { return (1u << i) - 1; }  // i < 32
__device__ inline u32 sub_bytes(u32 x, u32 y) { return ((x | HIGH) - (y & ~HIGH)) ^ ((x ^ ~y) & HIGH); }
// High bit of every byte: is it not 0?
__device__ inline u32 nonzero_bytes(u32 x) { return ((x & ~HIGH) + ~HIGH) | x; }
__device__ inline u32 sign_mask(u32 x) { return prmt(x, x, 0xba98); }  // high bit of every byte, all over the byte

// 4 x 4 bytes: byte i of word j <-> byte j of word i.
__device__ inline void transpose_bytes(u32 (&a)[4]) {
    u32 t0 = prmt(a[0], a[1], 0x5140), t1 = prmt(a[2], a[3], 0x5140), t2 = prmt(a[0], a[1], 0x7362), t3 = prmt(a[2], a[3], 0x7362);
    a[0] = prmt(t0, t1, 0x5410), a[1] = prmt(t0, t1, 0x7632), a[2] = prmt(t2, t3, 0x5410), a[3] = prmt(t2, t3, 0x7632);
}
// In every nibble: bit i of word j <-> bit j of word i.
__device__ inline void transpose_bits(u32 (&v)[4]) {
    auto swap = [](u32& x, u32& y, int shift, u32 mask) {
        u32 t = ((x >> shift) ^ y) & mask;
        y ^= t;
        x ^= t << shift;
    };
    swap(v[0], v[2], 2, 0x33333333), swap(v[1], v[3], 2, 0x33333333);
    swap(v[0], v[1], 1, 0x55555555), swap(v[2], v[3], 1, 0x55555555);
}
// Codes of 0-15, packed two to a byte (pair p: words 2p and 2p + 1, low and high nibble) <-> four bit planes.
__device__ inline void pair_up(const u32 (&code)[8], u32 (&pairs)[4]) {
    for (int p = 0; p < 4; p++) pairs[p] = code[2 * p] | code[2 * p + 1] << 4;
}
__device__ inline void pairs_to_planes(u32 (&v)[4]) { transpose_bytes(v), transpose_bits(v); }
__device__ inline void planes_to_pairs(u32 (&v)[4]) { transpose_bits(v), transpose_bytes(v); }
__device__ inline void planes_to_codes(u32 (&v)[4], u32 (&code)[8]) {
    planes_to_pairs(v);
    for (int p = 0; p < 4; p++) code[2 * p] = v[p] & 0x0f0f0f0f, code[2 * p + 1] = (v[p] >> 4) & 0x0f0f0f0f;
}
// Looks up the four low nibbles of `index` in 16 bytes.
__device__ inline u32 look_up(const u32 (&table)[4], u32 index) {
    u32 low = prmt(table[0], table[1], index & 0x7777), high = prmt(table[2], table[3], index & 0x7777);
    u32 upper = prmt(0x8000, 0, ((index >> 3) & 0x1111) | 0x8888);
    return (low & ~upper) | (high & upper);
}

// Which bits move by 1, 2, 4, 8, 16 when those under a mask are packed to the low end (Hacker's Delight 7-4).
struct Moves {
    u32 mask, step[5];
    __device__ explicit Moves(u32 m) : mask(m) {
        u32 zeros = ~m << 1;
        for (int i = 0; i < 5; i++) {
            u32 odd = zeros ^ (zeros << 1);
            odd ^= odd << 2, odd ^= odd << 4, odd ^= odd << 8, odd ^= odd << 16;
            step[i] = odd & m;
            m = (m ^ step[i]) | (step[i] >> (1 << i));
            zeros &= ~odd;
        }
    }
    __device__ u32 pack(u32 x) const {
        x &= mask;
        for (int i = 0; i < 5; i++) {
            u32 t = x & step[i];
            x = (x ^ t) | (t >> (1 << i));
        }
        return x;
    }
    __device__ u32 unpack(u32 x) const {
        for (int i = 4; i >= 0; i--) x = (x & ~step[i]) | ((x << (1 << i)) & step[i]);
        return x & mask;
    }
};
// The same for two words at once, for masks of few bits.
__device__ inline void pack_few(u32 mask, u32& x, u32& y) {
    u32 a = 0, b = 0;
#pragma unroll 1
    for (u32 to = 1; mask; mask &= mask - 1, to <<= 1) {
        u32 from = mask & (0u - mask);
        if (x & from) a |= to;
        if (y & from) b |= to;
    }
    x = a, y = b;
}
__device__ inline void unpack_few(u32 mask, u32& x, u32& y) {
    u32 a = 0, b = 0;
#pragma unroll 1
    for (; mask; mask &= mask - 1, x >>= 1, y >>= 1) {
        u32 to = mask & (0u - mask);
        if (x & 1) a |= to;
        if (y & 1) b |= to;
    }
    x = a, y = b;
}
// Byte i of 32 in eight registers, which cannot be indexed by a variable.
__device__ inline u32 pick_byte(const u32 (&v)[8], u32 i) {
    u32 a = i & 16 ? v[4] : v[0], b = i & 16 ? v[5] : v[1], c = i & 16 ? v[6] : v[2], d = i & 16 ? v[7] : v[3];
    a = i & 8 ? c : a, b = i & 8 ? d : b;
    return ((i & 4 ? b : a) >> (8 * (i & 3))) & 255;
}
__device__ inline void flip_byte(u32 (&v)[8], u32 i, u32 bits) {
    bits <<= 8 * (i & 3);
    for (u32 w = 0; w < 8; w++) v[w] ^= i / 4 == w ? bits : 0;
}
}  // namespace zp
