/* The mean and the variance of each image in each channel, in two passes over what is in cache. */

enum {
    IMAGE_TILE = 16, /* like TILE; an image has few rows, over which less rounding averages out */
    SMALL_PLANE = 64 /* values of a plane up to which several are transposed, to be summed side by side */
};

struct image_job {
    struct job job;
    const struct layout *at;
    const float *x;
    float *mean, *variance; /* (images, channels) */
};

/* Write the mean and the variance of a plane, from its moments about `mean`, which is rounded to float. Where these are
 * not finite, sum again in double. */
static void write_image(struct image_job *j, int64_t at, const struct column *v, double mean, struct moments about) {
    const double n = (double)v->size;
    double variance = about.square / n - about.sum / n * (about.sum / n);
    mean += about.sum / n;
    if (!isfinite(mean) || !isfinite(variance)) {
        mean = moments_in_double(v, 0.0f, 0, v->size).sum / n;
        about = moments_in_double(v, (float)mean, 0, v->size);
        variance = about.square / n - about.sum / n * (about.sum / n);
    }
    j->mean[at] = (float)mean;
    j->variance[at] = variance < 0 ? 0 : (float)variance;
}

/* Moments about `near` of contiguous values. */
INLINE struct moments plane_moments(const float *x, int64_t n, float near) {
    const vf middle = splat(near);
    struct moments m = {0, 0};
    for (int64_t i = 0; i < n;) {
        const int64_t end = smaller(n, i + FLUSH);
        vf sum = splat(0.0f), square = sum;
        for (; i + LANES <= end; i += LANES) {
            vf d = load(x + i) - middle;
            sum += d;
            square += d * d;
        }
        if (i < end) {
            vf d = keep(first((int)(end - i)), load_first(x + i, (int)(end - i)) - middle);
            sum += d;
            square += d * d;
            i = end;
        }
        m.sum += total(sum);
        m.square += total(square);
    }
    return m;
}

/* Moments about `near` of planes side by side, one in each lane; the first `width` lanes are read. */
INLINE void lane_moments(const float *x, int64_t stride, int width, int64_t rows, const float *near, double *sum,
                         double *square) {
    const vf middle = load(near);
    for (int l = 0; l < LANES; l++) sum[l] = square[l] = 0;
    for (int64_t i = 0; i < rows; i += IMAGE_TILE) {
        vf tile_sum = splat(0.0f), tile_square = tile_sum;
        for (int64_t r = i, end = smaller(rows, i + IMAGE_TILE); r < end; r++) {
            vf d = (width == LANES ? load(x + r * stride) : load_first(x + r * stride, width)) - middle;
            tile_sum += d;
            tile_square += d * d;
        }
        float s[LANES], q[LANES];
        store(s, tile_sum);
        store(q, tile_square);
        for (int l = 0; l < LANES; l++) sum[l] += s[l], square[l] += q[l];
    }
}

/* Write the moments of `width` planes side by side: plane l, with place `at` + l, is `first` moved by l * between. */
INLINE void write_lanes(struct image_job *j, int64_t at, const float *x, int64_t stride, int width,
                        const struct column *first, int64_t between) {
    const int64_t size = first->size;
    const double per = 1.0 / (double)size;
    double sum[LANES], square[LANES];
    float near[LANES] = {0}, mean[LANES], variance[LANES];
    lane_moments(x, stride, width, size, near, sum, square);
    for (int l = 0; l < LANES; l++) near[l] = (float)(sum[l] * per);
    lane_moments(x, stride, width, size, near, sum, square);
    for (int l = 0; l < LANES; l++) {
        const double off = sum[l] * per, about = square[l] * per - off * off;
        mean[l] = (float)(near[l] + off);
        variance[l] = (float)(about < 0 ? 0 : about);
    }
    if (all_finite(load(mean)) && all_finite(load(variance))) {
        memcpy(j->mean + at, mean, sizeof *mean * (size_t)width);
        memcpy(j->variance + at, variance, sizeof *variance * (size_t)width);
        return;
    }
    for (int l = 0; l < width; l++) {
        struct column v = *first;
        v.x += l * between;
        write_image(j, at + l, &v, near[l], (struct moments){sum[l], square[l]});
    }
}

