/* Entry points of the C kernels: each picks an instruction set at run time.
 *
 * Pointers and sizes only: nothing here knows of Python or torch. binding.py says what each function computes.
 */
#include "kernels.h"

#include <math.h>

enum { GENERIC, AVX2, AVX512 };

/* The best instruction set of this machine. */
EXPORT int medbn_best_instruction_set(void) {
#ifdef MEDBN_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return GENERIC;
}

const struct kernels *medbn_kernels_of(int isa) {
    if (isa > medbn_best_instruction_set()) return NULL;
#ifdef MEDBN_X86
    if (isa == AVX512) return &medbn_avx512;
    if (isa == AVX2) return &medbn_avx2;
#endif
    return isa == GENERIC ? &medbn_generic : NULL;
}

EXPORT int medbn_median(int isa, const struct layout *at, const float *x, const float *centre, float *value,
                        float *variance, double *deviation, int64_t *index) {
    const struct kernels *use = medbn_kernels_of(isa);
    return use ? use->median(at, x, centre, value, variance, deviation, index) : UNSUPPORTED;
}

EXPORT int medbn_image_moments(int isa, const struct layout *at, const float *x, float *mean, float *variance) {
    const struct kernels *use = medbn_kernels_of(isa);
    return use ? use->image_moments(at, x, mean, variance) : UNSUPPORTED;
}

EXPORT int medbn_normalise(int isa, const struct layout *at, const float *x, const float *centre, const float *scale,
                           const float *bias, float *y) {
    const struct kernels *use = medbn_kernels_of(isa);
    return use ? use->normalise(at, x, centre, scale, bias, y) : UNSUPPORTED;
}

EXPORT int medbn_reduce(int isa, const struct layout *at, const float *g, const float *x, const float *centre,
                        double *sum_g, double *sum_gx) {
    const struct kernels *use = medbn_kernels_of(isa);
    return use ? use->reduce(at, g, x, centre, sum_g, sum_gx) : UNSUPPORTED;
}

EXPORT int medbn_combine(int isa, const struct layout *at, const float *g, const float *x, const float *centre,
                         const float *scale, const float *slope, const float *shift, int per_image, float *dx) {
    const struct kernels *use = medbn_kernels_of(isa);
    return use ? use->combine(at, g, x, centre, scale, slope, shift, per_image != 0, dx) : UNSUPPORTED;
}

/* --- forward and backward passes, with the few numbers per channel that are between two passes ------------------ */

/* Mix the batch's statistics, rows 0 and 1 of `table`, with running ones: the centre becomes row 2, the variance row 3.
 * Rows 4 and 5 become the affine map. */
void medbn_mix(int64_t channels, const float *weight, const float *bias, const float *running_centre,
               const float *running_variance, double batch_weight, float *table) {
    const float *centre = table, *variance = table + channels;
    float *used = table + 2 * channels, *spread = table + 3 * channels;
    const float weight_b = (float)batch_weight, weight_r = (float)(1.0 - batch_weight);
    for (int64_t c = 0; c < channels; c++) {
        used[c] = centre[c];
        spread[c] = variance[c];
        if (running_centre) { /* without the batch's part where its weight is 0: 0 times infinity is NaN */
            const bool both = batch_weight > 0.0;
            used[c] = both ? weight_b * centre[c] + weight_r * running_centre[c] : running_centre[c];
            spread[c] = both ? weight_b * variance[c] + weight_r * running_variance[c] : running_variance[c];
        }
        table[4 * channels + c] = weight ? weight[c] : 1.0f;
        table[5 * channels + c] = bias ? bias[c] : 0.0f;
    }
}

/* The median, mixed with running statistics, and the normalisation.
 *
 * `table` has six rows of `channels` values: centre, variance, the centre that was used, 1/sigma, and as work space the
 * scale and the shift of the normalisation. */
EXPORT int medbn_median_forward(int isa, const struct layout *at, const float *x, const float *weight,
                                const float *bias, const float *running_centre, const float *running_variance,
                                double batch_weight, double eps, float *table, double *deviation, int64_t *index,
                                float *y) {
    const struct kernels *use = medbn_kernels_of(isa);
    if (!use) return UNSUPPORTED;
    const int64_t n = at->channels;
    float *used = table + 2 * n, *inverse_std = table + 3 * n, *scale = table + 4 * n, *shift = table + 5 * n;
    int status = use->median(at, x, NULL, table, table + n, deviation, index);
    if (status) return status;
    medbn_mix(n, weight, bias, running_centre, running_variance, batch_weight, table);
    for (int64_t c = 0; c < n; c++) {
        inverse_std[c] = (float)(1.0 / sqrt((double)inverse_std[c] + eps));
        scale[c] *= inverse_std[c];
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
    const struct kernels *use = medbn_kernels_of(isa);
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
