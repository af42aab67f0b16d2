// Format of `delta` frames: elements coded against a reference, an earlier version of the tensor that both sides hold.
// docs/wire-format.md has the prose; planes.h the inner loops.
#pragma once
#include "frame.h"

namespace zp {
constexpr u8 DELTA = 3;
static_assert(DELTA == CODECS, "ids below are those of tiled codecs and raw");
constexpr u32 SEGMENT = 1 << 16;  // raw bytes: what a thread takes at a time, and what is hashed at a time
enum DeltaField { PLANES = LENGTH + 1, REFERENCE };

inline u64 groups(u64 n) { return (n + GROUP - 1) / GROUP; }
inline u64 delta_masks(int d, u64 n) { return groups(n) * item_bytes(d); }
inline u64 delta_static_size(int d, u64 n) { return align_up(HEADER + delta_masks(d, n), ALIGN); }
inline u64 delta_max_dynamic_size(int d, u64 n) { return align_up(delta_masks(d, n) * GROUP, ALIGN); }  // every plane kept

// All but codec, digest (where others have a ranking) and sizes is as in a raw frame.
inline Header delta_header(int d, bool checksummed, u64 n, u64 dynamic_bytes, u64 digest) {
    Header h = make_header(RAW, d, checksummed, 0, n, dynamic_bytes, nullptr);
    h.codec = DELTA, h.static_bytes = delta_static_size(d, n);
    std::memcpy(h.ranking, &digest, 8);
    return h;
}
inline Fault delta_fault(const Header& h) {
    Header raw = h;
    raw.codec = RAW, raw.static_bytes = static_size(RAW, h.dtype, 0, h.elements), raw.dynamic_bytes = 0;
    std::memset(raw.ranking, 0, 8);
    Fault f = header_fault(raw);
    if (f.field) return f;
    u64 size = delta_static_size(h.dtype, h.elements), most = delta_max_dynamic_size(h.dtype, h.elements);
    if (h.static_bytes != size) return {STATIC_BYTES, size, h.static_bytes};
    if (h.dynamic_bytes % ALIGN || h.dynamic_bytes > most) return {DYNAMIC_BYTES, most, h.dynamic_bytes};
    return {OK, 0, 0};
}

// XXH64 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md) of one segment of a reference.
u64 xxh64(const u8* data, u64 bytes, u64 seed);
}  // namespace zp

// As zp_encode and zp_decode, with one reference of the same size per chunk. Decoding changes nothing before all frames
// and references have been checked; dst[i] may be ref[i].
ZP_API int zp_delta_encode(const zp::Spec* spec, zp::u64 chunks, const zp::u8* const* src, const zp::u8* const* ref, const zp::u64* n, zp::u8* static_out,
                           zp::u8* dynamic_out, zp::i64* sizes, int threads, int backend);
ZP_API int zp_delta_decode(const zp::Spec* spec, zp::u64 chunks, const zp::u64* n, const zp::Batch* batch, const zp::u8* const* ref, zp::u8* const* dst,
                           int threads, int backend, zp::Error* err);
