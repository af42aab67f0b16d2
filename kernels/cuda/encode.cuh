// One block encodes one tile: its slot in the static region at once, its part of the dynamic region into scratch, since
// that part's place depends on all tiles before it. `place` (frames.cuh) moves it once the sizes are summed.
#pragma once
namespace zp {
// Words of the variable part of a coded tile without fp32's low halves: it is smaller than what it saves, or in the slack.
ZP_HD u32 variable_words(int c, int d) {
    u32 saved = TILE * item_bytes(d) - fixed_bytes(c, d, TILE), most = TILE / 8 * 6 + TILE;
    return (saved < most ? saved : most) / 4 + 4;
}
template <int C, int D> struct EncodeShared {
    u32 sums[WARPS][3], scan[WARPS][2], below;
    u32 code_of[5];  // bytes: entry 0 escape, 1 to 15 the symbols' codes, 16 the code of exponent 0
    u32 variable[variable_words(C, D)];
};

__device__ inline void or_bits(u32* to, u32 at, u32 bits) {  // in any order: OR gives one result
    u32 low = bits << (at & 31), high = at & 31 ? bits >> (32 - (at & 31)) : 0;
    if (low) atomicOr(to + at / 32, low);
    if (high) atomicOr(to + at / 32 + 1, high);
}
__device__ inline void fill(u8* to, u32 bytes, u32 from) {  // zeros from byte `from` (a multiple of 4) to `bytes`
#pragma unroll 1
    for (u32 i = from / 4 + threadIdx.x; i < bytes / 4; i += blockDim.x) ((u32*)to)[i] = 0;
}
__device__ inline void set_byte(u32* words, u32 i, u32 value) { ((u8*)words)[i] = (u8)value; }

// Codes of a thread's elements as bit planes: window 3 planes; cascade planes 0, 1 digit, 2, 3 level.
__device__ inline void window_codes(const u32 (&e)[8], u32 base, u32 (&planes)[4]) {
    u32 before = every_byte((base - 1) & 255), code[8];
    for (int w = 0; w < 8; w++) {
        u32 c = sub_bytes(e[w], before), outside = sign_mask(((c >> 3) & 0x1f1f1f1f) + ~HIGH);
        code[w] = c & ~outside;
    }
    pair_up(code, planes);
    pairs_to_planes(planes);
}
__device__ inline void cascade_codes(const u32 (&e)[8], u32 base, const u32 (&table)[4], u32 zero_code, u32 (&planes)[4]) {
    u32 before = every_byte(base - 1), zeros = every_byte(zero_code), index[8];
    for (int w = 0; w < 8; w++) {
        u32 k = sub_bytes(e[w], before);
        index[w] = k & ~sign_mask(((k >> 4) & 0x0f0f0f0f) + ~HIGH);
    }
    pair_up(index, planes);
    for (int p = 0; p < 4; p++) {
        u32 s = nonzero_bytes(e[2 * p]), t = nonzero_bytes(e[2 * p + 1]);
        u32 nonzero0 = prmt(s, t, 0xd9c8), nonzero1 = prmt(s, t, 0xfbea);
        u32 a = look_up(table, planes[p]), b = look_up(table, planes[p] >> 16);
        a = (a & nonzero0) | (zeros & ~nonzero0), b = (b & nonzero1) | (zeros & ~nonzero1);
        planes[p] = prmt(a | a >> 4, b | b >> 4, 0x6420);
    }
    pairs_to_planes(planes);
}

template <int C, int D> __device__ void encode(const Args& a, EncodeShared<C, D>& s) {
    const u32 chunk = chunk_of(a.chunks, blockIdx.x, [&](u32 i) { return a.table[i].first_tile; });
    const Chunk k = a.table[chunk];
    const u32 t = blockIdx.x - k.first_tile, m = tile_elements(k.n, t), first = threadIdx.x * PER;
    const u8* src = (const u8*)k.address + (u64)t * TILE * item_bytes(D);
    u8 *slot = a.fixed + k.static_at + slot_offset(C, D, a.slack, t), *body = slot + RECORD;
    const u32 valid = first >= m ? 0 : m - first >= 32 ? ~0u : below_bit(m - first);

    u32 raw[words_of(D)];
    Parts<D> x;
    load<D>(src, first, m, raw);
    split<D>(raw, x);
    Sums own = add_up(x.e);
    u32 low = 0;
    if constexpr (D == FP32)
        for (u32 i = 0; i < PER / 2; i++) low |= x.low[i];
    own.exponents = __reduce_add_sync(WHOLE, own.exponents);
    own.nonzero = __reduce_add_sync(WHOLE, own.nonzero);
    if constexpr (D == FP32) low = __reduce_or_sync(WHOLE, low);
    if (lane() == 0) s.sums[warp()][0] = own.exponents, s.sums[warp()][1] = own.nonzero, s.sums[warp()][2] = low;
    if (threadIdx.x == 0) s.below = 0;
    for (u32 i = 0; i < variable_words(C, D); i += THREADS)
        if (i + threadIdx.x < variable_words(C, D)) s.variable[i + threadIdx.x] = 0;
    if (C == CASCADE && threadIdx.x <= 16) {
        u32 rank = threadIdx.x;
        if (rank == 16) set_byte(s.code_of, 0, ESCAPE_CODE);
        else set_byte(s.code_of, 1 + a.rankings[16 * chunk + rank], rank_code(rank));
    }
    __syncthreads();

    Sums sum = {0, 0};
    low = 0;
    for (u32 w = 0; w < WARPS; w++) sum.exponents += s.sums[w][0], sum.nonzero += s.sums[w][1], low |= s.sums[w][2];
    Record r = {};
    r.mode = D == FP32 && low == 0 ? CODED_LOW_ZERO : CODED;
    const u32 base = a.base >= 0 ? clamp_base(C, D, a.base) : tile_base(C, D, sum.exponents, sum.nonzero, m, a.shifts[chunk]);
    r.base = (u8)base;

    // Digits of levels 2 to 4, packed in the thread; how many of them, and of escapes, stand before it in the tile.
    u32 planes[4], digits[3][2] = {}, on[3] = {0, 0, 0}, escapes;
    if constexpr (C == WINDOW) {
        window_codes(x.e, base, planes);
        for (int p = 0; p < 3; p++) planes[p] &= valid;
        escapes = ~(planes[0] | planes[1] | planes[2]) & valid;
    } else {
        const u32 table[4] = {s.code_of[0], s.code_of[1], s.code_of[2], s.code_of[3]};
        u32 b[4];
        cascade_codes(x.e, base, table, s.code_of[4] & 255, b);
        on[0] = (b[2] | b[3]) & valid, on[1] = b[3] & valid, on[2] = b[2] & b[3] & valid;
        planes[0] = (b[0] | on[0]) & valid, planes[1] = (b[1] | on[0]) & valid;
        Moves second(on[0]);
        digits[0][0] = second.pack(b[0] | on[1]), digits[0][1] = second.pack(b[1] | on[1]);
        digits[1][0] = b[0] | on[2], digits[1][1] = b[1] | on[2];
        pack_few(on[1], digits[1][0], digits[1][1]);
        digits[2][0] = b[0], digits[2][1] = b[1];
        pack_few(on[2], digits[2][0], digits[2][1]);
        escapes = on[2] & b[0] & b[1];
    }
    u32 mine[2] = {(u32)__popc(on[0]) | (u32)__popc(on[1]) << 16, (u32)__popc(on[2]) | (u32)__popc(escapes) << 16};
    u32 before[2], total[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        if (C == WINDOW && i == 0) {
            before[i] = 0;
            continue;
        }
        u32 upto = inclusive(mine[i]);
        if (lane() == 31) s.scan[warp()][i] = upto;
        before[i] = upto - mine[i];
    }
    __syncthreads();
    for (int i = C == WINDOW ? 1 : 0; i < 2; i++)
        for (u32 w = 0; w < WARPS; w++) {
            if (w < warp()) before[i] += s.scan[w][i];
            total[i] += s.scan[w][i];
        }
    r.count[0] = (u16)total[0], r.count[1] = (u16)(total[0] >> 16), r.count[2] = (u16)total[1], r.escapes = (u16)(total[1] >> 16);

    const u32 var = variable_bytes(D, m, r), lows = low_bytes(D, r.mode, m), spill = spill_bytes(C, D, a.slack, m, r);
    const u32 ahead = lows & ~3u;  // bytes of whole words of low halves: they skip the shared copy
    const bool coded = r.mode != STORED;
    u32 at = 8 * (lows & 3);  // bit where the next stream starts in s.variable
    if (coded) {
        if (D == FP32 && (lows & 3) && first <= m - 1 && m - 1 < first + PER) or_bits(s.variable, 0, word_at(src, 4 * m, m - 1) & 0xffff);
        for (int l = 0; l < 3; l++) {
            u32 count = l == 0 ? total[0] & 0xffff : l == 1 ? total[0] >> 16 : total[1] & 0xffff;
            u32 skip = l == 0 ? before[0] & 0xffff : l == 1 ? before[0] >> 16 : before[1] & 0xffff;
            for (int p = 0; C == CASCADE && p < 2; p++, at += 8 * level_bytes(count)) or_bits(s.variable, at + skip, digits[l][p]);
        }
    }
    u32 below = 0;
    at += 8 * (before[1] >> 16);
#pragma unroll 1
    for (u32 left = escapes; left; left &= left - 1, at += 8) {
        u32 e = pick_byte(x.e, __ffs(left) - 1);
        below += e < base;
        if (coded) or_bits(s.variable, at, e);
    }
    if (below) atomicAdd(&s.below, below);
    __syncthreads();

    // The slot: rest, planes, and the variable part if the slack holds it.
    const u32 size = body_bytes(C, D, a.slack, m), fixed = fixed_bytes(C, D, m);
    u8* out = spill ? a.scratch + (u64)blockIdx.x * spill_room(C, D, a.slack) : body + fixed;
    if (coded) {
        if (first < padded(m)) {
            if constexpr (rest_bytes(D)) {
                *(uint4*)(body + first) = make_uint4(x.rest[0], x.rest[1], x.rest[2], x.rest[3]);
                *(uint4*)(body + first + 16) = make_uint4(x.rest[4], x.rest[5], x.rest[6], x.rest[7]);
            }
            u32* plane = (u32*)(body + padded(m) * rest_bytes(D)) + threadIdx.x;
            const u32 stride = plane_bytes(m) / 4;
            for (int p = 0; p < (int)rest_planes(D); p++, plane += stride) *plane = x.planes[p];
            for (int p = 0; p < (int)code_planes(C); p++, plane += stride) *plane = planes[p];
        }
        if (D == FP32 && lows && first < m)
            for (u32 i = 0; i < PER / 2; i++)
                if (2 * first + 4 * i < ahead) *(u32*)(out + 2 * first + 4 * i) = x.low[i];
        const u32 words = (spill ? spill : a.slack) / 4 - ahead / 4;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < words; i += THREADS) *(u32*)(out + ahead + 4 * i) = 4 * i < var - ahead ? s.variable[i] : 0;
        if (spill) fill(body + fixed, a.slack, 0);
    } else {
#pragma unroll 1
        for (u32 i = threadIdx.x; i < size / 4; i += THREADS) ((u32*)body)[i] = word_at(src, m * item_bytes(D), i);
    }
    if (threadIdx.x == 0) {
        union { Record record; uint4 words; } u = {r};
        *(uint4*)slot = u.words;
        a.spills[blockIdx.x] = spill;
        a.tallies[blockIdx.x] = s.below | ((total[1] >> 16) - s.below) << 13 | (u32)!coded << 26;
    }
}

