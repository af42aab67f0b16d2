// Frame header, checksum, and what the C ABI shares. Mirrored by kernels/native.py.
#pragma once
#include "ops.h"

#define ZP_API extern "C" __attribute__((visibility("default")))

namespace zp {

struct Spec {             // what encoder and decoder agree on before any byte moves
    u8 codec, dtype, checksum, ranked;  // ranked: `ranking` is given; else each frame measures its own
    u32 slack;
    int base;             // window base of every tile, or -1: each tile finds its own
    u8 ranking[16];       // rank -> symbol
};

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
struct Error { int field, zero; i64 chunk, tile; u64 expected, found; };

inline bool fail(Error* e, int field, u64 expected, u64 found) {
    e->field = field, e->expected = expected, e->found = found;
    return false;
}

// Called last: with a checksum it reads both regions.
void write_header(const Spec& spec, const u8* ranking, u64 n, u64 dynamic_bytes, const u8* dynamic, u8* frame);
// Reads and checks a header; `bytes` is what the caller holds of the frame's static region.
bool read_header(const u8* frame, u64 bytes, Header* h, Error* e);
u64 checksum(const u8* static_region, u64 static_bytes, const u8* dynamic_region, u64 dynamic_bytes);
const Ops* ops_for(int backend);  // 0 best, 1 portable, 2 AVX2; null if the processor lacks it

inline void unpack_ranking(const u8* packed, u8* ranking) {
    for (int r = 0; r < 16; r++) ranking[r] = packed[r / 2] >> (4 * (r % 2)) & 15;
}
}  // namespace zp
