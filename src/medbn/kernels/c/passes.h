/* What reads an activation once and has no selection in it: moments of images, normalisation, the backward pass. */

enum {
    CHUNK = 1 << 15,      /* values of a unit of work, about */
    PERIOD = 64,          /* fewer channels than this are handled as several rows at once */
    MOST_CHUNKS = 64,     /* partial sums per channel where channels are last */
    TILE_VALUES = 8192,
    IMAGE_TILE = 16       /* like TILE; an image has few rows, over which less rounding averages out */
};

/* --- element-wise ----------------------------------------------------------------------------------------------- */

/* y = (x - centre) scale + bias, or a g + q (x - centre) + p: what differs is where the constants stand. */
struct pass_job {
    struct job job;
    const struct layout *at;
    const float *g, *x, *centre, *a, *q, *p;
    int64_t per_image; /* the distance from one image's q and p to the next one's: 0 or channels */
    float *out;
};

INLINE vf value_at(vf g, vf x, vf centre, vf a, vf q, vf p, bool combines) {
    vf y = (x - centre) * q + p;
    if (combines) y += a * g;
    return y;
}

INLINE void plane(const struct pass_job *j, int64_t b, int64_t c, bool combines) {
    const int64_t size = j->at->size, start = (b * j->at->channels + c) * size;
    const float *x = j->x + start, *g = combines ? j->g + start : x;
    float *out = j->out + start;
    const vf centre = splat(j->centre[c]), a = splat(combines ? j->a[c] : 0.0f);
    const vf q = splat(j->q[b * j->per_image + c]), p = splat(j->p[b * j->per_image + c]);
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES)
        store(out + i, value_at(load(g + i), load(x + i), centre, a, q, p, combines));
    if (i < size) {
        const int n = (int)(size - i);
        store_first(out + i, value_at(load_first(g + i, n), load_first(x + i, n), centre, a, q, p, combines), n);
    }
}

INLINE void planes(struct job *job, bool combines) {
    struct pass_job *j = (struct pass_job *)job;
    const int64_t channels = j->at->channels;
    for (int64_t i, end; medbn_take(job, &i, &end);)
        for (; i < end; i++) plane(j, i / channels, i % channels, combines);
}
static void normalise_planes(struct job *job) { planes(job, false); }
static void combine_planes(struct job *job) { planes(job, true); }

INLINE void row(const float *g, const float *x, const float *centre, const float *a, const float *q, const float *p,
                float *out, int64_t n, bool combines) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        store(out + i, value_at(load(g + i), load(x + i), load(centre + i), load(a + i), load(q + i), load(p + i),
                                combines));
    if (i < n) {
        const int m = (int)(n - i);
        store_first(out + i, value_at(load_first(g + i, m), load_first(x + i, m), load_first(centre + i, m),
                                      load_first(a + i, m), load_first(q + i, m), load_first(p + i, m), combines), m);
    }
}

static void repeat(float *to, const float *from, int64_t channels, int64_t rows) {
    for (int64_t r = 0; r < rows; r++) memcpy(to + r * channels, from, sizeof(float) * (size_t)channels);
}

/* Units are chunks of rows of one image, or of all rows where the constants are the same for all. */
INLINE void rows(struct job *job, bool combines) {
    struct pass_job *j = (struct pass_job *)job;
    const int64_t channels = j->at->channels, each = larger(1, CHUNK / channels);
    const int64_t runs = j->per_image ? j->at->images : 1, length = j->at->images * j->at->size / runs;
    const int64_t chunks = (length + each - 1) / each;
    const int64_t together = channels < PERIOD ? PERIOD / channels : 1;
    float repeated[4][PERIOD];
    for (int64_t unit, end; medbn_take(job, &unit, &end);)
        for (; unit < end; unit++) {
            const int64_t b = unit / chunks, from = unit % chunks * each, to = smaller(length, from + each);
            const int64_t start = (b * length + from) * channels, n = (to - from) * channels;
            const float *x = j->x + start, *g = combines ? j->g + start : x;
            const float *centre = j->centre, *a = combines ? j->a : centre;
            const float *q = j->q + b * j->per_image, *p = j->p + b * j->per_image;
            if (together > 1) {
                repeat(repeated[0], centre, channels, together), centre = repeated[0];
                repeat(repeated[1], a, channels, together), a = repeated[1];
                repeat(repeated[2], q, channels, together), q = repeated[2];
                repeat(repeated[3], p, channels, together), p = repeated[3];
            }
            for (int64_t i = 0, period = together * channels; i < n; i += period)
                row(g + i, x + i, centre, a, q, p, j->out + start + i, smaller(period, n - i), combines);
        }
}
static void normalise_rows(struct job *job) { rows(job, false); }
static void combine_rows(struct job *job) { rows(job, true); }

