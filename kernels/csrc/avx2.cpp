// Inner loops with AVX2 and BMI2. The target is set for this file only: nothing in it may be shared with another object.
#if defined(__x86_64__)
#include <cstring>
#include <immintrin.h>
#pragma GCC target("avx2,bmi,bmi2,popcnt,lzcnt")
#include "planes.h"

namespace zp {
namespace {
inline __m256i load32(const u8* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline void store32(u8* p, __m256i x) { _mm256_storeu_si256((__m256i*)p, x); }
inline __m256i rotate_right(__m256i y) { return _mm256_or_si256(_mm256_srli_epi16(y, 1), _mm256_slli_epi16(y, 15)); }
inline u64 bit_of(__m256i a, __m256i b, int bit) {  // bit `bit` of 64 bytes
    return (u32)_mm256_movemask_epi8(_mm256_slli_epi16(a, 7 - bit)) | (u64)(u32)_mm256_movemask_epi8(_mm256_slli_epi16(b, 7 - bit)) << 32;
}
inline __m256i spread(u32 bits, __m256i value) {  // byte i = value if bit i is set
    const __m256i pick = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    __m256i x = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), pick), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(x, bit), value);
}

struct Avx2 {
    static constexpr u32 VECTOR = 32;
    static u64 plane(const u8* v, int bit) { return bit_of(load32(v), load32(v + 32), bit); }
    static __m256i bytes_of(const u64* p, u32 planes, int shift) {  // 32 bytes, one bit from each plane
        __m256i c = spread((u32)(p[0] >> shift), _mm256_set1_epi8(1));
        for (u32 k = 1; k < planes; k++) c = _mm256_or_si256(c, spread((u32)(p[k] >> shift), _mm256_set1_epi8((char)(1 << k))));
        return c;
    }
    static void expand(const u64* p, u32 planes, u8* out) {
        store32(out, bytes_of(p, planes, 0));
        store32(out + 32, bytes_of(p, planes, 32));
    }
    static void add_up(const u8* e, Sums* s) {
        const __m256i zero = _mm256_setzero_si256();
        __m256i a = load32(e), b = load32(e + 32);
        __m256i sum = _mm256_add_epi64(_mm256_sad_epu8(a, zero), _mm256_sad_epu8(b, zero));
        __m128i half = _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        s->exponents += (u32)(_mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1));
        s->nonzero += GROUP - count(zeros(a) | zeros(b) << 32);
    }
    static u64 zeros(const __m256i& x) { return (u32)_mm256_movemask_epi8(_mm256_cmpeq_epi8(x, _mm256_setzero_si256())); }
    static void window_planes(const u8* e, u32 base, u64* p) {
        const __m256i below = _mm256_set1_epi8((char)(base - 1)), from = _mm256_set1_epi8((char)base), last = _mm256_set1_epi8(WINDOW_WIDTH - 1);
        auto code = [&](__m256i x) {
            __m256i d = _mm256_sub_epi8(x, from);
            return _mm256_and_si256(_mm256_sub_epi8(x, below), _mm256_cmpeq_epi8(_mm256_min_epu8(d, last), d));
        };
        __m256i a = code(load32(e)), b = code(load32(e + 32));
        for (int k = 0; k < 3; k++) p[k] = bit_of(a, b, k);
    }
    static void window_expand(const u64* p, u32 base, u8* e) {
        const __m256i below = _mm256_set1_epi8((char)(base - 1));
        for (int h = 0; h < 2; h++) store32(e + 32 * h, _mm256_add_epi8(bytes_of(p, 3, 32 * h), below));
    }
    struct Codes {  // by distance from base; entry 15 is "outside", an escape; exponent 0 is put in afterwards
        __m256i from, table, zero;
        Codes(u32 base, const u8* code_of)
            : from(_mm256_set1_epi8((char)base)),
              table(_mm256_broadcastsi128_si256(_mm_insert_epi8(_mm_loadu_si128((const __m128i*)code_of), ESCAPE_CODE, 15))),
              zero(_mm256_set1_epi8((char)code_of[ZERO_SYMBOL])) {}
    };
    static void cascade_planes(const u8* e, const Codes& codes, u64* b) {
        const __m256i span = _mm256_set1_epi8(SPAN);
        auto code = [&](__m256i x) {
            __m256i c = _mm256_shuffle_epi8(codes.table, _mm256_min_epu8(_mm256_sub_epi8(x, codes.from), span));
            return _mm256_blendv_epi8(c, codes.zero, _mm256_cmpeq_epi8(x, _mm256_setzero_si256()));
        };
        __m256i a = code(load32(e)), c = code(load32(e + 32));
        for (int k = 0; k < 4; k++) b[k] = bit_of(a, c, k);
    }
    struct Exponents {
        __m256i table;
        explicit Exponents(const u8* exponent_of) : table(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)exponent_of))) {}
    };
    static void cascade_expand(const u64* b, const Exponents& exponents, u8* e) {
        for (int h = 0; h < 2; h++) store32(e + 32 * h, _mm256_shuffle_epi8(exponents.table, bytes_of(b, 4, 32 * h)));
    }
    static u32 count(u64 x) { return (u32)__builtin_popcountll(x); }
    static void pack(u64 mask, u64* x) { x[0] = _pext_u64(x[0], mask), x[1] = _pext_u64(x[1], mask); }
    static void unpack(u64 mask, u64* x) { x[0] = _pdep_u64(x[0], mask), x[1] = _pdep_u64(x[1], mask); }
};

