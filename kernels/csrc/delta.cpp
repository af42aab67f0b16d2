#include "delta.h"

#include <algorithm>

#include "parallel.h"

namespace zp {
namespace {
constexpr u64 P1 = 0x9E3779B185EBCA87ull, P2 = 0xC2B2AE3D27D4EB4Full, P3 = 0x165667B19E3779F9ull, P4 = 0x85EBCA77C2B2AE63ull, P5 = 0x27D4EB2F165667C5ull;
u64 rotate(u64 x, int by) { return x << by | x >> (64 - by); }
u64 mix(u64 lane, u64 word) { return rotate(lane + word * P2, 31) * P1; }

struct Part {  // a segment of a chunk
    u64 chunk, index, first, count;  // elements first..first+count-1
    u8* dynamic;
    u64 used, digest;  // bytes of planes; XXH64 of the segment of the reference
};
std::vector<Part> segments(u64 chunks, const u64* n, u64 item) {
    std::vector<Part> parts;
    const u64 step = SEGMENT / item;
    for (u64 i = 0; i < chunks; i++)
        for (u64 first = 0; first < n[i]; first += step) parts.push_back({i, first / step, first, std::min(step, n[i] - first), nullptr, 0, 0});
    return parts;
}
u64 plane_total(const u8* masks, u64 bytes) {
    u64 bits = 0;
    for (u64 i = 0; i + 8 <= bytes; i += 8) bits += (u64)__builtin_popcountll(load64(masks + i));
    for (u64 i = bytes & ~7ull; i < bytes; i++) bits += (u64)__builtin_popcount(masks[i]);
    return 8 * bits;
}
}  // namespace

u64 xxh64(const u8* p, u64 bytes, u64 seed) {
    const u8* end = p + bytes;
    u64 h = seed + P5;
    if (bytes >= 32) {
        u64 lane[4] = {seed + P1 + P2, seed + P2, seed, seed - P1};
        for (; end - p >= 32; p += 32) {
            fetch_read(p);
            for (int k = 0; k < 4; k++) lane[k] = mix(lane[k], load64(p + 8 * k));
        }
        h = rotate(lane[0], 1) + rotate(lane[1], 7) + rotate(lane[2], 12) + rotate(lane[3], 18);
        for (u64 v : lane) h = (h ^ mix(0, v)) * P1 + P4;
    }
    h += bytes;
    for (; end - p >= 8; p += 8) h = rotate(h ^ mix(0, load64(p)), 27) * P1 + P4;
    if (end - p >= 4) {
        u32 word;
        std::memcpy(&word, p, 4);
        h = rotate(h ^ word * P1, 23) * P2 + P3;
        p += 4;
    }
    for (; p < end; p++) h = rotate(h ^ *p * P5, 11) * P1;
    h = (h ^ h >> 33) * P2;
    h = (h ^ h >> 29) * P3;
    return h ^ h >> 32;
}

ZP_API int zp_delta_encode(const Spec* spec, u64 chunks, const u8* const* src, const u8* const* ref, const u64* n, u8* static_out, u8* dynamic_out, i64* sizes,
                           int threads, int backend) {
    const Ops* ops = ops_for(backend);
    if (!ops) return 2;
    const int d = spec->dtype;
    const u64 item = item_bytes(d);
    std::vector<u8*> frame(chunks), room(chunks);
    u8* at = dynamic_out;
    for (u64 i = 0; i < chunks; i++) {
        frame[i] = static_out, room[i] = at;
        static_out += delta_static_size(d, n[i]), at += delta_max_dynamic_size(d, n[i]);
    }
    std::vector<Part> parts = segments(chunks, n, item);
    auto run = [&](Part& p) {
        const u8* old = ref[p.chunk] + p.first * item;
        u8* masks = frame[p.chunk] + HEADER + delta_masks(d, p.first);
        p.digest = xxh64(old, p.count * item, p.index);
        p.used = (u64)(ops->delta_encode[item / 2](src[p.chunk] + p.first * item, old, p.count, masks, p.dynamic) - p.dynamic);
    };
    if (threads > 1)  // each where nothing can reach it, then packed
        parallel(parts.size(), threads, [&](u64 k, int) {
            parts[k].dynamic = room[parts[k].chunk] + parts[k].first * item;
            run(parts[k]);
        });
    at = dynamic_out;
    u64 k = 0;
    for (u64 i = 0; i < chunks; i++) {
        u8* begin = at;
        u64 digest = 0;
        for (; k < parts.size() && parts[k].chunk == i; k++) {
            Part& p = parts[k];
            if (threads > 1) {
                std::memmove(at, p.dynamic, p.used);
            } else {
                p.dynamic = at;
                run(p);
            }
            at += p.used, digest += p.digest;
        }
        u8* end = begin + align_up((u64)(at - begin), ALIGN);
        std::memset(at, 0, (size_t)(end - at));
        at = end;
        u64 used = HEADER + delta_masks(d, n[i]);
        std::memset(frame[i] + used, 0, delta_static_size(d, n[i]) - used);
        close_frame(*ops, delta_header(d, spec->checksum, n[i], (u64)(at - begin), digest), begin, frame[i]);
        sizes[4 * i] = at - begin;
    }
    return 0;
}

ZP_API int zp_delta_decode(const Spec* spec, u64 chunks, const u64* n, const Batch* batch, const u8* const* ref, u8* const* dst, int threads, int backend,
                           Error* err) {
    const Ops* ops = ops_for(backend);
    if (!ops) return 2;
    std::vector<Frame> frames;
    if (!open_frames(*ops, *spec, 1, chunks, n, *batch, frames, err)) return 1;
    const int d = spec->dtype;
    const u64 item = item_bytes(d);
    std::vector<Part> parts = segments(chunks, n, item);
    auto masks = [&](const Part& p) { return frames[p.chunk].bytes + HEADER + delta_masks(d, p.first); };
    parallel(parts.size(), threads, [&](u64 k, int) {
        Part& p = parts[k];
        p.used = plane_total(masks(p), delta_masks(d, p.count));
        p.digest = xxh64(ref[p.chunk] + p.first * item, p.count * item, p.index);
    });
    std::vector<u64> used(chunks), digest(chunks);
    for (Part& p : parts) used[p.chunk] += p.used, digest[p.chunk] += p.digest;
    for (u64 i = 0; i < chunks; i++) {
        const Header& h = frames[i].h;
        u64 sent;
        std::memcpy(&sent, h.ranking, 8);
        err->chunk = (i64)i;
        if (align_up(used[i], ALIGN) != h.dynamic_bytes) return fail(err, PLANES, align_up(used[i], ALIGN), h.dynamic_bytes), 1;
        if (sent != digest[i]) return fail(err, REFERENCE, sent, digest[i]), 1;
        used[i] = 0;
    }
    std::vector<const u8*> planes;
    for (const Part& p : parts) {
        planes.push_back(frames[p.chunk].dynamic + used[p.chunk]);
        used[p.chunk] += p.used;
    }
    parallel(parts.size(), threads, [&](u64 k, int) {
        const Part& p = parts[k];
        ops->delta_decode[item / 2](masks(p), planes[k], ref[p.chunk] + p.first * item, p.count, dst[p.chunk] + p.first * item);
    });
    return 0;
}
}  // namespace zp