static int pass(struct pass_job *j) {
    const struct layout *at = j->at;
    if (at->last) {
        const int64_t each = larger(1, CHUNK / at->channels), runs = j->per_image ? at->images : 1;
        j->job.count = runs * ((at->images * at->size / runs + each - 1) / each);
        j->job.grain = larger(1, CHUNK / (smaller(each, at->images * at->size / runs) * at->channels));
        return medbn_parallel(&j->job, at, j->g ? combine_rows : normalise_rows);
    }
    j->job.count = at->images * at->channels;
    j->job.grain = larger(1, CHUNK / at->size);
    return medbn_parallel(&j->job, at, j->g ? combine_planes : normalise_planes);
}

static int normalise(const struct layout *at, const float *x, const float *centre, const float *scale,
                     const float *bias, float *y) {
    struct pass_job j = {.at = at, .x = x, .centre = centre, .q = scale, .p = bias, .out = y};
    return pass(&j);
}

static int combine(const struct layout *at, const float *g, const float *x, const float *centre, const float *a,
                   const float *q, const float *p, bool per_image, float *dx) {
    struct pass_job j = {.at = at, .g = g, .x = x, .centre = centre, .a = a, .q = q, .p = p, .out = dx};
    j.per_image = per_image ? at->channels : 0;
    return pass(&j);
}

/* --- the sums of the backward pass ------------------------------------------------------------------------------ */

struct reduce_job {
    struct job job;
    const struct layout *at;
    const float *g, *x, *centre;
    double *sum_g, *sum_gx; /* (channels), or (chunks, channels) */
};

static void reduce_planes(struct job *job) {
    struct reduce_job *j = (struct reduce_job *)job;
    const int64_t size = j->at->size, channels = j->at->channels;
    for (int64_t c, last; medbn_take(job, &c, &last);)
        for (; c < last; c++) {
            const vf centre = splat(j->centre[c]);
            vf sum = splat(0.0f), product = sum;
            double sums = 0, products = 0;
            int64_t pending = 0;
            for (int64_t b = 0; b < j->at->images; b++) {
                const float *x = j->x + (b * channels + c) * size, *g = j->g + (b * channels + c) * size;
                for (int64_t i = 0; i < size;) {
                    const int64_t end = smaller(size, i + FLUSH);
                    pending += end - i;
                    for (; i + LANES <= end; i += LANES) {
                        vf along = load(g + i);
                        sum += along;
                        product += along * (load(x + i) - centre);
                    }
                    if (i < end) { /* the missing values of g are 0 */
                        vf along = load_first(g + i, (int)(end - i));
                        sum += along;
                        product += along * (load_first(x + i, (int)(end - i)) - centre);
                        i = end;
                    }
                    if (pending < FLUSH) continue;
                    sums += total(sum);
                    products += total(product);
                    sum = product = splat(0.0f);
                    pending = 0;
                }
            }
            j->sum_g[c] = sums + total(sum);
            j->sum_gx[c] = products + total(product);
        }
}

INLINE int64_t rows_per_chunk(const struct layout *at) {
    const int64_t n = at->images * at->size, chunks = smaller(MOST_CHUNKS, n * at->channels / CHUNK + 1);
    return (n + chunks - 1) / chunks;
}

