/* The kernels for any processor: vectors of four, which the compiler turns into SSE2, NEON or scalar instructions.
 * The operations are explained in vector_kernels.h.
 */
#include "kernels.h"

#include <string.h>

enum { LANES = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef vi mask;

INLINE vf splat(float a) { return (vf){a, a, a, a}; }
INLINE vf load(const float *from) { vf v; memcpy(&v, from, sizeof v); return v; }
INLINE void store(float *to, vf v) { memcpy(to, &v, sizeof v); }
INLINE vf load_first(const float *from, int n) { vf v = {0}; for (int l = 0; l < n; l++) v[l] = from[l]; return v; }
INLINE void store_first(float *to, vf v, int n) { for (int l = 0; l < n; l++) to[l] = v[l]; }
INLINE mask first(int n) { return (vi){0, 1, 2, 3} < (vi){n, n, n, n}; }
INLINE mask less(vf a, vf b) { return a < b; }
INLINE mask equal(vf a, vf b) { return a == b; }
INLINE mask upto(vf a, vf b) { return a <= b; }
INLINE mask above(vi a, int n) { return a > n; }
INLINE mask both(mask a, mask b) { return a & b; }
INLINE unsigned bits(mask m) { return (m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8); }
INLINE vf keep(mask m, vf v) { return (vf)((vi)v & m); }
INLINE vf magnitude(vf v) { return (vf)((vi)v & 0x7fffffff); }
INLINE vi add_mask(vi count, mask m) { return count - m; }
INLINE float *compress(float *to, mask m, vf v) {
    for (int l = 0; l < LANES; l++) { *to = v[l]; to += m[l] & 1; }
    return to;
}

/* 16 rows of `width` values, `stride` apart, become `width` rows of 16 values, `pitch` apart. */
static void transpose(const float *from, int64_t stride, int width, float *to, int64_t pitch) {
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < width; c++) to[c * pitch + r] = from[r * stride + c];
}

#include "vector_kernels.h"

const struct kernels medbn_generic = {median, image_moments, image_statistics, normalise, reduce, combine};
