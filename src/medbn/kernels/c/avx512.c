/* The kernels in AVX-512 (F alone): vectors of sixteen. The operations are explained in vector_kernels.h. */
#include "kernels.h"

#ifdef MEDBN_X86
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx2,fma,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx2,fma,popcnt")
#endif

enum { LANES = 16 };
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 mask;

INLINE vf splat(float a) { return _mm512_set1_ps(a); }
INLINE vf load(const float *from) { return _mm512_loadu_ps(from); }
INLINE void store(float *to, vf v) { _mm512_storeu_ps(to, v); }
INLINE mask first(int n) { return (mask)((1u << n) - 1); }
INLINE vf load_first(const float *from, int n) { return _mm512_maskz_loadu_ps(first(n), from); }
INLINE void store_first(float *to, vf v, int n) { _mm512_mask_storeu_ps(to, first(n), v); }
INLINE mask less(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE mask equal(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
INLINE mask upto(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
INLINE mask above(vi a, int n) { return _mm512_cmpgt_epi32_mask(a, _mm512_set1_epi32(n)); }
INLINE mask both(mask a, mask b) { return a & b; }
INLINE unsigned bits(mask m) { return m; }
INLINE vf keep(mask m, vf v) { return _mm512_maskz_mov_ps(m, v); }
INLINE vf magnitude(vf v) { return _mm512_abs_ps(v); }
INLINE vi add_mask(vi count, mask m) { return _mm512_mask_add_epi32(count, m, count, _mm512_set1_epi32(1)); }
INLINE float *compress(float *to, mask m, vf v) {
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps(m, v));
    return to + __builtin_popcount(m);
}

INLINE vf low_pairs(vf a, vf b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
INLINE vf high_pairs(vf a, vf b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

/* 16 rows of `width` values, `stride` apart, become `width` rows of 16 values, `pitch` apart. */
INLINE void transpose_16(const float *from, int64_t stride, int width, float *to, int64_t pitch) {
    vf r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = width == 16 ? load(from + i * stride) : load_first(from + i * stride, width);
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = low_pairs(t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = high_pairs(t[i + j], t[i + j + 2]);
        }
    for (int j = 0; j < 4; j++) {
        t[j] = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
        t[4 + j] = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
        t[8 + j] = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
        t[12 + j] = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
    }
    for (int j = 0; j < 8; j++) {
        if (j < width) store(to + j * pitch, _mm512_shuffle_f32x4(t[j], t[8 + j], 0x88));
        if (j + 8 < width) store(to + (j + 8) * pitch, _mm512_shuffle_f32x4(t[j], t[8 + j], 0xdd));
    }
}
static void transpose(const float *from, int64_t stride, int width, float *to, int64_t pitch) {
    if (width == 16)
        transpose_16(from, stride, 16, to, pitch);
    else
        transpose_16(from, stride, width, to, pitch);
}

#include "vector_kernels.h"

const struct kernels medbn_avx512 = {median, image_moments, image_statistics, normalise, reduce, combine};

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
