#include "frame.h"

namespace zp {

void write_header(const Ops& ops, const Spec& spec, const u8* ranking, u64 n, u64 dynamic_bytes, const u8* dynamic, u8* frame) {
    Header h = make_header(spec.codec, spec.dtype, spec.checksum, spec.slack, n, dynamic_bytes, ranking);
    std::memcpy(frame, &h, HEADER);
    if (spec.checksum) {
        h.checksum = checksum(ops, frame, h.static_bytes, dynamic, dynamic_bytes);
        std::memcpy(frame, &h, HEADER);
    }
}

bool read_header(const u8* frame, u64 bytes, Header* h, Error* e) {
    if (bytes < HEADER) return fail(e, LENGTH, HEADER, bytes);
    std::memcpy(h, frame, HEADER);
    Fault f = header_fault(*h);
    if (f.field) return fail(e, f.field, f.expected, f.found);
    if (bytes < h->static_bytes) return fail(e, LENGTH, h->static_bytes, bytes);
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

ZP_API zp::u64 zp_static_size(int codec, int dtype, zp::u32 slack, zp::u64 n) { return zp::static_size(codec, dtype, slack, n); }
ZP_API zp::u64 zp_max_dynamic_size(int codec, int dtype, zp::u32 slack, zp::u64 n) { return zp::max_dynamic_size(codec, dtype, slack, n); }
ZP_API zp::u32 zp_max_slack(int codec, int dtype) {
    return codec == zp::RAW ? 0 : zp::TILE * zp::item_bytes(dtype) - zp::fixed_bytes(codec, dtype, zp::TILE);
}
ZP_API int zp_has_avx2() { return zp::avx2_ops() != nullptr; }
ZP_API int zp_header(const zp::u8* frame, zp::u64 bytes, zp::Header* h, zp::Error* e) { return zp::read_header(frame, bytes, h, e); }
