/* Element-wise passes: normalisation, and the gradient of the input. */

enum { PERIOD = 64 /* with fewer channels than this, several rows are handled at once */ };

/* Normalisation is q (x - centre) + p with q = scale and p = bias. The backward pass adds a g. */
struct pass_job {
    struct job job;
    const struct layout *at;
    const float *g, *x, *centre, *a, *q, *p;
    int64_t per_image; /* the distance from one image's q and p to the next one's: 0 or `channels` */
    float *out;
};

INLINE vf value_at(vf g, vf x, vf centre, vf a, vf q, vf p, bool combines) {
    vf y = (x - centre) * q + p;
    if (combines) y += a * g;
    return y;
}

/* Contiguous: the constants are the same for a plane. */
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

/* Channels last: the constants are vectors. */
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

/* Copy `rows` rows of the same constants. */
static void repeat(float *to, const float *from, int64_t channels, int64_t rows) {
    for (int64_t r = 0; r < rows; r++) memcpy(to + r * channels, from, sizeof(float) * (size_t)channels);
}

/* A unit of work is a chunk of rows: of one image where constants are per image, else of all images.
 *
 * Few channels are handled as several rows at once, with repeated constants, so that vectors are full.
 */
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

/* Cut the work into units and run it. */
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
