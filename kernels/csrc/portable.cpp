// Inner loops in plain C++ for processors without AVX2 and BMI2: 64-bit words hold 8 bytes, or a bit of 64 elements.
#include "header.h"
#include "planes.h"

namespace zp {
namespace {
struct Spread {  // the 8 bits of every byte, each in a byte or a nibble of its own: a load is quicker than arithmetic
    u64 bytes[256];
    u32 nibbles[256];
    constexpr Spread() : bytes(), nibbles() {
        for (u32 b = 0; b < 256; b++)
            for (u32 i = 0; i < 8; i++) bytes[b] |= (u64)(b >> i & 1) << 8 * i, nibbles[b] |= (b >> i & 1) << 4 * i;
    }
};
constexpr Spread spread;

// How far each bit of a mask moves when the bits are packed: Hacker's Delight, 2nd edition, 7-4 and 7-5.
struct Moves {
    u64 mask, step[6];
    explicit Moves(u64 m) : mask(m) {
        u64 gaps = ~m << 1;  // zeros below each bit
        for (int i = 0; i < 6; i++) {
            u64 p = gaps;
            for (int s = 1; s < 64; s *= 2) p ^= p << s;
            step[i] = p & m;
            m = (m ^ step[i]) | step[i] >> (1 << i);
            gaps &= ~p;
        }
    }
    u64 pack(u64 x) const {
        x &= mask;
        for (int i = 0; i < 6; i++) {
            u64 t = x & step[i];
            x = (x ^ t) | t >> (1 << i);
        }
        return x;
    }
    u64 unpack(u64 x) const {
        for (int i = 5; i >= 0; i--) {
            u64 t = x << (1 << i);
            x = (x & ~step[i]) | (t & step[i]);
        }
        return x & mask;
    }
};

struct Portable {
    static constexpr u32 VECTOR = 16;
    static u32 count(u64 x) {
        x -= (x >> 1) & 0x5555555555555555ull;
        x = (x & 0x3333333333333333ull) + ((x >> 2) & 0x3333333333333333ull);
        return (u32)((((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0full) * 0x0101010101010101ull) >> 56);
    }
    static u64 plane(const u8* v, int bit) {
        u64 p = 0;
        for (int k = 0; k < 8; k++) p |= (u64)bits8(load64(v + 8 * k), bit) << (8 * k);
        return p;
    }
    static void expand(const u64* p, u32 planes, u8* out) {
        for (u32 k = 0; k < 8; k++) {
            u64 bytes = spread.bytes[(p[0] >> (8 * k)) & 255];
            for (u32 l = 1; l < planes; l++) bytes |= spread.bytes[(p[l] >> (8 * k)) & 255] << l;
            store64(out + 8 * k, bytes);
        }
    }
    static void add_up(const u8* e, Sums* s) {
        u32 sum = 0, nonzero = 0;
        for (u32 i = 0; i < GROUP; i++) sum += e[i];
        for (u32 i = 0; i < GROUP; i++) nonzero += e[i] != 0;
        s->exponents += sum, s->nonzero += nonzero;
    }
    static void window_planes(const u8* e, u32 base, u64* p) {
        alignas(64) u8 code[GROUP];
        for (u32 i = 0; i < GROUP; i++) {
            u8 d = (u8)(e[i] - base);
            code[i] = d < WINDOW_WIDTH ? d + 1 : 0;
        }
        for (int k = 0; k < 3; k++) p[k] = plane(code, k);
    }
    static void window_expand(const u64* p, u32 base, u8* e) {
        expand(p, 3, e);
        for (u32 i = 0; i < GROUP; i++) e[i] = (u8)(e[i] + base - 1);
    }
    struct Codes {  // by exponent
        u8 of[256];
        Codes(u32 base, const u8* code_of) {
            std::memset(of, ESCAPE_CODE, sizeof of);
            for (u32 s = 0; s < SPAN; s++) of[base + s] = code_of[s];
            of[0] = code_of[ZERO_SYMBOL];
        }
    };
    static void cascade_planes(const u8* e, const Codes& codes, u64* b) {
        alignas(64) u8 code[GROUP];
        for (u32 i = 0; i < GROUP; i++) code[i] = codes.of[e[i]];
        for (int k = 0; k < 4; k++) b[k] = plane(code, k);
    }
    struct Exponents {  // of two codes at once: low nibble, high nibble
        u16 of[256];
        explicit Exponents(const u8* exponent_of) {
            for (u32 pair = 0; pair < 256; pair++) of[pair] = (u16)(exponent_of[pair & 15] | exponent_of[pair >> 4] << 8);
        }
    };
    static void cascade_expand(const u64* b, const Exponents& exponents, u8* e) {
        for (u32 k = 0; k < 64; k += 8) {
            u32 codes = spread.nibbles[(b[0] >> k) & 255] | spread.nibbles[(b[1] >> k) & 255] << 1 | spread.nibbles[(b[2] >> k) & 255] << 2 |
                        spread.nibbles[(b[3] >> k) & 255] << 3;
            store64(e + k, exponents.of[codes & 255] | (u64)exponents.of[(codes >> 8) & 255] << 16 | (u64)exponents.of[(codes >> 16) & 255] << 32 |
                               (u64)exponents.of[codes >> 24] << 48);
        }
    }
    // A few bits one by one, without a branch on how few; many at once.
    static constexpr int FEW = 6;
    static void pack(u64 mask, u64* x) {
        if (count(mask) > FEW) {
            Moves moves(mask);
            x[0] = moves.pack(x[0]), x[1] = moves.pack(x[1]);
            return;
        }
        u64 r0 = 0, r1 = 0;
        for (int k = 0; k < FEW; k++, mask &= mask - 1) {
            u64 bit = mask & (0 - mask);
            r0 |= (u64)((x[0] & bit) != 0) << k, r1 |= (u64)((x[1] & bit) != 0) << k;
        }
        x[0] = r0, x[1] = r1;
    }
    static void unpack(u64 mask, u64* x) {
        if (count(mask) > FEW) {
            Moves moves(mask);
            x[0] = moves.unpack(x[0]), x[1] = moves.unpack(x[1]);
            return;
        }
        u64 r0 = 0, r1 = 0;
        for (int k = 0; k < FEW; k++, mask &= mask - 1) {
            u64 bit = mask & (0 - mask);
            r0 |= bit & (0 - ((x[0] >> k) & 1)), r1 |= bit & (0 - ((x[1] >> k) & 1));
        }
        x[0] = r0, x[1] = r1;
    }
};

u64 weighted_sum(const u8* region, u64 bytes, u64 first) {
    u64 total = 0;
    for (u64 i = 0; i < bytes / 4; i++) {
        u32 word;
        std::memcpy(&word, region + 4 * i, 4);
        total += weighted(word, first + i);
    }
    return total;
}
}  // namespace

const Ops portable_ops = {
    {nullptr, split<Portable, BF16>, split<Portable, FP16>, split<Portable, FP32>, split<Portable, E4M3>, split<Portable, E5M2>},
    {nullptr, merge<Portable, BF16>, merge<Portable, FP16>, merge<Portable, FP32>, merge<Portable, E4M3>, merge<Portable, E5M2>},
    window_encode<Portable>, window_decode<Portable>, cascade_encode<Portable>, cascade_decode<Portable>,
    {Planes<Portable, 1>::encode, Planes<Portable, 2>::encode, Planes<Portable, 4>::encode},
    {Planes<Portable, 1>::decode, Planes<Portable, 2>::decode, Planes<Portable, 4>::decode},
    weighted_sum,
};
}  // namespace zp
