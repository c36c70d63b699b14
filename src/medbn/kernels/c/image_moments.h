/* The mean and the variance of each image in each channel, in two passes over what is in cache. */

enum { IMAGE_TILE = 16 /* like TILE; an image has few rows, over which less rounding averages out */ };

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

/* Moments of `lanes` channels over the rows of one image. */
static void lane_moments(const float *x, int64_t stride, int lanes, int64_t rows, const float *near,
                         struct moments *to) {
    const vf middle = load(near);
    for (int l = 0; l < lanes; l++) to[l] = (struct moments){0, 0};
    for (int64_t i = 0; i < rows; i += IMAGE_TILE) {
        vf sum = splat(0.0f), square = sum;
        for (int64_t r = i, end = smaller(rows, i + IMAGE_TILE); r < end; r++) {
            vf d = (lanes == LANES ? load(x + r * stride) : load_first(x + r * stride, lanes)) - middle;
            sum += d;
            square += d * d;
        }
        float s[LANES], q[LANES];
        store(s, sum);
        store(q, square);
        for (int l = 0; l < lanes; l++) to[l].sum += s[l], to[l].square += q[l];
    }
}

/* Channels last: a unit of work is GROUP channels of one image. */
static void image_rows(struct job *job) {
    struct image_job *j = (struct image_job *)job;
    const int64_t size = j->at->size, channels = j->at->channels, groups = (channels + GROUP - 1) / GROUP;
    struct moments m[LANES];
    for (int64_t unit, end; medbn_take(job, &unit, &end);)
        for (; unit < end; unit++) {
            const int64_t b = unit / groups, last = smaller(channels, (unit % groups + 1) * GROUP);
            for (int64_t c = unit % groups * GROUP; c < last; c += LANES) {
                const int lanes = (int)smaller(LANES, last - c);
                const float *x = j->x + b * size * channels + c;
                float mean[LANES] = {0};
                lane_moments(x, channels, lanes, size, mean, m);
                for (int l = 0; l < lanes; l++) mean[l] = (float)(m[l].sum / (double)size);
                lane_moments(x, channels, lanes, size, mean, m);
                for (int l = 0; l < lanes; l++) {
                    const struct column v = {x + l, 1, size, 0, channels, 0, false};
                    write_image(j, b * channels + c + l, &v, mean[l], m[l]);
                }
            }
        }
}

static int image_moments(const struct layout *at, const float *x, float *mean, float *variance) {
    struct image_job j = {.at = at, .x = x, .mean = mean, .variance = variance};
    j.job.count = at->images * (at->last ? (at->channels + GROUP - 1) / GROUP : at->channels);
    j.job.grain = larger(1, CHUNK / (at->size * (at->last ? smaller(GROUP, at->channels) : 1)));
    return medbn_parallel(&j.job, at, at->last ? image_rows : image_planes);
}
