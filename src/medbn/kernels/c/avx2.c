/* The kernels in AVX2: vectors of eight. The operations are explained in vector_kernels.h. */
#include "kernels.h"

#ifdef MEDBN_X86
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,popcnt")
#endif

enum { LANES = 8 };
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 mask;

/* For each set of lanes, the permutation that moves them to the front: AVX2 has no instruction for it. */
static uint64_t permutations[256];
__attribute__((constructor)) static void fill_permutations(void) {
    for (int set = 0; set < 256; set++)
        for (int l = 0, n = 0; l < 8; l++)
            if (set >> l & 1) permutations[set] |= (uint64_t)l << 8 * n++;
}

INLINE vf splat(float a) { return _mm256_set1_ps(a); }
INLINE vf load(const float *from) { return _mm256_loadu_ps(from); }
INLINE void store(float *to, vf v) { _mm256_storeu_ps(to, v); }
INLINE mask first(int n) {
    const vi lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane));
}
INLINE vf load_first(const float *from, int n) { return _mm256_maskload_ps(from, _mm256_castps_si256(first(n))); }
INLINE void store_first(float *to, vf v, int n) { _mm256_maskstore_ps(to, _mm256_castps_si256(first(n)), v); }
INLINE mask less(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
INLINE mask equal(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
INLINE mask upto(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
INLINE mask above(vi a, int n) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, _mm256_set1_epi32(n))); }
INLINE mask both(mask a, mask b) { return _mm256_and_ps(a, b); }
INLINE unsigned bits(mask m) { return (unsigned)_mm256_movemask_ps(m); }
INLINE vf keep(mask m, vf v) { return _mm256_and_ps(m, v); }
INLINE vf magnitude(vf v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }
INLINE vi add_mask(vi count, mask m) { return _mm256_sub_epi32(count, _mm256_castps_si256(m)); }
INLINE float *compress(float *to, mask m, vf v) {
    unsigned set = bits(m);
    vi order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)permutations[set]));
    _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(v, order));
    return to + __builtin_popcount(set);
}

INLINE void transpose_8(const float *from, int64_t stride, int width, float *to, int64_t pitch) {
    vf r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = width == 8 ? load(from + i * stride) : load_first(from + i * stride, width);
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
            r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
        }
    for (int j = 0; j < 4; j++) {
        if (j < width) store(to + j * pitch, _mm256_permute2f128_ps(r[j], r[j + 4], 0x20));
        if (j + 4 < width) store(to + (j + 4) * pitch, _mm256_permute2f128_ps(r[j], r[j + 4], 0x31));
    }
}

/* 16 rows of `width` values, `stride` apart, become `width` rows of 16 values, `pitch` apart. */
static void transpose(const float *from, int64_t stride, int width, float *to, int64_t pitch) {
    for (int r = 0; r < 16; r += 8)
        for (int c = 0; c < width; c += 8)
            transpose_8(from + r * stride + c, stride, width - c < 8 ? width - c : 8, to + c * pitch + r, pitch);
}

#include "vector_kernels.h"

const struct kernels medbn_avx2 = {median, image_moments, image_statistics, normalise, reduce, combine};

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
