/* The median of every channel where channels are contiguous, or so short that they are made so by a transposed copy. */

enum {
    COPIED_ROWS = 16384,     /* rows up to which a block of channels is transposed as a whole, in cache */
    COPIED_VALUES = 1 << 17, /* values up to which several blocks are, so that more of each row is read at once */
};

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

/* Copy the channels of a block whose bits are set in `selected` to columns, from row `from` on up to BLOCK rows. */
static void copy_rows(const struct median_job *j, int64_t channel, int width, unsigned selected, int64_t from,
                      float *columns, int64_t pitch) {
    const int64_t n = j->at->images * j->at->size, stride = j->at->channels;
    const float *x = j->x + from * stride + channel;
    float tile[BLOCK * BLOCK];
    int64_t row = 0;
    columns += from;
    for (int r = BLOCK; r < 2 * BLOCK; r++) __builtin_prefetch(x + r * stride); /* the next ones */
    if (from + BLOCK > n) {
        for (int c = 0; c < width; c++)
            if (selected >> c & 1)
                for (int64_t r = 0, k = row++; r < n - from; r++) columns[k * pitch + r] = x[r * stride + c];
    } else if (selected == (1u << width) - 1) {
        transpose(x, stride, width, columns, pitch);
    } else {
        transpose(x, stride, width, tile, BLOCK);
        for (int c = 0; c < width; c++)
            if (selected >> c & 1) memcpy(columns + row++ * pitch, tile + c * BLOCK, sizeof(float) * BLOCK);
    }
}

/* The statistics of a channel that was copied to a column. */
static void median_of_column(struct median_job *j, int64_t channel, const float *column, struct space *space) {
    struct column v = {column, 1, j->at->images * j->at->size, 0, 1, 0, false};
    if (j->centre) v.centre = j->centre[channel], v.deviations = true;
    struct summary r = summarise(&v, space);
    write_result(j, channel, &r);
}

/* The statistics of the channels of a block whose bits are set in `selected`, from a transposed copy of those. */
static void median_of_block(struct median_job *j, int64_t channel, int width, unsigned selected, float *columns,
                            struct space *space) {
    const int64_t n = j->at->images * j->at->size, pitch = n + SLACK;
    for (int64_t i = 0; i < n; i += BLOCK) copy_rows(j, channel, width, selected, i, columns, pitch);
    for (int c = 0; c < width; c++)
        if (selected >> c & 1) median_of_column(j, channel + c, columns, space), columns += pitch;
}

/* Channels last, few rows: a unit of work is a block of channels, several of which are copied together. */
static void median_by_blocks(struct job *job) {
    struct median_job *j = (struct median_job *)job;
    const int64_t n = j->at->images * j->at->size, pitch = n + SLACK;
    struct space space;
    float *columns = malloc(sizeof(float) * (size_t)(job->grain * BLOCK * pitch));
    bool room = make_space(&space, n) && columns;
    if (!room) atomic_fetch_or(&job->status, NO_MEMORY);
    for (int64_t from, to; room && medbn_take(job, &from, &to);) {
        const int64_t channel = from * BLOCK, channels = smaller(to * BLOCK, j->at->channels) - channel;
        for (int64_t i = 0; i < n; i += BLOCK)
            for (int64_t c = 0; c < channels; c += BLOCK) {
                const int width = (int)smaller(BLOCK, channels - c);
                copy_rows(j, channel + c, width, (1u << width) - 1, i, columns + c * pitch, pitch);
            }
        for (int64_t c = 0; c < channels; c++) median_of_column(j, channel + c, columns + c * pitch, &space);
    }
    free(columns);
    free_space(&space);
}