void split_bf16(const u8* src, u32 m, u8* e, u8* rest, u8* low, Sums* sums) {
    u32 whole = m & ~127u;
    const __m256i byte = _mm256_set1_epi16(255), zero = _mm256_setzero_si256();
    __m256i sum = zero, zeros = zero;
    for (u32 i = 0; i < whole; i += 32) {
        __m256i a = load32(src + 2 * i), b = load32(src + 2 * i + 32);
        __m256i ea = _mm256_srli_epi16(_mm256_add_epi16(a, a), 8), eb = _mm256_srli_epi16(_mm256_add_epi16(b, b), 8);
        __m256i ra = _mm256_or_si256(_mm256_add_epi16(a, a), _mm256_srli_epi16(a, 15)), rb = _mm256_or_si256(_mm256_add_epi16(b, b), _mm256_srli_epi16(b, 15));
        __m256i x = _mm256_permute4x64_epi64(_mm256_packus_epi16(ea, eb), 0xd8);
        __m256i r = _mm256_permute4x64_epi64(_mm256_packus_epi16(_mm256_and_si256(ra, byte), _mm256_and_si256(rb, byte)), 0xd8);
        store32(e + i, x);
        store32(rest + i, r);
        sum = _mm256_add_epi64(sum, _mm256_sad_epu8(x, zero));
        zeros = _mm256_add_epi64(zeros, _mm256_sad_epu8(_mm256_sub_epi8(zero, _mm256_cmpeq_epi8(x, zero)), zero));
    }
    auto total = [](const __m256i& v) {
        return (u32)(_mm256_extract_epi64(v, 0) + _mm256_extract_epi64(v, 1) + _mm256_extract_epi64(v, 2) + _mm256_extract_epi64(v, 3));
    };
    *sums = {total(sum), whole - total(zeros), 0};
    if (whole < m) {
        Sums tail;
        split<Avx2, BF16>(src + 2 * whole, m - whole, e + whole, rest + whole, low, &tail);
        sums->exponents += tail.exponents, sums->nonzero += tail.nonzero;
    }
}
void merge_bf16(const u8* e, const u8* rest, const u8* low, u32 m, u8* dst) {
    u32 whole = m & ~127u;
    for (u32 i = 0; i < whole; i += 32) {
        __m256i x = _mm256_permute4x64_epi64(load32(e + i), 0xd8), r = _mm256_permute4x64_epi64(load32(rest + i), 0xd8);
        store32(dst + 2 * i, rotate_right(_mm256_unpacklo_epi8(r, x)));
        store32(dst + 2 * i + 32, rotate_right(_mm256_unpackhi_epi8(r, x)));
    }
    if (whole < m) merge<Avx2, BF16>(e + whole, rest + whole, low, m - whole, dst + 2 * whole);
}
u64 weighted_sum(const u8* region, u64 bytes, u64 first) {
    // Weights of words 0, 2, 4, 6 of 8; those of the odd words are 2 more. They wrap at 2^32 as the format has it.
    __m256i weight = _mm256_add_epi32(_mm256_set1_epi32((int)(2 * (u32)first + 1)), _mm256_setr_epi32(0, 0, 4, 0, 8, 0, 12, 0));
    const __m256i two = _mm256_set1_epi32(2), eight_words = _mm256_set1_epi32(16);
    __m256i even = _mm256_setzero_si256(), odd = even;
    for (u64 i = 0; i < bytes; i += 32, weight = _mm256_add_epi32(weight, eight_words)) {
        __m256i words = load32(region + i);
        even = _mm256_add_epi64(even, _mm256_mul_epu32(words, weight));
        odd = _mm256_add_epi64(odd, _mm256_mul_epu32(_mm256_srli_epi64(words, 32), _mm256_add_epi32(weight, two)));
    }
    even = _mm256_add_epi64(even, odd);
    __m128i half = _mm_add_epi64(_mm256_castsi256_si128(even), _mm256_extracti128_si256(even, 1));
    return (u64)_mm_cvtsi128_si64(half) + (u64)_mm_extract_epi64(half, 1);
}
}  // namespace

const Ops* avx2_ops() {
    static const Ops ops = {
        {nullptr, split_bf16, split<Avx2, FP16>, split<Avx2, FP32>, split<Avx2, E4M3>, split<Avx2, E5M2>},
        {nullptr, merge_bf16, merge<Avx2, FP16>, merge<Avx2, FP32>, merge<Avx2, E4M3>, merge<Avx2, E5M2>},
        window_encode<Avx2>, window_decode<Avx2>, cascade_encode<Avx2>, cascade_decode<Avx2>,
        {Planes<Avx2, 1>::encode, Planes<Avx2, 2>::encode, Planes<Avx2, 4>::encode},
        {Planes<Avx2, 1>::decode, Planes<Avx2, 2>::decode, Planes<Avx2, 4>::decode},
        weighted_sum,
    };
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") ? &ops : nullptr;
}
}  // namespace zp
#else
#include "ops.h"
namespace zp {
const Ops* avx2_ops() { return nullptr; }
}  // namespace zp
#endif
