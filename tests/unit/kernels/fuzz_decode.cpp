// Damaged frames against the decoder, built with address and undefined-behaviour checks: every buffer has its exact size
// on the heap, so that any access outside stops the program. Arguments: iterations, seed.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "delta.h"

using namespace zp;

int main(int, char** argv) {
    const int iterations = std::atoi(argv[1]);
    std::mt19937 rng((unsigned)std::atoi(argv[2]));
    auto below = [&](u64 n) { return n ? (u64)rng() % n : 0; };
    int refused = 0, accepted = 0;
    for (int it = 0; it < iterations; it++) {
        Spec s = {};
        s.codec = (u8)below(DELTA + 1), s.dtype = (u8)(s.codec == RAW || s.codec == DELTA ? below(DTYPES) : 1 + below(DTYPES - 1)), s.base = -1, s.measure = 1;
        s.slack = 16 * (u32)below(zp_max_slack(s.codec, s.dtype) / 16 + 1) * (u32)below(2);
        s.checksum = below(8) == 0;
        const u64 n = below(3) ? below(300) : below(9000), raw = n * item_bytes(s.dtype);
        const u64 fixed_size = zp_static_size(s.codec, s.dtype, s.slack, n);
        std::unique_ptr<u8[]> src(new u8[raw]), old(new u8[raw]), dst(new u8[raw]), stat(new u8[fixed_size]);
        std::unique_ptr<u8[]> dyn(new u8[zp_max_dynamic_size(s.codec, s.dtype, s.slack, n)]);
        for (u64 i = 0; i < raw; i++) src[i] = (u8)(below(16) ? 0x3c + below(4) : below(256));
        for (u64 i = 0; i < raw; i++) old[i] = below(16) ? src[i] : (u8)rng();
        const u8 *from = src.get(), *reference = old.get();
        u8* to = dst.get();
        i64 sizes[4];
        const int backend = below(2) ? 1 : 0;
        if (s.codec == DELTA ? zp_delta_encode(&s, 1, &from, &reference, &n, stat.get(), dyn.get(), sizes, 1, backend)
                             : zp_encode(&s, 1, &from, &n, stat.get(), dyn.get(), sizes, 1, backend))
            return 3;

        std::vector<u8> a(stat.get(), stat.get() + fixed_size), b(dyn.get(), dyn.get() + sizes[0]);
        auto decode = [&](Error* e) {
            std::unique_ptr<u8[]> fixed(new u8[a.size()]), loose(new u8[b.size()]);  // exact copies
            if (!a.empty()) std::memcpy(fixed.get(), a.data(), a.size());
            if (!b.empty()) std::memcpy(loose.get(), b.data(), b.size());
            Batch batch = {fixed.get(), a.size(), loose.get(), b.size(), nullptr};
            if (s.codec == DELTA) return zp_delta_decode(&s, 1, &n, &batch, &reference, &to, 1, backend, e);
            int status = zp_decode(&s, 1, &n, &batch, &to, 1, backend, e);
            if (s.dtype != U8 && zp_decode_reduce(&s, 1, 1, &n, &batch, &to, 1, backend, e) != status) std::exit(4);
            if (status == 0) zp_decode(&s, 1, &n, &batch, &to, 1, backend, e);
            return status;
        };
        Error e = {};
        if (decode(&e) || std::memcmp(src.get(), dst.get(), raw)) return 5;  // whole frames come back
        for (u64 hits = 1 + below(4); hits; hits--) {
            switch (below(4)) {
                case 0: a[below(HEADER)] ^= (u8)(1u << below(8)); break;
                case 1: a[below(a.size())] = (u8)rng(); break;
                case 2: if (n && s.codec == DELTA) a[HEADER + below(delta_masks(s.dtype, n))] = (u8)rng();
                        else if (n && s.codec != RAW) a[slot_offset(s.codec, s.dtype, s.slack, below(tiles(n))) + below(RECORD)] = (u8)rng(); break;
                default: if (!b.empty()) b[below(b.size())] = (u8)rng(); break;
            }
        }
        if (below(8) == 0) a.resize(below(a.size() + 1));
        if (below(8) == 0) b.resize(below(b.size() + 1));
        decode(&e) ? refused++ : accepted++;
    }
    std::printf("%d refused, %d accepted\n", refused, accepted);
    return refused && accepted ? 0 : 6;
}
