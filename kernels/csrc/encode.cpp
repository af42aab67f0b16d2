#include <algorithm>
#include <memory>

#include "frame.h"
#include "parallel.h"

namespace zp {
namespace {
constexpr u64 SPLIT = 64;  // tiles a thread takes at a time: 512 KiB of bf16

struct Scratch {
    alignas(64) u8 e[TILE + 2 * GROUP];
    u8 low[2 * TILE], escapes[TILE + 4], rest[2 * TILE];
    Streams levels;
};
struct Tally { i64 below, above, stored; };  // escapes under and over the window, tiles that were stored

struct Choice { int shift; u8 ranking[16]; };  // what a frame is encoded with

u32 base_of(const Spec& s, int shift, const Sums& sums, u32 m) {
    return s.base >= 0 ? clamp_base(s.codec, s.dtype, s.base) : tile_base(s.codec, s.dtype, sums.exponents, sums.nonzero, m, shift);
}

u8* write_variable(const Spec& s, const Record& r, u32 m, const Scratch& w, u8* out) {
    u32 low = low_bytes(s.dtype, r.mode, m);
    std::memcpy(out, w.low, low);
    out += low;
    for (int l = 0; l < 3; l++)
        for (int p = 0; p < 2; p++) {
            std::memcpy(out, w.levels[l][p], level_bytes(r.count[l]));
            out += level_bytes(r.count[l]);
        }
    std::memcpy(out, w.escapes, r.escapes);
    return out + r.escapes;
}

// Writes the slot of one tile and its `at`-th bytes of the dynamic region; returns how many bytes those are.
u32 encode_tile(const Ops& ops, const Spec& s, int shift, const u8* code_of, const u8* src, u32 m, u8* slot, u8* dynamic, u64 at, const Ahead& next, Scratch& w, Tally& tally) {
    int c = s.codec, d = s.dtype;
    u8* body = slot + RECORD;
    u8* planes = body + padded(m) * rest_bytes(d) + plane_bytes(m) * rest_planes(d);
    Sums sums;
    ops.split[d](src, m, w.e, body, w.low, &sums);
    Record r = {};
    r.mode = d == FP32 && sums.low == 0 ? CODED_LOW_ZERO : CODED;
    r.base = (u8)base_of(s, shift, sums, m);
    u32 count[3] = {0, 0, 0};
    u32 escapes = c == WINDOW ? ops.window_encode(w.e, m, r.base, planes, w.escapes, next)
 : ops.cascade_encode(w.e, m, r.base, code_of, planes, w.levels, count, w.escapes, next);
    r.count[0] = (u16)count[0], r.count[1] = (u16)count[1], r.count[2] = (u16)count[2];
    r.escapes = (u16)escapes;
    for (u32 i = 0; i < escapes; i++) tally.below += w.escapes[i] < r.base;
    tally.above += escapes;

    u32 spill = spill_bytes(c, d, s.slack, m, r), size = body_bytes(c, d, s.slack, m), fixed = fixed_bytes(c, d, m);
    if (r.mode == STORED) {
        u32 raw = m * item_bytes(d), kept = std::min(raw, size);
        std::memcpy(body, src, kept);
        std::memset(body + kept, 0, size - kept);
        std::memcpy(dynamic, src + kept, raw - kept);
        std::memset(dynamic + raw - kept, 0, spill - (raw - kept));
        tally.stored++;
    } else {
        u8 *out = spill ? dynamic : body + fixed, *end = spill ? dynamic + spill : body + size;
        out = write_variable(s, r, m, w, out);
        std::memset(out, 0, end - out);
        if (spill) std::memset(body + fixed, 0, s.slack);
    }
    if (spill) r.set_offset(at);
    std::memcpy(slot, &r, RECORD);
    return spill;
}

// Finds the shift (window) or the ranking (cascade) that suits a chunk from a sample of it.
void measure(const Ops& ops, const Spec& s, const u8* src, u64 n, Scratch& w, Choice& choice) {
    u64 all = tiles(n), samples = sample_tiles(all);
    u32 seen[17] = {}, near[WINDOW_WIDTH + 2 * SHIFTS] = {};  // near: by distance from the lowest base
    for (u64 j = 0; j < samples; j++) {
        u64 t = j * all / samples;
        u32 m = tile_elements(n, t);
        Sums sums;
        ops.split[s.dtype](src + t * TILE * item_bytes(s.dtype), m, w.e, w.rest, w.low, &sums);
        u32 base = base_of(s, 0, sums, m);
        for (u32 i = 0; i < m; i += SAMPLE_STRIDE) {
            u32 e = w.e[i], distance = e + SHIFTS - base;
            seen[symbol_of(e, base)]++;
            if (distance < WINDOW_WIDTH + 2 * SHIFTS) near[distance]++;
        }
    }
    for (u32 r = 0; r < 16; r++) choice.ranking[r] = GAUSSIAN_RANKING >> (4 * r) & 15;
    std::stable_sort(choice.ranking, choice.ranking + 16, [&](u8 a, u8 b) { return seen[a] > seen[b]; });
    u32 best = 0;
    choice.shift = 0;
    for (int k = 0; s.codec == WINDOW && k <= 2 * SHIFTS; k++) {
        int shift = (k + 1) / 2 * (k % 2 ? -1 : 1);  // 0, -1, 1, -2, ...
        u32 covered = 0;
        for (u32 i = 0; i < WINDOW_WIDTH; i++) covered += near[SHIFTS + shift + (int)i];
        if (covered > best) best = covered, choice.shift = shift;
    }
}

struct Part { u64 chunk, first, last; u8* dynamic; u64 used; Tally tally; };  // tiles first..last-1 of a chunk
}  // namespace

ZP_API int zp_encode(const Spec* spec, u64 chunks, const u8* const* src, const u64* n, u8* static_out, u8* dynamic_out, i64* sizes, int threads, int backend) {
    const Spec& s = *spec;
    const Ops* ops = ops_for(backend);
    if (!ops) return 2;
    u64 item = item_bytes(s.dtype), all = 0;
    std::vector<u8*> frame(chunks);
    for (u64 i = 0; i < chunks; i++) {
        frame[i] = static_out;
        static_out += static_size(s.codec, s.dtype, s.slack, n[i]);
        all += tiles(n[i]);
    }
    threads = (int)std::max<u64>(1, std::min<u64>((u64)threads, all / SPLIT));
    std::vector<std::unique_ptr<Scratch>> scratch;
    for (int w = 0; w < threads; w++) scratch.emplace_back(new Scratch());
    std::vector<Choice> choices(chunks);
    std::vector<Part> parts;
    u8* room = dynamic_out;
    for (u64 i = 0; i < chunks; i++) {
        if (s.codec == RAW) continue;
        choices[i].shift = s.shift;
        std::memcpy(choices[i].ranking, s.ranking, 16);
        if (s.measure) measure(*ops, s, src[i], n[i], *scratch[0], choices[i]);
        u64 step = threads == 1 ? tiles(n[i]) : SPLIT;
        for (u64 t = 0; t < tiles(n[i]); t += step) {
            parts.push_back({i, t, std::min(t + step, tiles(n[i])), room + t * stored_spill(s.codec, s.dtype, s.slack, TILE), 0, {}});
        }
        room += max_dynamic_size(s.codec, s.dtype, s.slack, n[i]);
    }
    auto run = [&](u64 k, int worker) {
        Part& p = parts[k];
        const Choice& choice = choices[p.chunk];
        u8 code_of[17];  // by symbol; 16: neither in the span nor exponent 0
        code_of[16] = ESCAPE_CODE;
        for (u32 r = 0; r < 16; r++) code_of[choice.ranking[r]] = (u8)rank_code(r);
        const u32 step = (u32)(TILE * item), slot_step = slot_bytes(s.codec, s.dtype, s.slack, TILE);
        for (u64 t = p.first; t < p.last; t++) {
            const u8* tile = src[p.chunk] + t * step;
            u8* slot = frame[p.chunk] + slot_offset(s.codec, s.dtype, s.slack, t);
            Ahead next = {tile + step, t + 1 < p.last ? (u32)(GROUP * item) : 0, slot + slot_step, t + 1 < p.last ? slot_step / (TILE / GROUP) : 0};
            p.used += encode_tile(*ops, s, choice.shift, code_of, tile, tile_elements(n[p.chunk], t), slot, p.dynamic + p.used, p.used, next, *scratch[worker], p.tally);
        }
    };
    if (threads > 1) parallel(parts.size(), threads, run);

    // Pack the dynamic parts (with one thread each is written where it belongs) and close the frames.
    u8* at = dynamic_out;
    u64 k = 0;
    for (u64 i = 0; i < chunks; i++) {
        u8* begin = at;
        Tally sum = {};
        for (; k < parts.size() && parts[k].chunk == i; k++) {
            Part& p = parts[k];
            if (threads == 1) {
                p.dynamic = at;
                run(k, 0);
            } else {
                std::memmove(at, p.dynamic, p.used);
                for (u64 t = p.first; at > begin && t < p.last; t++) {
                    u8* slot = frame[i] + slot_offset(s.codec, s.dtype, s.slack, t);
                    Record r;
                    std::memcpy(&r, slot, RECORD);
                    u32 m = tile_elements(n[i], t);
                    bool spilled = r.mode == STORED ? stored_spill(s.codec, s.dtype, s.slack, m) > 0 : variable_bytes(s.dtype, m, r) > s.slack;
                    if (spilled) r.set_offset(r.offset() + (at - begin));
                    std::memcpy(slot, &r, RECORD);
                }
            }
            at += p.used;
            sum.below += p.tally.below, sum.above += p.tally.above, sum.stored += p.tally.stored;
        }
        u8* end = begin + align_up(at - begin, ALIGN);
        std::memset(at, 0, end - at);
        at = end;
        u64 whole = static_size(s.codec, s.dtype, s.slack, n[i]), used = HEADER;
        if (s.codec == RAW) {
            if (n[i]) std::memcpy(frame[i] + HEADER, src[i], n[i] * item);
            used += n[i] * item;
        } else if (n[i]) {
            u64 last = tiles(n[i]) - 1;
            used = slot_offset(s.codec, s.dtype, s.slack, last) + slot_bytes(s.codec, s.dtype, s.slack, tile_elements(n[i], last));
        }
        std::memset(frame[i] + used, 0, whole - used);
        close_frame(*ops, make_header(s.codec, s.dtype, s.checksum, s.slack, n[i], at - begin, choices[i].ranking), begin, frame[i]);
        i64* out = sizes + 4 * i;
        out[0] = at - begin, out[1] = sum.below, out[2] = sum.above - sum.below, out[3] = sum.stored;
    }
    return 0;
}
}  // namespace zp
