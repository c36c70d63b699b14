/* Medians over images: what is between the passes over the activation, which is a few numbers per image and channel.
 *
 * As in kernels.c, binding.py says what each entry point computes.
 */
#include "kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Without a branch, so that the loop is vectorised. */
static bool finite(const float *x, int64_t n) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* `moments` has the means and the variances of images. `table` is that of medbn_median_forward. Without `y`, only the
 * statistics are computed. */
EXPORT int medbn_image_forward(int isa, const struct layout *at, const float *x, const float *weight,
                               const float *bias, const float *running_centre, const float *running_variance,
                               double batch_weight, double eps, float *table, double *deviation, int64_t *selected,
                               float *moments, float *slopes, float *y) {
    const struct kernels *use = medbn_kernels_of(isa);
    if (!use) return UNSUPPORTED;
    const int64_t images = at->images, n = at->channels;
    int status = use->image_moments(at, x, moments, moments + images * n);
    if (status & NO_MEMORY) return status;
    /* An image of huge values may have an infinite variance: it is finite nevertheless. */
    if (!finite(moments, 2 * images * n) && !finite(x, images * n * at->size)) return NONFINITE;
    status = use->image_statistics(at, moments, moments + images * n, table, deviation, selected, slopes);
    if (status || !y) return status;
    medbn_mix(n, weight, bias, running_centre, running_variance, batch_weight, table);
    for (int64_t c = 0; c < n; c++) {
        table[3 * n + c] = 1.0f / sqrtf(table[3 * n + c] + (float)eps);
        table[4 * n + c] *= table[3 * n + c];
    }
    return use->normalise(at, x, table + 2 * n, table + 4 * n, table + 5 * n, y);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* The gradients of the means and variances of those images that the statistics of channel `c` are taken from, as the
 * slope and the shift that `combine` adds to these images. All others have none. */
static void select_gradients(const struct layout *at, int64_t c, double d_centre, double d_variance,
                             const int64_t *selected, const float *slopes, const float *means, float centre,
                             float *slope, float *shift) {
    const int64_t n = at->channels;
    const double through_mad[2] = {d_variance * slopes[c], d_variance * slopes[n + c]};
    const float half = (float)(0.5 * (d_centre - (through_mad[0] + through_mad[1])));
    const float half_variance = (float)(0.5 * d_variance);
    int64_t image[6];
    for (int i = 0; i < 6; i++) image[i] = selected[i * n + c] * n + c;
    for (int i = 0; i < 2; i++) shift[image[4 + i]] += (float)through_mad[i];
    for (int i = 0; i < 2; i++) shift[image[i]] += half;
    for (int i = 0; i < 2; i++) slope[image[2 + i]] += half_variance;
    for (int i = 0; i < 6; i++) {
        bool done = false;
        for (int k = 0; k < i; k++) done |= image[k] == image[i];
        if (done) continue;
        /* finite, so that 0 times it is 0 */
        const float d = fminf(fmaxf(means[image[i]] - centre, -3.4028234663852886e38f), 3.4028234663852886e38f);
        slope[image[i]] = 2.0f * slope[image[i]] / (float)at->size;
        shift[image[i]] = shift[image[i]] / (float)at->size - slope[image[i]] * d;
    }
}

/* `sums` and `table` are those of medbn_channel_backward; `coefficients` has a slope and a shift per image and channel,
 * and is all 0 at first. */
EXPORT int medbn_image_backward(int isa, const struct layout *at, const float *g, const float *x, const float *used,
                                const float *centre, const float *inverse_std, const float *weight,
                                const int64_t *selected, const float *slopes, const float *means, double batch_weight,
                                double *sums, float *table, float *coefficients, float *dx) {
    const struct kernels *use = medbn_kernels_of(isa);
    if (!use) return UNSUPPORTED;
    const int64_t n = at->channels;
    float *d_weight = table, *d_bias = table + n, *scale = table + 2 * n;
    float *slope = coefficients, *shift = coefficients + at->images * n;
    const int status = use->reduce(at, g, x, used, sums, sums + n);
    if (status & NO_MEMORY) return status;
    for (int64_t c = 0; c < n; c++) {
        const double r = inverse_std[c], s = (weight ? (double)weight[c] : 1.0) * r, gain = r * sums[n + c];
        d_weight[c] = (float)gain;
        d_bias[c] = (float)sums[c];
        scale[c] = (float)s;
        const double d_centre = -batch_weight * s * sums[c], d_variance = -0.5 * batch_weight * s * r * gain;
        select_gradients(at, c, d_centre, d_variance, selected, slopes, means, centre[c], slope, shift);
    }
    return use->combine(at, g, x, centre, scale, slope, shift, true, dx);
}
