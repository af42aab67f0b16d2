// Frame header, checksum, and what the C ABI shares. Mirrored by kernels/native.py.
#pragma once
#include "header.h"
#include "ops.h"

#define ZP_API extern "C" __attribute__((visibility("default")))

namespace zp {

struct Spec {             // what encoder and decoder agree on before any byte moves
    u8 codec, dtype, checksum, ranked;  // ranked: `ranking` is given; else each frame measures its own
    u32 slack;
    int base;             // window base of every tile, or -1: each tile finds its own
    u8 ranking[16];       // rank -> symbol
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
}  // namespace zp
