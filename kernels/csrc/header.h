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

ZP_HD void unpack_ranking(const u8* packed, u8* ranking) {
    for (int r = 0; r < 16; r++) ranking[r] = packed[r / 2] >> (4 * (r % 2)) & 15;
}
}  // namespace zp
