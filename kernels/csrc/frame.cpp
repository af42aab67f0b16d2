#include "frame.h"

#include "delta.h"

namespace zp {

void close_frame(const Ops& ops, Header h, const u8* dynamic, u8* frame) {
    std::memcpy(frame, &h, HEADER);
    if (h.flags & CHECKSUMMED) {
        h.checksum = checksum(ops, frame, h.static_bytes, dynamic, h.dynamic_bytes);
        std::memcpy(frame, &h, HEADER);
    }
}

bool read_header(const u8* frame, u64 bytes, Header* h, Error* e) {
    if (bytes < HEADER) return fail(e, LENGTH, HEADER, bytes);
    std::memcpy(h, frame, HEADER);
    Fault f = h->codec == DELTA ? delta_fault(*h) : header_fault(*h);
    if (f.field) return fail(e, f.field, f.expected, f.found);
    if (bytes < h->static_bytes) return fail(e, LENGTH, h->static_bytes, bytes);
    return true;
}

bool open_frames(const Ops& ops, const Spec& s, u64 senders, u64 chunks, const u64* n, Batch b, std::vector<Frame>& frames, Error* e) {
    frames.resize(senders * chunks);
    u64 at = 0;
    for (u64 i = 0; i < frames.size(); i++) {
        Frame& f = frames[i];
        e->chunk = (i64)i, e->tile = -1;
        if (!read_header(b.fixed, b.fixed_bytes, &f.h, e)) return false;
        if (f.h.codec != s.codec) return fail(e, CODEC, s.codec, f.h.codec);
        if (f.h.dtype != s.dtype) return fail(e, DTYPE, s.dtype, f.h.dtype);
        if (f.h.elements != n[i % chunks]) return fail(e, ELEMENTS, n[i % chunks], f.h.elements);
        if (f.h.slack != s.slack) return fail(e, SLACK, s.slack, f.h.slack);
        u64 from = b.offsets ? b.offsets[i] : at;
        if (from > b.dynamic_bytes || f.h.dynamic_bytes > b.dynamic_bytes - from) return fail(e, LENGTH, from + f.h.dynamic_bytes, b.dynamic_bytes);
        f.bytes = b.fixed, f.dynamic = b.dynamic + from;
        at = from + f.h.dynamic_bytes;
        if (f.h.flags & CHECKSUMMED) {
            u64 sum = checksum(ops, f.bytes, f.h.static_bytes, f.dynamic, f.h.dynamic_bytes);
            if (sum != f.h.checksum) return fail(e, CHECKSUM, f.h.checksum, sum);
        }
        b.fixed += f.h.static_bytes, b.fixed_bytes -= f.h.static_bytes;
    }
    e->chunk = -1;
    if (b.fixed_bytes) return fail(e, LENGTH, 0, b.fixed_bytes);
    if (!b.offsets && at != b.dynamic_bytes) return fail(e, LENGTH, at, b.dynamic_bytes);
    return true;
}

u64 checksum(const Ops& ops, const u8* s, u64 static_bytes, const u8* d, u64 dynamic_bytes) {
    u8 head[HEADER];
    std::memcpy(head, s, HEADER);
    std::memset(head + 48, 0, 8);  // the field itself counts as zero
    return ops.weighted_sum(head, HEADER, 0) + ops.weighted_sum(s + HEADER, static_bytes - HEADER, HEADER / 4) + ops.weighted_sum(d, dynamic_bytes, static_bytes / 4);
}

const Ops* ops_for(int backend) {
    if (backend == 1) return &portable_ops;
    const Ops* best = avx2_ops();
    return best || backend == 2 ? best : &portable_ops;
}
}  // namespace zp

ZP_API zp::u64 zp_static_size(int codec, int dtype, zp::u32 slack, zp::u64 n) {
    return codec == zp::DELTA ? zp::delta_static_size(dtype, n) : zp::static_size(codec, dtype, slack, n);
}
ZP_API zp::u64 zp_max_dynamic_size(int codec, int dtype, zp::u32 slack, zp::u64 n) {
    return codec == zp::DELTA ? zp::delta_max_dynamic_size(dtype, n) : zp::max_dynamic_size(codec, dtype, slack, n);
}
ZP_API zp::u32 zp_max_slack(int codec, int dtype) {
    return codec == zp::RAW || codec == zp::DELTA ? 0 : zp::TILE * zp::item_bytes(dtype) - zp::fixed_bytes(codec, dtype, zp::TILE);
}
ZP_API int zp_has_avx2() { return zp::avx2_ops() != nullptr; }
ZP_API int zp_header(const zp::u8* frame, zp::u64 bytes, zp::Header* h, zp::Error* e) { return zp::read_header(frame, bytes, h, e); }