INLINE void add_rows(const float *g, const float *x, const float *centre, int64_t stride, int lanes, int64_t rows,
                     double *sum_g, double *sum_gx) {
    const vf middle = lanes == LANES ? load(centre) : load_first(centre, lanes);
    vf sum = splat(0.0f), product = sum;
    for (int64_t r = 0; r < rows; r++, g += stride, x += stride) {
        vf along = lanes == LANES ? load(g) : load_first(g, lanes);
        sum += along;
        product += along * ((lanes == LANES ? load(x) : load_first(x, lanes)) - middle);
    }
    float s[LANES], p[LANES];
    store(s, sum);
    store(p, product);
    for (int l = 0; l < lanes; l++) sum_g[l] += s[l], sum_gx[l] += p[l];
}

static void reduce_rows(struct job *job) {
    struct reduce_job *j = (struct reduce_job *)job;
    const int64_t n = j->at->images * j->at->size, channels = j->at->channels, each = rows_per_chunk(j->at);
    const int64_t tile = smaller(TILE, larger(8, TILE_VALUES / channels));
    for (int64_t chunk, end; medbn_take(job, &chunk, &end);)
        for (; chunk < end; chunk++) {
            double *sum_g = j->sum_g + chunk * channels, *sum_gx = j->sum_gx + chunk * channels;
            const int64_t last = smaller(n, (chunk + 1) * each);
            memset(sum_g, 0, sizeof(double) * (size_t)channels);
            memset(sum_gx, 0, sizeof(double) * (size_t)channels);
            for (int64_t i = chunk * each; i < last; i += tile) {
                const float *g = j->g + i * channels, *x = j->x + i * channels;
                const int64_t rows = smaller(tile, last - i);
                int64_t c = 0;
                for (; c + LANES <= channels; c += LANES)
                    add_rows(g + c, x + c, j->centre + c, channels, LANES, rows, sum_g + c, sum_gx + c);
                if (c < channels)
                    add_rows(g + c, x + c, j->centre + c, channels, (int)(channels - c), rows, sum_g + c, sum_gx + c);
            }
        }
}

static int reduce(const struct layout *at, const float *g, const float *x, const float *centre, double *sum_g,
                  double *sum_gx) {
    struct reduce_job j = {.at = at, .g = g, .x = x, .centre = centre, .sum_g = sum_g, .sum_gx = sum_gx};
    const int64_t each = rows_per_chunk(at), channels = at->channels;
    j.job.grain = 1;
    j.job.count = channels;
    if (!at->last) return medbn_parallel(&j.job, at, reduce_planes);
    /* How rows are cut does not depend on the threads, so neither do the sums. */
    j.job.count = (at->images * at->size + each - 1) / each;
    j.sum_g = malloc(sizeof(double) * 2 * (size_t)(j.job.count * channels));
    if (!j.sum_g) return NO_MEMORY;
    j.sum_gx = j.sum_g + j.job.count * channels;
    int status = medbn_parallel(&j.job, at, reduce_rows);
    for (int64_t c = 0; c < channels; c++) sum_g[c] = sum_gx[c] = 0;
    for (int64_t chunk = 0; chunk < j.job.count; chunk++)
        for (int64_t c = 0; c < channels; c++) {
            sum_g[c] += j.sum_g[chunk * channels + c];
            sum_gx[c] += j.sum_gx[chunk * channels + c];
        }
    free(j.sum_g);
    return status;
}

/* --- moments of each image -------------------------------------------------------------------------------------- */

struct image_job {
    struct job job;
    const struct layout *at;
    const float *x;
    float *mean, *variance; /* (images, channels) */
};

/* From the sums about 0 or a mean rounded to float; in double throughout where they are not finite. */
static void record_image(struct image_job *j, int64_t at, const struct column *v, double mean, struct moments about) {
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

static void image_planes(struct job *job) {
    struct image_job *j = (struct image_job *)job;
    const int64_t size = j->at->size;
    for (int64_t i, end; medbn_take(job, &i, &end);)
        for (; i < end; i++) {
            const struct column v = {j->x + i * size, 1, size, 0, 1, 0, false};
            const float mean = (float)(plane_moments(v.x, size, 0.0f).sum / (double)size);
            record_image(j, i, &v, mean, plane_moments(v.x, size, mean));
        }
}

/* Sums of `lanes` channels over the rows of one image. */
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
                    record_image(j, b * channels + c + l, &v, mean[l], m[l]);
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
