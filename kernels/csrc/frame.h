// Frame header, checksum, and what the C ABI shares. Mirrored by kernels/native.py.
#pragma once
#include <vector>

#include "header.h"
#include "ops.h"

#define ZP_API extern "C" __attribute__((visibility("default")))

namespace zp {

struct Spec {             // what encoder and decoder agree on, and the encoder's choices
    u8 codec, dtype, checksum, measure;  // measure: find `shift` or `ranking` from a sample of each chunk
    u32 slack;
    int base;             // of every tile, or -1: each tile finds its own and adds `shift` to it
    int shift;
    u8 ranking[16];       // cascade: rank -> symbol
};

struct Error { int field, zero; i64 chunk, tile; u64 expected, found; };

inline bool fail(Error* e, int field, u64 expected, u64 found) {
    e->field = field, e->expected = expected, e->found = found;
    return false;
}

// Writes the header, last of all: with a checksum it reads both regions.
void close_frame(const Ops& ops, Header h, const u8* dynamic, u8* frame);
// Reads and checks a header; `bytes` is what the caller holds of the frame's static region.
bool read_header(const u8* frame, u64 bytes, Header* h, Error* e);
u64 checksum(const Ops& ops, const u8* static_region, u64 static_bytes, const u8* dynamic_region, u64 dynamic_bytes);
const Ops* ops_for(int backend);  // 0 best, 1 portable, 2 AVX2; null if the processor lacks it

struct Batch {  // what the caller received: static regions back to back, dynamic ones at `offsets`, or back to back
    const u8* fixed;
    u64 fixed_bytes;
    const u8* dynamic;
    u64 dynamic_bytes;
    const u64* offsets;
};

struct Frame {
    Header h;
    const u8 *bytes, *dynamic;
};
// Reads and checks the headers of a batch against what the caller expects: frame i holds n[i % chunks] elements.
bool open_frames(const Ops& ops, const Spec& s, u64 senders, u64 chunks, const u64* n, Batch b, std::vector<Frame>& frames, Error* e);
}  // namespace zp

// The C ABI. Status 0: done; 1: *err says what is wrong with the frames; 2: this processor lacks the backend.

// One frame per chunk. static_out takes the static regions back to back, dynamic_out the dynamic ones, each packed.
// sizes: per chunk {dynamic bytes, escapes below, escapes above, stored tiles}.
ZP_API int zp_encode(const zp::Spec* spec, zp::u64 chunks, const zp::u8* const* src, const zp::u64* n, zp::u8* static_out, zp::u8* dynamic_out,
                     zp::i64* sizes, int threads, int backend);
ZP_API int zp_decode(const zp::Spec* spec, zp::u64 chunks, const zp::u64* n, const zp::Batch* batch, zp::u8* const* dst, int threads, int backend,
                     zp::Error* err);
// senders * chunks frames, sender by sender: dst[j] is the sum over senders of their frame j, accumulated in FP32 in the
// order of senders and rounded once to the dtype.
ZP_API int zp_decode_reduce(const zp::Spec* spec, zp::u64 senders, zp::u64 chunks, const zp::u64* n, const zp::Batch* batch, zp::u8* const* dst,
                            int threads, int backend, zp::Error* err);
ZP_API int zp_header(const zp::u8* frame, zp::u64 bytes, zp::Header* h, zp::Error* e);
ZP_API zp::u64 zp_static_size(int codec, int dtype, zp::u32 slack, zp::u64 n);
ZP_API zp::u64 zp_max_dynamic_size(int codec, int dtype, zp::u32 slack, zp::u64 n);
ZP_API zp::u32 zp_max_slack(int codec, int dtype);
ZP_API int zp_has_avx2();
