#include <algorithm>
#include <atomic>
#include <memory>

#include "frame.h"
#include "number.h"
#include "parallel.h"

namespace zp {
namespace {
constexpr u64 SPLIT = 64;  // tiles a thread takes at a time

struct Scratch {  // copies of what a damaged record could make a loop overrun
    alignas(64) u8 e[TILE + 2 * GROUP];
    u8 escapes[TILE + GROUP], tile[4 * TILE];
    alignas(64) float sum[TILE];
    Streams levels;
};

// Decodes tile t (m elements) of a frame to dst. False and *err set on anything a correct encoder cannot have written.
bool decode_tile(const Ops& ops, const Frame& f, u64 t, u32 m, u8* dst, const Ahead& next, Scratch& w, Error* err) {
    int c = f.h.codec, d = f.h.dtype;
    err->tile = (i64)t;
    const u8 *slot = f.bytes + slot_offset(c, d, f.h.slack, t), *body = slot + RECORD;
    u32 size = body_bytes(c, d, f.h.slack, m);
    Record r;
    std::memcpy(&r, slot, RECORD);
    Fault fault = record_fault(c, d, f.h.slack, m, f.h.dynamic_bytes, r);
    if (fault.field) return fail(err, fault.field, fault.expected, fault.found);
    if (r.mode == STORED) {
        u32 raw = m * item_bytes(d), kept = std::min(raw, size);
        std::memcpy(dst, body, kept);
        if (raw > kept) std::memcpy(dst + kept, f.dynamic + r.offset(), raw - kept);
        return true;
    }

    u32 var = variable_bytes(d, m, r);
    const u8* p = body + fixed_bytes(c, d, m);
    if (var > f.h.slack) p = f.dynamic + r.offset();
    const u8* low = low_bytes(d, r.mode, m) ? p : nullptr;
    p += low_bytes(d, r.mode, m);
    for (int l = 0; l < 3; l++)
        for (int k = 0; k < 2; k++) {
            u8* stream = (u8*)w.levels[l][k];
            std::memcpy(stream, p, level_bytes(r.count[l]));
            std::memset(stream + level_bytes(r.count[l]), 0, 16);
            p += level_bytes(r.count[l]);
        }
    std::memcpy(w.escapes, p, r.escapes);

    const u8* planes = body + padded(m) * rest_bytes(d) + plane_bytes(m) * rest_planes(d);
    u32 count[3] = {0, 0, 0}, escapes;
    if (c == WINDOW) {
        escapes = ops.window_decode(planes, m, r.base, w.escapes, w.e, next);
    } else {
        u8 exponent_of[16] = {}, ranking[16];
        unpack_ranking(f.h.ranking, ranking);
        for (u32 rank = 0; rank < RANKED; rank++) {
            u32 symbol = ranking[rank];
            exponent_of[rank_code(rank)] = symbol == ZERO_SYMBOL ? 0 : (u8)(r.base + symbol);
        }
        escapes = ops.cascade_decode(planes, m, exponent_of, w.levels, count, w.escapes, w.e, next);
    }
    for (int l = 0; l < 3; l++)
        if (count[l] != r.count[l]) return fail(err, TILE_CODES, r.count[l], count[l]);
    if (escapes != r.escapes) return fail(err, TILE_CODES, r.escapes, escapes);
    ops.merge[d](w.e, body, low, m, dst);
    return true;
}

template <int D> struct Stored { typedef u16 type; };
template <> struct Stored<FP32> { typedef u32 type; };
template <> struct Stored<E4M3> { typedef u8 type; };
template <> struct Stored<E5M2> { typedef u8 type; };

float as_float(u32 bits) { float v; std::memcpy(&v, &bits, 4); return v; }

template <int D> struct Widened {  // every value of a one-byte dtype
    float of[256];
    Widened() {
        for (u32 x = 0; x < 256; x++) of[x] = as_float(widen<D>(x));
    }
};
template <int D> void add(const u8* src, u32 m, bool first, float* sum) {
    typename Stored<D>::type x;
    if constexpr (sizeof x == 1) {
        static const Widened<D> table;
        const float* of = table.of;
        for (u32 i = 0; i < m; i++) sum[i] = first ? of[src[i]] : sum[i] + of[src[i]];
    } else if (first) {
        for (u32 i = 0; i < m; i++, src += sizeof x) std::memcpy(&x, src, sizeof x), sum[i] = as_float(widen<D>(x));
    } else {
        for (u32 i = 0; i < m; i++, src += sizeof x) std::memcpy(&x, src, sizeof x), sum[i] += as_float(widen<D>(x));
    }
}
template <int D> void round_to(const float* sum, u32 m, u8* dst) {
    for (u32 i = 0; i < m; i++) {
        u32 w;
        std::memcpy(&w, sum + i, 4);
        auto x = (typename Stored<D>::type)narrow<D>(w);
        std::memcpy(dst + i * sizeof x, &x, sizeof x);
    }
}
constexpr void (*add_to[DTYPES])(const u8*, u32, bool, float*) = {nullptr, add<BF16>, add<FP16>, add<FP32>, add<E4M3>, add<E5M2>};
constexpr void (*round_from[DTYPES])(const float*, u32, u8*) = {nullptr, round_to<BF16>, round_to<FP16>, round_to<FP32>, round_to<E4M3>, round_to<E5M2>};

struct Part { u64 chunk, first, last; };
std::vector<Part> split_tiles(u64 chunks, const u64* n) {
    std::vector<Part> parts;
    for (u64 i = 0; i < chunks; i++)
        for (u64 t = 0; t < tiles(n[i]); t += SPLIT) parts.push_back({i, t, std::min(t + SPLIT, tiles(n[i]))});
    return parts;
}

// Runs f(part, scratch, error) over parts of SPLIT tiles; the error of the lowest part is the one that is reported.
template <class F> int run_parts(const std::vector<Part>& parts, int threads, Error* err, F f) {
    threads = (int)std::max<u64>(1, std::min<u64>((u64)std::max(threads, 1), parts.size()));
    std::vector<std::unique_ptr<Scratch>> scratch;
    for (int w = 0; w < threads; w++) scratch.emplace_back(new Scratch());
    std::vector<Error> errors(threads);
    std::vector<u64> where(threads, ~0ull);
    std::atomic<u64> lowest{~0ull};
    parallel(parts.size(), threads, [&](u64 k, int worker) {
        if (k > lowest.load(std::memory_order_relaxed)) return;
        Error e = {};
        if (f(parts[k], *scratch[worker], &e)) return;
        if (k < where[worker]) where[worker] = k, errors[worker] = e;
        u64 seen = lowest.load();
        while (k < seen && !lowest.compare_exchange_weak(seen, k)) {}
    });
    size_t best = std::min_element(where.begin(), where.end()) - where.begin();
    if (where[best] == ~0ull) return 0;
    *err = errors[best];
    return 1;
}
}  // namespace

ZP_API int zp_decode(const Spec* s, u64 chunks, const u64* n, const Batch* batch, u8* const* dst, int threads, int backend, Error* err) {
    const Ops* ops = ops_for(backend);
    if (!ops) return 2;
    std::vector<Frame> frames;
    if (!open_frames(*ops, *s, 1, chunks, n, *batch, frames, err)) return 1;
    u64 item = item_bytes(s->dtype), step = TILE * item;
    return run_parts(split_tiles(chunks, n), threads, err, [&](const Part& p, Scratch& w, Error* e) {
        e->chunk = (i64)p.chunk;
        for (u64 t = p.first; t < p.last; t++) {
            u32 m = tile_elements(n[p.chunk], t);
            u8* out = dst[p.chunk] + t * step;
            u32 slot_step = slot_bytes(s->codec, s->dtype, s->slack, TILE);
            bool more = t + 1 < p.last;
            Ahead next = {frames[p.chunk].bytes + slot_offset(s->codec, s->dtype, s->slack, t + 1), more ? slot_step / (TILE / GROUP) : 0, out + step, more ? (u32)(GROUP * item) : 0};
            if (s->codec == RAW)
                std::memcpy(out, frames[p.chunk].bytes + HEADER + t * step, m * item);
            else if (!decode_tile(*ops, frames[p.chunk], t, m, out, next, w, e))
                return false;
        }
        return true;
    });
}

ZP_API int zp_decode_reduce(const Spec* s, u64 senders, u64 chunks, const u64* n, const Batch* batch, u8* const* dst, int threads, int backend, Error* err) {
    const Ops* ops = ops_for(backend);
    if (!ops) return 2;
    std::vector<Frame> frames;
    if (!open_frames(*ops, *s, senders, chunks, n, *batch, frames, err)) return 1;
    u64 step = TILE * item_bytes(s->dtype);
    u32 slot_step = slot_bytes(s->codec, s->dtype, s->slack, TILE);
    return run_parts(split_tiles(chunks, n), threads, err, [&](const Part& p, Scratch& w, Error* e) {
        for (u64 t = p.first; t < p.last; t++) {
            u32 m = tile_elements(n[p.chunk], t);
            for (u64 i = 0; i < senders; i++) {
                const Frame& f = frames[i * chunks + p.chunk];
                u64 then = i + 1 < senders ? i + 1 : 0, step_on = then ? t : t + 1;  // whose slot is read next
                Ahead next = {frames[then * chunks + p.chunk].bytes + slot_offset(s->codec, s->dtype, s->slack, step_on), step_on < p.last ? slot_step / (TILE / GROUP) : 0, nullptr, 0};
                const u8* tile = f.bytes + HEADER + t * step;
                e->chunk = (i64)(i * chunks + p.chunk);
                if (s->codec != RAW) {
                    if (!decode_tile(*ops, f, t, m, w.tile, next, w, e)) return false;
                    tile = w.tile;
                }
                add_to[s->dtype](tile, m, i == 0, w.sum);
            }
            round_from[s->dtype](w.sum, m, dst[p.chunk] + t * step);
        }
        return true;
    });
}
}  // namespace zp
