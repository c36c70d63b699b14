/* The median of every channel where channels are contiguous, or so short that they are made so by a transposed copy. */

enum { COPIED_ROWS = 16384 /* rows up to which a block of channels is transposed as a whole, in cache */ };

struct median_job {
    struct job job;
    const struct layout *at;
    const float *x, *centre;
    float *value, *variance;
    double *deviation;
    int64_t *index;
};

/* Write the statistics of a channel; of |x - centre|, only the median and its position. */
static void write_result(struct median_job *j, int64_t channel, const struct summary *r) {
    j->value[channel] = r->value;
    j->index[channel] = r->index;
    if (j->centre) return;
    j->variance[channel] = (float)r->variance;
    j->deviation[channel] = r->deviation;
    if (!isfinite(r->variance) || !isfinite(r->deviation)) atomic_fetch_or(&j->job.status, NONFINITE);
}

/* Contiguous: a unit of work is a channel. */
static void median_in_planes(struct job *job) {
    struct median_job *j = (struct median_job *)job;
    const struct layout *at = j->at;
    struct space space;
    bool room = make_space(&space, at->images * at->size);
    if (!room) atomic_fetch_or(&job->status, NO_MEMORY);
    for (int64_t c, end; room && medbn_take(job, &c, &end);)
        for (; c < end; c++) {
            struct column v = {j->x + c * at->size, at->images, at->size, at->channels * at->size, 1, 0, false};
            if (j->centre) v.centre = j->centre[c], v.deviations = true;
            struct summary r = summarise(&v, &space);
            write_result(j, c, &r);
        }
    free_space(&space);
}

/* The statistics of the channels of a block whose bits are set in `selected`, from a transposed copy of those. */
static void median_of_block(struct median_job *j, int64_t channel, int width, unsigned selected, float *columns,
                            struct space *space) {
    const int64_t n = j->at->images * j->at->size, pitch = n + SLACK, stride = j->at->channels;
    const float *x = j->x + channel;
    float tile[BLOCK * BLOCK];
    const bool all = selected == (1u << width) - 1;
    for (int64_t i = 0; i < n; i += BLOCK) {
        if (i + BLOCK > n) {
            int64_t row = 0;
            for (int c = 0; c < width; c++)
                if (selected >> c & 1)
                    for (int64_t r = i, k = row++; r < n; r++) columns[k * pitch + r] = x[r * stride + c];
        } else if (all) {
            transpose(x + i * stride, stride, width, columns + i, pitch);
        } else {
            int64_t row = 0;
            transpose(x + i * stride, stride, width, tile, BLOCK);
            for (int c = 0; c < width; c++)
                if (selected >> c & 1) memcpy(columns + row++ * pitch + i, tile + c * BLOCK, sizeof(float) * BLOCK);
        }
    }
    int64_t row = 0;
    for (int c = 0; c < width; c++) {
        if (!(selected >> c & 1)) continue;
        struct column v = {columns + row++ * pitch, 1, n, 0, 1, 0, false};
        if (j->centre) v.centre = j->centre[channel + c], v.deviations = true;
        struct summary r = summarise(&v, space);
        write_result(j, channel + c, &r);
    }
}

/* Channels last, few rows: a unit of work is a block of channels. */
static void median_by_blocks(struct job *job) {
    struct median_job *j = (struct median_job *)job;
    const int64_t n = j->at->images * j->at->size, channels = j->at->channels;
    struct space space;
    float *columns = malloc(sizeof(float) * BLOCK * (size_t)(n + SLACK));
    bool room = make_space(&space, n) && columns;
    if (!room) atomic_fetch_or(&job->status, NO_MEMORY);
    for (int64_t b, end; room && medbn_take(job, &b, &end);)
        for (; b < end; b++) {
            int width = (int)smaller(BLOCK, channels - b * BLOCK);
            median_of_block(j, b * BLOCK, width, (1u << width) - 1, columns, &space);
        }
    free(columns);
    free_space(&space);
}
