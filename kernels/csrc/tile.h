// Wire format of one tile, shared by the CPU library and the CUDA kernels: include-free, host and device.
// docs/wire-format.md is the prose of this file; a change here is a change of the format.
#pragma once
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define ZP_HD __host__ __device__ __forceinline__ constexpr
#else
#define ZP_HD inline __attribute__((always_inline)) constexpr
#endif

namespace zp {
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

enum CodecId { RAW = 0, WINDOW = 1, CASCADE = 2, CODECS = 3 };
enum Dtype { U8 = 0, BF16 = 1, FP16 = 2, FP32 = 3, E4M3 = 4, E5M2 = 5, DTYPES = 6 };
enum Mode { CODED = 0, STORED = 1, CODED_LOW_ZERO = 2 };  // LOW_ZERO: fp32 whose low 16 bits are all zero

constexpr u32 TILE = 4096;       // elements of a tile
constexpr u32 HEADER = 64;       // bytes of the frame header
constexpr u32 RECORD = 16;       // bytes of the record that opens every tile
constexpr u32 ALIGN = 128;       // frame regions are multiples of a DRAM line
constexpr u32 WINDOW_WIDTH = 7;  // exponents with a 3-bit code
constexpr u32 SPAN = 15;         // consecutive exponents the cascade can rank; symbol 15 is exponent 0
constexpr u32 ZERO_SYMBOL = 15;
constexpr u32 RANKED = 12;       // ranks with a code: 4 levels of 3
constexpr u32 ESCAPE_CODE = 15;  // level 3, digit 3

// Opens a tile in the static region (little-endian).
struct Record {
    u8 mode, base;     // base: exponent of window code 1, or of cascade symbol 0
    u16 count[3];      // cascade: elements that reach level 2, 3, 4
    u16 escapes, zero;
    u16 offset_lo, offset_hi;  // where the tile's bytes start in the dynamic region, in 4-byte units; 0 if it has none
    ZP_HD u64 offset() const { return 4ull * (offset_lo | ((u32)offset_hi << 16)); }
    ZP_HD void set_offset(u64 bytes) { offset_lo = (u16)(bytes >> 2); offset_hi = (u16)(bytes >> 18); }
};
static_assert(sizeof(Record) == RECORD, "record is 16 bytes");

ZP_HD u64 align_up(u64 x, u64 a) { return (x + a - 1) / a * a; }
ZP_HD u32 item_bytes(int d) { return d == FP32 ? 4 : d == BF16 || d == FP16 ? 2 : 1; }
ZP_HD u32 max_exponent(int d) { return d == BF16 || d == FP32 ? 255 : d == E4M3 ? 15 : 31; }
// An element, rotated left by one bit, is exponent : mantissa : sign. What follows the exponent is its rest:
// a byte (bf16, fp16, upper half of fp32) and bit planes (fp16: 3, e4m3: 4, e5m2: 3).
ZP_HD u32 rest_bytes(int d) { return d == BF16 || d == FP16 || d == FP32; }
ZP_HD u32 rest_planes(int d) { return d == E4M3 ? 4 : d == FP16 || d == E5M2 ? 3 : 0; }
ZP_HD u32 code_planes(int c) { return c == WINDOW ? 3 : 2; }

// Elements of a tile, rounded so that every array in it starts on 16 bytes.
ZP_HD u32 padded(u32 m) { return (m + 127) & ~127u; }
ZP_HD u32 plane_bytes(u32 m) { return padded(m) / 8; }
ZP_HD u32 fixed_bytes(int c, int d, u32 m) { return padded(m) * rest_bytes(d) + plane_bytes(m) * (rest_planes(d) + code_planes(c)); }
ZP_HD u32 body_bytes(int c, int d, u32 slack, u32 m) { return fixed_bytes(c, d, m) + slack; }
ZP_HD u32 slot_bytes(int c, int d, u32 slack, u32 m) { return RECORD + body_bytes(c, d, slack, m); }
ZP_HD u64 tiles(u64 n) { return (n + TILE - 1) / TILE; }
ZP_HD u32 tile_elements(u64 n, u64 t) { return n - t * TILE < TILE ? (u32)(n - t * TILE) : TILE; }
ZP_HD u64 slot_offset(int c, int d, u32 slack, u64 t) { return HEADER + t * slot_bytes(c, d, slack, TILE); }

// Bytes of a stored (incompressible) tile that do not fit its slot: the most a tile can add to the dynamic region.
ZP_HD u32 stored_spill(int c, int d, u32 slack, u32 m) {
    u32 raw = m * item_bytes(d), body = body_bytes(c, d, slack, m);
    return raw > body ? (raw - body + 3) & ~3u : 0;
}
ZP_HD u64 static_size(int c, int d, u32 slack, u64 n) {
    if (c == RAW) return align_up(HEADER + n * item_bytes(d), ALIGN);
    if (n == 0) return ALIGN;
    u64 last = tiles(n) - 1;
    return align_up(slot_offset(c, d, slack, last) + slot_bytes(c, d, slack, tile_elements(n, last)), ALIGN);
}
ZP_HD u64 max_dynamic_size(int c, int d, u32 slack, u64 n) {
    if (c == RAW || n == 0) return 0;
    u64 last = tiles(n) - 1;
    return align_up(last * stored_spill(c, d, slack, TILE) + stored_spill(c, d, slack, tile_elements(n, last)), ALIGN);
}

// Variable part of a coded tile: low halves, two planes per level 2 to 4 (each padded to a byte), escapes.
ZP_HD u32 low_bytes(int d, int mode, u32 m) { return d == FP32 && mode == CODED ? 2 * m : 0; }
ZP_HD u32 level_bytes(u32 count) { return (count + 7) / 8; }
ZP_HD u32 variable_bytes(int d, u32 m, const Record& r) {
    return low_bytes(d, r.mode, m) + 2 * (level_bytes(r.count[0]) + level_bytes(r.count[1]) + level_bytes(r.count[2])) + r.escapes;
}
// Where a coded tile's variable part goes: the slack of its slot if it fits, else the dynamic region as a whole.
// STORED when that would not be smaller than the plain bytes. Returns the tile's dynamic bytes.
ZP_HD u32 spill_bytes(int c, int d, u32 slack, u32 m, Record& r) {
    u32 var = variable_bytes(d, m, r);
    if (var <= slack) return 0;
    u32 spill = (var + 3) & ~3u, stored = stored_spill(c, d, slack, m);
    if (spill < stored) return spill;
    r = Record{STORED, 0, {0, 0, 0}, 0, 0, 0, 0};
    return stored;
}

// Bases that make sense: all that a window or the span of symbols covers are exponents of the dtype (cascade: not 0).
ZP_HD int lowest_base(int c) { return c == WINDOW ? 0 : 1; }
ZP_HD int highest_base(int c, int d) {
    int top = (int)max_exponent(d) - (int)(c == WINDOW ? WINDOW_WIDTH - 1 : SPAN - 1);
    return top < lowest_base(c) ? lowest_base(c) : top;
}
ZP_HD u32 clamp_base(int c, int d, int base) {
    int low = lowest_base(c), top = highest_base(c, d);
    return (u32)(base < low ? low : base > top ? top : base);
}

// Window base of a tile from its own mean exponent m over non-zero exponents. For N(0, sigma^2) the mean of
// floor(log2|x|) is log2 sigma - 1.4163 (E log2|z| = -(gamma + ln 2) / (2 ln 2), minus one half for the floor), and the
// best base is ceil(log2 sigma - 0.7196) - 5, so ceil(m + 0.6967) - 5; 713/1024 = 0.6963.
// Other shapes have their mean elsewhere in their best window: `shift` says how far (0 for normal data, and for cascade).
ZP_HD u32 tile_base(int c, int d, u32 sum, u32 nonzero, u32 m, int shift = 0) {
    if (nonzero == 0 || (c == WINDOW && m - nonzero > nonzero)) return (u32)lowest_base(c);
    int base = (int)((1024 * sum + 713 * nonzero + 1024 * nonzero - 1) / (1024 * nonzero)) - 5;
    return clamp_base(c, d, shift + (c == CASCADE ? base - 5 : base));  // symbols: the window, 5 exponents below it, 3 above
}

// Symbols of Gaussian data, most frequent first: nibble r is the symbol of rank r. Ties of a measured ranking keep it.
constexpr u64 GAUSSIAN_RANKING = 0xfedc012345b678a9ull;
// What suits a chunk, where nobody says, shows in every SAMPLE_STRIDE-th element of sampled tiles: tile j * tiles / samples
// for j below samples. Window: the shift of -SHIFTS to SHIFTS that covers most (of equals the nearest to 0, of those the
// lower). Cascade: symbols by how often they occur; equal counts keep the order of normal data.
constexpr u32 SAMPLE_STRIDE = 8;
constexpr int SHIFTS = 3;
ZP_HD u64 sample_tiles(u64 tiles) { return tiles < 32 ? (tiles > 0) : tiles < 256 ? tiles / 16 : 16; }

// Cascade code of a rank: level * 4 + digit; ranks 12-15 have none and escape.
ZP_HD u32 rank_code(u32 rank) { return rank < RANKED ? rank / 3 * 4 + rank % 3 : ESCAPE_CODE; }
ZP_HD u32 symbol_of(u32 e, u32 base) { return e == 0 ? ZERO_SYMBOL : e - base < SPAN ? e - base : 16; }

// Eight packed bytes -> bit `bit` of each, as a byte; and back to 0/1 bytes.
ZP_HD u32 bits8(u64 v, int bit) { return (u32)((((v >> bit) & 0x0101010101010101ull) * 0x0102040810204080ull) >> 56); }
ZP_HD u64 spread8(u32 bits) {
    u64 x = (bits * 0x0101010101010101ull) & 0x8040201008040201ull;
    return ((x + 0x7f7f7f7f7f7f7f7full) >> 7) & 0x0101010101010101ull;
}

// Element <-> exponent byte and rest (bits 0-7: byte or planes, bits 8-10: planes of fp16). x of fp32 is its upper half.
template <int D> ZP_HD u32 rotated(u32 x) {
    return D == E4M3 || D == E5M2 ? ((x << 1) | (x >> 7)) & 0xff : ((x << 1) | (x >> 15)) & 0xffff;
}
template <int D> ZP_HD u32 unrotated(u32 y) {
    return D == E4M3 || D == E5M2 ? ((y >> 1) | (y << 7)) & 0xff : ((y >> 1) | (y << 15)) & 0xffff;
}
template <int D> struct Rest { static constexpr u32 bits = D == FP16 ? 11 : D == E4M3 ? 4 : D == E5M2 ? 3 : 8; };
}  // namespace zp
