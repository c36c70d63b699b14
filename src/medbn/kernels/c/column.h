/* A channel in memory, and what is read from it value by value. */

/* One channel: `images` runs of `size` values. Runs are `stride` floats apart, values within a run `step`. With
 * `deviations`, the values are |x - centre|. */
struct column {
    const float *x;
    int64_t images, size, stride, step;
    float centre;
    bool deviations;
};

/* The number of values. */
INLINE int64_t values_in(const struct column *v) { return v->images * v->size; }

/* The value that x stands for. */
INLINE float read(float x, float centre, bool deviations) { return deviations ? fabsf(x - centre) : x; }

INLINE vf read_all(vf x, vf centre, bool deviations) { return deviations ? magnitude(x - centre) : x; }

/* Add values [i, end) of a run to LANES partial sums. */
INLINE void add_in_double(const float *x, int64_t step, int64_t i, int64_t end, double near, double *sum,
                          double *square) {
    for (; i + LANES <= end; i += LANES)
        for (int l = 0; l < LANES; l++) {
            double d = x[(i + l) * step] - near;
            sum[l] += d;
            square[l] += d * d;
        }
    for (int l = 0; i < end; i++, l++) {
        double d = x[i * step] - near;
        sum[l] += d;
        square[l] += d * d;
    }
}

/* Moments about `near` of the values at positions [from, to), in double: for sums that overflow float. */
static struct moments moments_in_double(const struct column *v, float near, int64_t from, int64_t to) {
    double sum[LANES] = {0}, square[LANES] = {0};
    while (from < to) {
        int64_t b = from / v->size, i = from % v->size, end = smaller(v->size, i + to - from);
        const float *x = v->x + b * v->stride;
        if (v->step == 1)
            add_in_double(x, 1, i, end, near, sum, square);
        else
            add_in_double(x, v->step, i, end, near, sum, square);
        from += end - i;
    }
    for (int l = 1; l < LANES; l++) sum[0] += sum[l], square[0] += square[l];
    return (struct moments){sum[0], square[0]};
}

/* The first position of `value` at or after `from`, where it occurs. */
static int64_t find(const struct column *v, float value, int64_t from) {
    const vf target = splat(value), centre = splat(v->centre);
    int64_t i = from % v->size;
    for (int64_t b = from / v->size; b < v->images; b++, i = 0) {
        const float *x = v->x + b * v->stride;
        if (v->step == 1)
            for (; i + LANES <= v->size; i += LANES) {
                unsigned lanes = bits(equal(read_all(load(x + i), centre, v->deviations), target));
                if (lanes) return b * v->size + i + __builtin_ctz(lanes);
            }
        for (; i < v->size; i++)
            if (read(x[i * v->step], v->centre, v->deviations) == value) return b * v->size + i;
    }
    return 0; /* reached only where a value is NaN */
}

/* Copy the values of a column with step 1 to a contiguous buffer. */
static void copy(const struct column *v, float *to) {
    const vf centre = splat(v->centre);
    for (int64_t b = 0; b < v->images; b++, to += v->size) {
        const float *x = v->x + b * v->stride;
        int64_t i = 0;
        for (; i + LANES <= v->size; i += LANES) store(to + i, read_all(load(x + i), centre, v->deviations));
        if (i < v->size) store(to + i, read_all(load_first(x + i, (int)(v->size - i)), centre, v->deviations));
    }
}
