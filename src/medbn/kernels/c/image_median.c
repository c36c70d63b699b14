/* Medians over images: what is between the passes over the activation, which is a few numbers per image and channel.
 *
 * As in kernels.c, binding.py says what each entry point computes.
 */
#include "kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float SIGMA = 1.4826f;                        /* MAD_TO_SIGMA in reference.py */
static const float SQUARED_SIGMA = (float)(1.4826 * 1.4826); /* of the derivative of the squared MAD */

static bool finite(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

/* --- the middle of (images, channels) values over images --------------------------------------------------------- */

struct ranked {
    float value;
    int64_t image;
};

static int by_value(const void *a, const void *b) {
    const struct ranked *p = a, *q = b;
    if (p->value != q->value) return p->value < q->value ? -1 : 1;
    return p->image < q->image ? -1 : p->image > q->image;
}

/* The two middle values of each channel and their images, by sorting: for values whose moments overflow. */
static int sort_images(const struct layout *at, const float *values, float *middle, int64_t *low, int64_t *high) {
    const int64_t images = at->images, channels = at->channels;
    struct ranked *order = malloc(sizeof *order * (size_t)images);
    if (!order) return NO_MEMORY;
    for (int64_t c = 0; c < channels; c++) {
        for (int64_t b = 0; b < images; b++) order[b] = (struct ranked){values[b * channels + c], b};
        qsort(order, (size_t)images, sizeof *order, by_value);
        const struct ranked lower = order[(images - 1) / 2], upper = order[images / 2];
        middle[c] = 0.5f * lower.value + 0.5f * upper.value;
        low[c] = lower.image;
        high[c] = upper.image;
    }
    free(order);
    return 0;
}

/* Per channel: how many values are less than the lower median, how many equal it, and the least value above it. */
struct ranks {
    int32_t *less, *equal, *seen_low, *seen_high;
    float *above;
};

static bool make_ranks(struct ranks *r, int64_t channels) {
    r->less = calloc((size_t)channels, 4 * sizeof *r->less);
    r->above = malloc(sizeof *r->above * (size_t)channels);
    if (!r->less || !r->above) return false;
    r->equal = r->less + channels;
    r->seen_low = r->less + 2 * channels;
    r->seen_high = r->less + 3 * channels;
    for (int64_t c = 0; c < channels; c++) r->above[c] = INFINITY;
    return true;
}

static void free_ranks(struct ranks *r) {
    free(r->less);
    free(r->above);
}

/* The images of both middle values, given the lower one. Of equal values, each has the image that a stable sort puts
 * at its rank. Becomes the middle: the mean of both. Loops over channels are innermost, so that they are vectorised. */
static void find_images(const struct layout *at, const float *values, float *restrict middle, int64_t *low,
                        int64_t *high, const struct ranks *r) {
    const int64_t images = at->images, channels = at->channels, lower = (images - 1) / 2, upper = images / 2;
    int32_t *restrict less = r->less, *restrict equal = r->equal;
    float *restrict above = r->above;
    for (int64_t b = 0; b < images; b++) {
        const float *v = values + b * channels;
        for (int64_t c = 0; c < channels; c++) {
            less[c] += v[c] < middle[c];
            equal[c] += v[c] == middle[c];
            const float next = v[c] > middle[c] ? v[c] : INFINITY;
            above[c] = next < above[c] ? next : above[c];
        }
    }
    for (int64_t c = 0; c < channels; c++)
        if (less[c] + equal[c] > upper) above[c] = middle[c];
    for (int64_t b = 0; b < images; b++) {
        const float *v = values + b * channels;
        for (int64_t c = 0; c < channels; c++) {
            if (v[c] == middle[c] && less[c] + r->seen_low[c]++ == lower) low[c] = b;
            if (v[c] == above[c]) {
                /* values below `above`: those of the lower median too, where they differ */
                const int64_t before = above[c] == middle[c] ? less[c] : less[c] + equal[c];
                if (before + r->seen_high[c]++ == upper) high[c] = b;
            }
        }
    }
    for (int64_t c = 0; c < channels; c++) middle[c] = 0.5f * middle[c] + 0.5f * above[c];
}

/* The median of each channel over images, the mean of the two middle values, and the images that have these. */
static int middle_of_images(const struct kernels *use, const struct layout *at, const float *values, float *middle,
                            int64_t *low, int64_t *high) {
    const struct layout rows = {at->images, at->channels, 1, true, at->threads};
    float *variance = malloc(sizeof *variance * (size_t)at->channels);
    double *deviation = malloc(sizeof *deviation * (size_t)at->channels);
    struct ranks ranks = {0};
    int status = variance && deviation && make_ranks(&ranks, at->channels) ? 0 : NO_MEMORY;
    if (!status) status = use->median(&rows, values, NULL, middle, variance, deviation, low);
    if (!status) find_images(at, values, middle, low, high, &ranks);
    free(variance);
    free(deviation);
    free_ranks(&ranks);
    return status == NONFINITE ? sort_images(at, values, middle, low, high) : status;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Statistics of a finite activation: rows 0 and 1 of `table`, and what the backward pass needs of them. */
static int image_statistics(const struct kernels *use, const struct layout *at, const float *means,
                            const float *variances, float *table, double *deviation, int64_t *selected,
                            float *slopes) {
    const int64_t images = at->images, n = at->channels;
    float *centre = table, *variance = table + n, *mad = table + 2 * n;
    float *deviations = malloc(sizeof *deviations * (size_t)(images * n));
    if (!deviations) return NO_MEMORY;
    int status = middle_of_images(use, at, means, centre, selected, selected + n);
    if (!status) status = middle_of_images(use, at, variances, variance, selected + 2 * n, selected + 3 * n);
    memset(deviation, 0, sizeof *deviation * (size_t)n);
    for (int64_t b = 0; b < images && !status; b++)
        for (int64_t c = 0; c < n; c++) {
            const float d = means[b * n + c] - centre[c];
            deviations[b * n + c] = fabsf(d);
            deviation[c] += (double)d;
        }
    if (!status) status = middle_of_images(use, at, deviations, mad, selected + 4 * n, selected + 5 * n);
    for (int64_t c = 0; c < n && !status; c++) {
        for (int i = 0; i < 2; i++) {
            const float d = means[selected[(4 + i) * n + c] * n + c] - centre[c];
            slopes[i * n + c] = SQUARED_SIGMA * mad[c] * (float)((d > 0) - (d < 0));
        }
        const float between = SIGMA * mad[c];
        variance[c] += between * between;
        deviation[c] *= (double)at->size;
    }
    free(deviations);
    return status;
}

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
    status = image_statistics(use, at, moments, moments + images * n, table, deviation, selected, slopes);
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