template <int D> __device__ void encode_raw(const Args& a) {
    const u32 chunk = chunk_of(a.chunks, blockIdx.x, [&](u32 i) { return a.table[i].first_tile; });
    const Chunk k = a.table[chunk];
    const u64 at = (u64)(blockIdx.x - k.first_tile) * TILE * item_bytes(D);
    const u32 m = tile_elements(k.n, blockIdx.x - k.first_tile);
    u32 raw[words_of(D)];
    load<D>((const u8*)k.address + at, threadIdx.x * PER, m, raw);
    store<D>(a.fixed + k.static_at + HEADER + at, threadIdx.x * PER, m, raw);
    if (threadIdx.x == 0) a.spills[blockIdx.x] = a.tallies[blockIdx.x] = 0;
}

// Finds the shift (window) or the ranking (cascade) that suits each chunk from the sample that tile.h describes. One block
// per chunk; a warp takes a tile.
struct MeasureShared { u32 seen[17]; };  // cascade: symbols; window: exponents by their distance from the lowest base
template <int C, int D> __device__ void measure(const Args& a, MeasureShared& s) {
    constexpr u32 RUNS = TILE / (32 * PER), OF_RUN = PER / SAMPLE_STRIDE, DISTANCES = WINDOW_WIDTH + 2 * SHIFTS;
    static_assert(OF_RUN == 4 && DISTANCES <= 17, "a run's sample is one word");
    const Chunk k = a.table[blockIdx.x];
    const u64 all = tiles(k.n), samples = sample_tiles(all);
    if (threadIdx.x < 17) s.seen[threadIdx.x] = 0;
    __syncthreads();
    for (u64 j = warp(); j < samples; j += blockDim.x / 32) {
        const u64 t = j * all / samples;
        const u32 m = tile_elements(k.n, t);
        Sums sum = {0, 0};
        u32 sample[RUNS];
        for (u32 run = 0; run < RUNS; run++) {
            u32 raw[words_of(D)];
            Parts<D> x;
            load<D>((const u8*)k.address + t * TILE * item_bytes(D), (run * 32 + lane()) * PER, m, raw);
            split<D>(raw, x);
            Sums own = add_up(x.e);
            sum.exponents += own.exponents, sum.nonzero += own.nonzero;
            sample[run] = prmt(prmt(x.e[0], x.e[2], 0x0040), prmt(x.e[4], x.e[6], 0x0040), 0x5410);
        }
        sum.exponents = __reduce_add_sync(WHOLE, sum.exponents), sum.nonzero = __reduce_add_sync(WHOLE, sum.nonzero);
        const u32 base = a.base >= 0 ? clamp_base(C, D, a.base) : tile_base(C, D, sum.exponents, sum.nonzero, m);
        for (u32 run = 0; run < RUNS; run++)
            for (u32 i = 0; i < OF_RUN; i++) {
                u32 e = (sample[run] >> (8 * i)) & 255, bin = C == CASCADE ? symbol_of(e, base) : e + SHIFTS - base;
                if ((run * 32 + lane()) * PER + i * SAMPLE_STRIDE < m && bin < (C == CASCADE ? 17 : DISTANCES)) atomicAdd(&s.seen[bin], 1u);
            }
    }
    __syncthreads();
    if (C == CASCADE && threadIdx.x < 16) {  // the sort: a symbol's rank is how many come before it
        auto symbol = [](u32 r) { return (u32)(GAUSSIAN_RANKING >> (4 * r)) & 15; };
        u32 mine = s.seen[symbol(threadIdx.x)], ahead = 0;
        for (u32 r = 0; r < 16; r++) {
            u32 other = s.seen[symbol(r)];
            ahead += other > mine || (other == mine && r < threadIdx.x);
        }
        a.rankings[16 * blockIdx.x + ahead] = (u8)symbol(threadIdx.x);
    }
    if (C == WINDOW && threadIdx.x == 0) {
        u32 best = 0;
        int shift = 0;
        for (int k = 0; k <= 2 * SHIFTS; k++) {
            int candidate = (k + 1) / 2 * (k % 2 ? -1 : 1);  // 0, -1, 1, -2, ...
            u32 covered = 0;
            for (u32 i = 0; i < WINDOW_WIDTH; i++) covered += s.seen[SHIFTS + candidate + (int)i];
            if (covered > best) best = covered, shift = candidate;
        }
        a.shifts[blockIdx.x] = shift;
    }
}
}  // namespace zp
