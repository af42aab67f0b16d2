#include "frame.h"

namespace zp {

void write_header(const Spec& spec, const u8* ranking, u64 n, u64 dynamic_bytes, const u8* dynamic, u8* frame) {
    Header h = {};
    std::memcpy(h.magic, "ZPLN", 4);
    h.version = VERSION, h.codec = spec.codec, h.dtype = spec.dtype, h.flags = spec.checksum ? CHECKSUMMED : 0;
    h.elements = n, h.static_bytes = static_size(spec.codec, spec.dtype, spec.slack, n), h.dynamic_bytes = dynamic_bytes;
    h.slack = spec.slack;
    if (spec.codec == CASCADE)
        for (int r = 0; r < 16; r++) h.ranking[r / 2] |= ranking[r] << (4 * (r % 2));
    std::memcpy(frame, &h, HEADER);
    if (spec.checksum) {
        h.checksum = checksum(frame, h.static_bytes, dynamic, dynamic_bytes);
        std::memcpy(frame, &h, HEADER);
    }
}

bool read_header(const u8* frame, u64 bytes, Header* h, Error* e) {
    if (bytes < HEADER) return fail(e, LENGTH, HEADER, bytes);
    std::memcpy(h, frame, HEADER);
    u32 magic, zpln;
    std::memcpy(&magic, h->magic, 4);
    std::memcpy(&zpln, "ZPLN", 4);
    if (magic != zpln) return fail(e, MAGIC, zpln, magic);
    if (h->version != VERSION) return fail(e, VERSION_, VERSION, h->version);
    if (h->codec >= CODECS) return fail(e, CODEC, CODECS - 1, h->codec);
    if (h->dtype >= DTYPES || (h->dtype == U8 && h->codec != RAW)) return fail(e, DTYPE, DTYPES - 1, h->dtype);
    if (h->flags & ~CHECKSUMMED) return fail(e, FLAGS, CHECKSUMMED, h->flags);
    if (h->zero0 || h->zero1) return fail(e, RESERVED, 0, h->zero0 | h->zero1);
    if (!(h->flags & CHECKSUMMED) && h->checksum) return fail(e, CHECKSUM, 0, h->checksum);
    u32 widest = TILE * item_bytes(h->dtype) - (h->codec == RAW ? 0 : fixed_bytes(h->codec, h->dtype, TILE));
    if (h->slack % 16 || h->slack > widest || (h->codec == RAW && h->slack)) return fail(e, SLACK, widest, h->slack);
    if (h->elements > 1ull << 40) return fail(e, ELEMENTS, 1ull << 40, h->elements);
    u64 size = static_size(h->codec, h->dtype, h->slack, h->elements), most = max_dynamic_size(h->codec, h->dtype, h->slack, h->elements);
    if (h->static_bytes != size) return fail(e, STATIC_BYTES, size, h->static_bytes);
    if (h->dynamic_bytes % ALIGN || h->dynamic_bytes > most) return fail(e, DYNAMIC_BYTES, most, h->dynamic_bytes);
    u8 ranking[16];
    u32 seen = 0;
    unpack_ranking(h->ranking, ranking);
    for (u8 symbol : ranking) seen |= 1u << symbol;
    if (seen != (h->codec == CASCADE ? 0xffffu : 1u)) return fail(e, RANKING, h->codec == CASCADE ? 0xffff : 1, seen);
    if (bytes < size) return fail(e, LENGTH, size, bytes);
    return true;
}

// Sum of w[i] * (2 (i mod 2^31) + 1) mod 2^64 over the 32-bit words of a region: independent of order, so every backend
// can take it in parallel; any one changed word changes it, and so does swapping two unequal words.
static u64 weighted_sum(const u8* p, u64 bytes, u64 first) {
    u64 total = 0;
    for (u64 i = 0; i < bytes / 4; i++) {
        u32 w;
        std::memcpy(&w, p + 4 * i, 4);
        total += (u64)w * (u32)(2 * (u32)(first + i) + 1);
    }
    return total;
}
u64 checksum(const u8* s, u64 static_bytes, const u8* d, u64 dynamic_bytes) {
    u8 head[HEADER];
    std::memcpy(head, s, HEADER);
    std::memset(head + 48, 0, 8);  // the field itself counts as zero
    return weighted_sum(head, HEADER, 0) + weighted_sum(s + HEADER, static_bytes - HEADER, HEADER / 4) + weighted_sum(d, dynamic_bytes, static_bytes / 4);
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
