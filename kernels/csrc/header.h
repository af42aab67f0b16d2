// The frame header and the names of what can be wrong with a frame. Host and device, include-free.
#pragma once
#include "tile.h"

namespace zp {
struct Header {           // 64 bytes, little-endian
    u8 magic[4], version, codec, dtype, flags;
    u64 elements, static_bytes, dynamic_bytes;
    u32 slack, zero0;
    u8 ranking[8];        // nibble r (low half of a byte first): symbol of rank r
    u64 checksum, zero1;
};
static_assert(sizeof(Header) == HEADER, "header is 64 bytes");
constexpr u8 VERSION = 1, CHECKSUMMED = 1;

enum Field {
    OK = 0, MAGIC, VERSION_, CODEC, DTYPE, FLAGS, ELEMENTS, STATIC_BYTES, DYNAMIC_BYTES, SLACK, RESERVED, RANKING, CHECKSUM,
    TILE_MODE, TILE_BASE, TILE_COUNTS, TILE_OFFSET, TILE_CODES, LENGTH
};

constexpr u32 MAGIC_WORD = 0x4e4c505a;  // "ZPLN"
constexpr u64 MOST_ELEMENTS = 1ull << 40;

// Finds out what is wrong with something read: the field, or OK, and what was expected and found there.
struct Fault { int field; u64 expected, found; };

// The ranking counts for cascade only; sizes follow from the rest.
ZP_HD Header make_header(int c, int d, bool checksummed, u32 slack, u64 n, u64 dynamic_bytes, const u8* ranking) {
    Header h = {{'Z', 'P', 'L', 'N'}, VERSION, (u8)c, (u8)d, (u8)(checksummed ? CHECKSUMMED : 0), n, static_size(c, d, slack, n), dynamic_bytes, slack, 0, {}, 0, 0};
    if (c == CASCADE)
        for (int r = 0; r < 16; r++) h.ranking[r / 2] |= ranking[r] << (4 * (r % 2));
    return h;
}
ZP_HD Fault header_fault(const Header& h) {
    u32 magic = h.magic[0] | h.magic[1] << 8 | h.magic[2] << 16 | (u32)h.magic[3] << 24;
    if (magic != MAGIC_WORD) return {MAGIC, MAGIC_WORD, magic};
    if (h.version != VERSION) return {VERSION_, VERSION, h.version};
    if (h.codec >= CODECS) return {CODEC, CODECS - 1, h.codec};
    if (h.dtype >= DTYPES || (h.dtype == U8 && h.codec != RAW)) return {DTYPE, DTYPES - 1, h.dtype};
    if (h.flags & ~CHECKSUMMED) return {FLAGS, CHECKSUMMED, h.flags};
    if (h.zero0 || h.zero1) return {RESERVED, 0, h.zero0 | h.zero1};
    if (!(h.flags & CHECKSUMMED) && h.checksum) return {CHECKSUM, 0, h.checksum};
    u32 widest = TILE * item_bytes(h.dtype) - (h.codec == RAW ? 0 : fixed_bytes(h.codec, h.dtype, TILE));
    if (h.slack % 16 || h.slack > widest || (h.codec == RAW && h.slack)) return {SLACK, widest, h.slack};
    if (h.elements > MOST_ELEMENTS) return {ELEMENTS, MOST_ELEMENTS, h.elements};
    u64 size = static_size(h.codec, h.dtype, h.slack, h.elements), most = max_dynamic_size(h.codec, h.dtype, h.slack, h.elements);
    if (h.static_bytes != size) return {STATIC_BYTES, size, h.static_bytes};
    if (h.dynamic_bytes % ALIGN || h.dynamic_bytes > most) return {DYNAMIC_BYTES, most, h.dynamic_bytes};
    u32 seen = 0, all = h.codec == CASCADE ? 0xffff : 1;
    for (int r = 0; r < 16; r++) seen |= 1u << (h.ranking[r / 2] >> (4 * (r % 2)) & 15);
    if (seen != all) return {RANKING, all, seen};
    return {OK, 0, 0};
}
// Everything that a decoder relies on in the record of a tile of m elements. What it leaves open: whether the tile's
// codes agree with the counts (TILE_CODES), which shows in decoding.
ZP_HD Fault record_fault(int c, int d, u32 slack, u32 m, u64 dynamic_bytes, const Record& r) {
    u32 modes = d == FP32 ? CODED_LOW_ZERO : STORED;
    if (r.mode > modes) return {TILE_MODE, modes, r.mode};
    if (r.zero) return {RESERVED, 0, r.zero};
    u64 spill = stored_spill(c, d, slack, m);
    if (r.mode != STORED) {
        if (r.base < lowest_base(c) || r.base > highest_base(c, d)) return {TILE_BASE, (u64)highest_base(c, d), r.base};
        u32 bound = m;  // each level holds no more than the one before it; a window tile has no levels
        for (int l = 0; l < 3; l++) {
            if (r.count[l] > bound || (c == WINDOW && r.count[l])) return {TILE_COUNTS, c == WINDOW ? 0 : bound, r.count[l]};
            bound = r.count[l];
        }
        if (c == WINDOW) bound = m;
        if (r.escapes > bound) return {TILE_COUNTS, bound, r.escapes};
        spill = variable_bytes(d, m, r);
        if (spill <= slack) return {OK, 0, 0};
    }
    if (r.offset() + spill > dynamic_bytes) return {TILE_OFFSET, dynamic_bytes - (spill < dynamic_bytes ? spill : dynamic_bytes), r.offset()};
    return {OK, 0, 0};
}

// A checksum is the sum of these over the 32-bit words of a frame, its own field counting as zero: independent of order,
// so every backend can take it in parallel; any one changed word changes it, and so does swapping two unequal words.
ZP_HD u64 weighted(u32 word, u64 index) { return (u64)word * (u32)(2 * (u32)index + 1); }

ZP_HD void unpack_ranking(const u8* packed, u8* ranking) {
    for (int r = 0; r < 16; r++) ranking[r] = packed[r / 2] >> (4 * (r % 2)) & 15;
}
}  // namespace zp
