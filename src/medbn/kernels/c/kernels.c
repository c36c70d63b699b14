/* Entry points of the C kernels: each picks an instruction set at run time.
 *
 * Pointers and sizes only: nothing here knows of Python or torch. binding.py says what each function computes.
 */
#include "kernels.h"

#include <math.h>

enum { GENERIC, AVX2, AVX512, UNSUPPORTED = -1 };

/* The best instruction set of this machine. */
EXPORT int medbn_best_instruction_set(void) {
#ifdef MEDBN_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return GENERIC;
}

static const struct kernels *kernels_of(int isa) {
    if (isa > medbn_best_instruction_set()) return NULL;
#ifdef MEDBN_X86
    if (isa == AVX512) return &medbn_avx512;
    if (isa == AVX2) return &medbn_avx2;
#endif
    return isa == GENERIC ? &medbn_generic : NULL;
}

EXPORT int medbn_median(int isa, const struct layout *at, const float *x, const float *centre, float *value,
                        float *variance, double *deviation, int64_t *index) {
    const struct kernels *use = kernels_of(isa);
    return use ? use->median(at, x, centre, value, variance, deviation, index) : UNSUPPORTED;
}

EXPORT int medbn_image_moments(int isa, const struct layout *at, const float *x, float *mean, float *variance) {
    const struct kernels *use = kernels_of(isa);
    return use ? use->image_moments(at, x, mean, variance) : UNSUPPORTED;
}

EXPORT int medbn_normalise(int isa, const struct layout *at, const float *x, const float *centre, const float *scale,
                           const float *bias, float *y) {
    const struct kernels *use = kernels_of(isa);
    return use ? use->normalise(at, x, centre, scale, bias, y) : UNSUPPORTED;
}

EXPORT int medbn_reduce(int isa, const struct layout *at, const float *g, const float *x, const float *centre,
                        double *sum_g, double *sum_gx) {
    const struct kernels *use = kernels_of(isa);
    return use ? use->reduce(at, g, x, centre, sum_g, sum_gx) : UNSUPPORTED;
}

EXPORT int medbn_combine(int isa, const struct layout *at, const float *g, const float *x, const float *centre,
                         const float *scale, const float *slope, const float *shift, int per_image, float *dx) {
    const struct kernels *use = kernels_of(isa);
    return use ? use->combine(at, g, x, centre, scale, slope, shift, per_image != 0, dx) : UNSUPPORTED;
}

/* --- forward and backward passes, with the few numbers per channel that are between two passes ------------------ */

/* The median, mixed with running statistics, and the normalisation.
 *
 * `table` has six rows of `channels` values: centre, variance, the centre that was used, 1/sigma, and as work space the
 * scale and the shift of the normalisation. */
EXPORT int medbn_median_forward(int isa, const struct layout *at, const float *x, const float *weight,
                                const float *bias, const float *running_centre, const float *running_variance,
                                double batch_weight, double eps, float *table, double *deviation, int64_t *index,
                                float *y) {
    const struct kernels *use = kernels_of(isa);
    if (!use) return UNSUPPORTED;
    const int64_t n = at->channels;
    float *centre = table, *variance = table + n, *used = table + 2 * n, *inverse_std = table + 3 * n;
    float *scale = table + 4 * n, *shift = table + 5 * n;
    int status = use->median(at, x, NULL, centre, variance, deviation, index);
    if (status) return status;
    const float weight_b = (float)batch_weight, weight_r = (float)(1.0 - batch_weight);
    for (int64_t c = 0; c < n; c++) {
        float spread = variance[c];
        used[c] = centre[c];
        if (running_centre) { /* without the batch's part where its weight is 0: 0 times infinity is NaN */
            const bool both = batch_weight > 0.0;
            used[c] = both ? weight_b * centre[c] + weight_r * running_centre[c] : running_centre[c];
            spread = both ? weight_b * spread + weight_r * running_variance[c] : running_variance[c];
        }
        inverse_std[c] = (float)(1.0 / sqrt((double)spread + eps));
        scale[c] = weight ? weight[c] * inverse_std[c] : inverse_std[c];
        shift[c] = bias ? bias[c] : 0.0f;
    }
    return use->normalise(at, x, used, scale, shift, y);
}

/* The backward pass where the variance is the mean of (x - centre)^2. The gradient of the centre goes to the value at
 * `index` or, without an index, to all values alike.
 *
 * `sums` has two rows of `channels` values. `table` has five: the gradients of weight and bias, and for work space the
 * coefficients of combine. */
EXPORT int medbn_channel_backward(int isa, const struct layout *at, const float *g, const float *x, const float *used,
                                  const float *centre, const float *inverse_std, const float *weight,
                                  const double *deviation, const int64_t *index, double batch_weight, double *sums,
                                  float *table, float *dx) {
    const struct kernels *use = kernels_of(isa);
    if (!use) return UNSUPPORTED;
    const int64_t n = at->channels;
    float *d_weight = table, *d_bias = table + n;
    float *scale = table + 2 * n, *slope = table + 3 * n, *shift = table + 4 * n;
    int status = use->reduce(at, g, x, used, sums, sums + n);
    if (status & NO_MEMORY) return status;
    const double count = (double)at->images * (double)at->size;
    for (int64_t c = 0; c < n; c++) {
        const double r = inverse_std[c], w = weight ? weight[c] : 1.0, gain = r * sums[n + c];
        const double d_centre = -batch_weight * w * r * sums[c], q = -batch_weight * w * r * r * gain / count;
        d_weight[c] = (float)gain;
        d_bias[c] = (float)sums[c];
        scale[c] = (float)(w * r);
        slope[c] = (float)q;
        sums[c] = d_centre - q * deviation[c]; /* what the median's value gets, or all values together */
        shift[c] = index ? 0.0f : (float)(sums[c] / count);
    }
    status = use->combine(at, g, x, centre, scale, slope, shift, false, dx);
    if (!index || (status & NO_MEMORY)) return status;
    for (int64_t c = 0; c < n; c++) {
        const int64_t b = index[c] / at->size, s = index[c] % at->size;
        dx[at->last ? (b * at->size + s) * n + c : (b * n + c) * at->size + s] += (float)sums[c];
    }
    return status;
}
