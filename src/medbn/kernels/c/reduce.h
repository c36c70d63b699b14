/* The sums of the backward pass: of g, and of g (x - centre), over each channel. */

enum {
    MOST_CHUNKS = 64, /* partial sums per channel where channels are last */
    TILE_VALUES = 16384 /* values of a tile of rows, about, so that a tile stays in cache */
};

struct reduce_job {
    struct job job;
    const struct layout *at;
    const float *g, *x, *centre;
    double *sum_g, *sum_gx; /* (channels) or, channels last, (chunks, channels) */
};

/* Contiguous: a unit of work is a channel. */
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
                    if (i < end) { /* the missing values of g are loaded as 0 */
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

/* How rows are cut into chunks. It does not depend on the threads, so neither do the sums. */
INLINE int64_t rows_per_chunk(const struct layout *at) {
    const int64_t n = at->images * at->size, chunks = smaller(MOST_CHUNKS, n * at->channels / CHUNK + 1);
    return (n + chunks - 1) / chunks;
}

/* Add the sums of a tile of rows: one channel per lane. */
INLINE void add_rows(const float *g, const float *x, const float *centre, int64_t stride, int lanes, int64_t rows,
                     double *sum_g, double *sum_gx) {
    const vf middle = lanes == LANES ? load(centre) : load_first(centre, lanes);
    vf sum = splat(0.0f), product = sum;
    for (int64_t r = 0; r < rows; r++, g += stride, x += stride) {
        vf along = lanes == LANES ? load(g) : load_first(g, lanes);
        __builtin_prefetch(g + rows * stride); /* of the next tile */
        __builtin_prefetch(x + rows * stride);
        sum += along;
        product += along * ((lanes == LANES ? load(x) : load_first(x, lanes)) - middle);
    }
    add_lanes(sum_g, sum, lanes);
    add_lanes(sum_gx, product, lanes);
}

/* Channels last: a unit of work is a chunk of rows. */
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