/* Contiguous: a unit of work is a plane. */
static void image_planes(struct job *job) {
    struct image_job *j = (struct image_job *)job;
    const int64_t size = j->at->size;
    for (int64_t i, end; medbn_take(job, &i, &end);)
        for (; i < end; i++) {
            const struct column v = {j->x + i * size, 1, size, 0, 1, 0, false};
            const float mean = (float)(plane_moments(v.x, size, 0.0f).sum / (double)size);
            write_image(j, i, &v, mean, plane_moments(v.x, size, mean));
        }
}

/* Contiguous, small planes: a unit of work is BLOCK planes, which are transposed. */
static void small_image_planes(struct job *job) {
    struct image_job *j = (struct image_job *)job;
    const int64_t size = j->at->size, planes = j->at->images * j->at->channels;
    float rows[SMALL_PLANE * BLOCK];
    for (int64_t unit, end; medbn_take(job, &unit, &end);)
        for (; unit < end; unit++) {
            const int64_t at = unit * BLOCK;
            const int here = (int)smaller(BLOCK, planes - at);
            const float *x = j->x + at * size;
            for (int64_t i = 0; i < size; i += BLOCK) {
                const int width = (int)smaller(BLOCK, size - i);
                if (here == BLOCK)
                    transpose(x + i, size, width, rows + i * BLOCK, BLOCK);
                else
                    for (int p = 0; p < here; p++)
                        for (int k = 0; k < width; k++) rows[(i + k) * BLOCK + p] = x[p * size + i + k];
            }
            for (int lane = 0; lane < here; lane += LANES) {
                const struct column v = {x + lane * size, 1, size, 0, 1, 0, false};
                const int width = here - lane < LANES ? here - lane : LANES;
                if (width == LANES)
                    write_lanes(j, at + lane, rows + lane, BLOCK, LANES, &v, size);
                else
                    write_lanes(j, at + lane, rows + lane, BLOCK, width, &v, size);
            }
        }
}

/* Channels last: a unit of work is GROUP channels of one image. */
static void image_rows(struct job *job) {
    struct image_job *j = (struct image_job *)job;
    const int64_t size = j->at->size, channels = j->at->channels, groups = (channels + GROUP - 1) / GROUP;
    for (int64_t unit, end; medbn_take(job, &unit, &end);)
        for (; unit < end; unit++) {
            const int64_t b = unit / groups, last = smaller(channels, (unit % groups + 1) * GROUP);
            for (int64_t c = unit % groups * GROUP; c < last; c += LANES) {
                const float *x = j->x + b * size * channels + c;
                const struct column v = {x, 1, size, 0, channels, 0, false};
                if (last - c >= LANES)
                    write_lanes(j, b * channels + c, x, channels, LANES, &v, 1);
                else
                    write_lanes(j, b * channels + c, x, channels, (int)(last - c), &v, 1);
            }
        }
}

static int image_moments(const struct layout *at, const float *x, float *mean, float *variance) {
    struct image_job j = {.at = at, .x = x, .mean = mean, .variance = variance};
    const int64_t planes = at->images * at->channels;
    if (at->last) {
        j.job.count = at->images * ((at->channels + GROUP - 1) / GROUP);
        j.job.grain = larger(1, CHUNK / (at->size * smaller(GROUP, at->channels)));
        return medbn_parallel(&j.job, at, image_rows);
    }
    const bool small = at->size <= SMALL_PLANE;
    j.job.count = small ? (planes + BLOCK - 1) / BLOCK : planes;
    j.job.grain = larger(1, CHUNK / (at->size * (small ? BLOCK : 1)));
    return medbn_parallel(&j.job, at, small ? small_image_planes : image_planes);
}
