/* Element-wise passes: normalisation, and the gradient of the input. */

enum { PERIOD = 64 /* with fewer channels than this, several rows are handled at once */ };

/* The result is slope (x - centre) + shift and, in the backward pass, + scale g. */
struct pass_job {
    struct job job;
    const struct layout *at;
    const float *g, *x, *centre, *scale, *slope, *shift;
    int64_t per_image; /* the distance from one image's slope and shift to the next one's: 0 or `channels` */
    float *out;
};

INLINE vf value_at(vf g, vf x, vf centre, vf scale, vf slope, vf shift, bool combines) {
    vf y = (x - centre) * slope + shift;
    if (combines) y += scale * g;
    return y;
}

/* Contiguous: the constants are the same for a plane. */
INLINE void plane(const struct pass_job *j, int64_t b, int64_t c, bool combines) {
    const int64_t size = j->at->size, start = (b * j->at->channels + c) * size;
    const float *x = j->x + start, *g = combines ? j->g + start : x;
    float *out = j->out + start;
    const vf centre = splat(j->centre[c]), scale = splat(combines ? j->scale[c] : 0.0f);
    const vf slope = splat(j->slope[b * j->per_image + c]), shift = splat(j->shift[b * j->per_image + c]);
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES)
        store(out + i, value_at(load(g + i), load(x + i), centre, scale, slope, shift, combines));
    if (i < size) {
        const int n = (int)(size - i);
        const vf last_g = load_first(g + i, n), last_x = load_first(x + i, n);
        store_first(out + i, value_at(last_g, last_x, centre, scale, slope, shift, combines), n);
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
INLINE void row(const float *g, const float *x, const float *centre, const float *scale, const float *slope,
                const float *shift, float *out, int64_t n, bool combines) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        store(out + i, value_at(load(g + i), load(x + i), load(centre + i), load(scale + i), load(slope + i),
                                load(shift + i), combines));
    if (i < n) {
        const int m = (int)(n - i);
        store_first(out + i, value_at(load_first(g + i, m), load_first(x + i, m), load_first(centre + i, m),
                                      load_first(scale + i, m), load_first(slope + i, m),
                                      load_first(shift + i, m), combines), m);
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
            const float *centre = j->centre, *scale = combines ? j->scale : centre;
            const float *slope = j->slope + b * j->per_image, *shift = j->shift + b * j->per_image;
            if (together > 1) {
                repeat(repeated[0], centre, channels, together), centre = repeated[0];
                repeat(repeated[1], scale, channels, together), scale = repeated[1];
                repeat(repeated[2], slope, channels, together), slope = repeated[2];
                repeat(repeated[3], shift, channels, together), shift = repeated[3];
            }
            for (int64_t i = 0, period = together * channels; i < n; i += period)
                row(g + i, x + i, centre, scale, slope, shift, j->out + start + i, smaller(period, n - i), combines);
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
    struct pass_job j = {.at = at, .x = x, .centre = centre, .slope = scale, .shift = bias, .out = y};
    return pass(&j);
}

static int combine(const struct layout *at, const float *g, const float *x, const float *centre, const float *scale,
                   const float *slope, const float *shift, bool per_image, float *dx) {
    struct pass_job j = {.at = at, .g = g, .x = x, .centre = centre, .scale = scale, .slope = slope, .shift = shift,
                         .out = dx};
    j.per_image = per_image ? at->channels : 0;
    return pass(&j);
}
