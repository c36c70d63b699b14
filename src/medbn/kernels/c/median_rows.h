/* The median of every channel where channels are last and too long to copy: one pass over rows of up to GROUP channels.
 *
 * The steps are those of survey.h, for many channels side by side.
 */

enum { MARKED_ROWS = 4 * TILE };

/* The state of a block of channels during the pass; see struct survey. */
struct block {
    float low[BLOCK], high[BLOCK], near[BLOCK], centre[BLOCK];
    double sum[BLOCK], square[BLOCK];
    int32_t below[BLOCK], over_low[BLOCK], over_high[BLOCK], collected[BLOCK];
};

/* A thread's work space: a group of channels that are read together. */
struct group {
    struct plan plan;
    int64_t room;         /* values that can be collected per channel */
    struct block *blocks; /* GROUP / BLOCK */
    float *inside;        /* GROUP x (room + SLACK) */
    float *sample;        /* BLOCK x (MOST_SAMPLED + SLACK) */
    int32_t *marks;       /* how many values each channel had collected, every MARKED_ROWS rows */
    struct space small;   /* for the sample and for what was collected */
};

/* Add the sums of a tile; where they overflowed, sum again in double. */
static void add_sums(struct block *k, int lane, int lanes, vf sum, vf square, const float *x, int64_t stride,
                     int64_t rows) {
    float s[LANES], q[LANES];
    store(s, sum);
    store(q, square);
    if (all_finite(square)) {
        for (int l = 0; l < LANES; l++) k->sum[lane + l] += s[l], k->square[lane + l] += q[l];
        return;
    }
    for (int l = 0; l < lanes; l++) {
        const struct column v = {x + l, 1, rows, 0, stride, 0, false};
        struct moments m = moments_in_double(&v, k->near[lane + l], 0, rows);
        k->sum[lane + l] += m.sum;
        k->square[lane + l] += m.square;
    }
}

/* Count and sum a tile of a block: one channel per lane. */
INLINE void count_tile(struct block *k, const float *x, int64_t stride, int width, int64_t rows, bool deviations) {
    for (int lane = 0; lane < width; lane += LANES) {
        const int lanes = width - lane < LANES ? width - lane : LANES;
        const vf low = load(k->low + lane), high = load(k->high + lane), near = load(k->near + lane);
        const vf centre = load(k->centre + lane);
        vf sum = splat(0.0f), square = sum;
        vi below, over_low, over_high;
        memcpy(&below, k->below + lane, sizeof below);
        memcpy(&over_low, k->over_low + lane, sizeof over_low);
        memcpy(&over_high, k->over_high + lane, sizeof over_high);
        for (int64_t r = 0; r < rows; r++) {
            const float *from = x + r * stride + lane;
            __builtin_prefetch(from + TILE * stride); /* of the next tile: while this one is being collected */
            vf v = read_all(lanes == LANES ? load(from) : load_first(from, lanes), centre, deviations);
            below = add_mask(below, less(v, low));
            over_low = add_mask(over_low, less(low, v));
            over_high = add_mask(over_high, less(high, v));
            if (!deviations) {
                vf d = v - near;
                sum += d;
                square += d * d;
            }
        }
        memcpy(k->below + lane, &below, sizeof below);
        memcpy(k->over_low + lane, &over_low, sizeof over_low);
        memcpy(k->over_high + lane, &over_high, sizeof over_high);
        if (!deviations) add_sums(k, lane, lanes, sum, square, x + lane, stride, rows);
    }
}

/* Collect the values of a tile that are inside the brackets: transposed, so that each channel is compressed alone. */
INLINE void collect_tile(struct block *k, const float *x, int64_t stride, int width, int64_t rows, float *inside,
                         int64_t room, bool deviations) {
    float tile[BLOCK * BLOCK];
    for (int64_t r = 0; r < rows; r += BLOCK) {
        const int here = (int)smaller(BLOCK, rows - r);
        if (here == BLOCK)
            transpose(x + r * stride, stride, width, tile, BLOCK);
        else
            for (int i = 0; i < here; i++)
                for (int c = 0; c < width; c++) tile[c * BLOCK + i] = x[(r + i) * stride + c];
        for (int c = 0; c < width; c++) {
            const vf low = splat(k->low[c]), high = splat(k->high[c]), centre = splat(k->centre[c]);
            float *start = inside + c * (room + SLACK), *out = start + k->collected[c];
            for (int i = 0; i < here; i += LANES) {
                vf v = read_all(load(tile + c * BLOCK + i), centre, deviations);
                mask in = both(less(low, v), less(v, high));
                if (here < BLOCK) in = both(in, first(here - i < LANES ? here - i : LANES));
                out = compress(out, in, v);
            }
            k->collected[c] = (int32_t)smaller(out - start, room); /* a full buffer may have lost values */
        }
    }
}

/* The pass over the rows of a group. */
INLINE void survey_rows(struct median_job *j, struct group *g, int64_t channel, int64_t channels, bool deviations) {
    const int64_t n = g->plan.n, stride = j->at->channels;
    for (int64_t i = 0; i < n; i += TILE)
        for (int64_t c = 0; c < channels; c += BLOCK) {
            struct block *k = g->blocks + c / BLOCK;
            const float *x = j->x + i * stride + channel + c;
            const int width = (int)smaller(BLOCK, channels - c);
            if (i % MARKED_ROWS == 0)
                memcpy(g->marks + i / MARKED_ROWS * GROUP + c, k->collected, sizeof k->collected);
            count_tile(k, x, stride, width, smaller(TILE, n - i), deviations);
            collect_tile(k, x, stride, width, smaller(TILE, n - i), g->inside + c * (g->room + SLACK), g->room,
                         deviations);
        }
}

/* Bracket every channel of the group with the values of a sample of rows. */
static void bracket_group(struct median_job *j, struct group *g, int64_t channel, int64_t channels) {
    const struct plan *p = &g->plan;
    const int64_t pitch = MOST_SAMPLED + SLACK;
    for (int64_t first = 0; first < channels; first += BLOCK) {
        struct block *k = g->blocks + first / BLOCK;
        const int width = (int)smaller(BLOCK, channels - first);
        *k = (struct block){.collected = {0}};
        for (int c = 0; j->centre && c < width; c++) k->centre[c] = j->centre[channel + first + c];
        for (int64_t i = 0; i < p->size; i++) {
            const float *x = j->x + sampled(p, i) * j->at->channels + channel + first;
            for (int c = 0; c < width; c++) g->sample[c * pitch + i] = read(x[c], k->centre[c], j->centre != NULL);
        }
        for (int c = 0; c < width; c++) {
            struct bracket limits = bracket_of(p, g->sample + c * pitch, g->small.a, g->small.b);
            k->low[c] = limits.low, k->high[c] = limits.high, k->near[c] = limits.near;
        }
    }
}

/* Write the statistics of channel c of the group; return false if its bracket missed or its buffer was too small. */
static bool finish_channel(struct median_job *j, struct group *g, int64_t channel, int64_t c) {
    const struct plan *p = &g->plan;
    const struct block *k = g->blocks + c / BLOCK;
    const int l = (int)(c % BLOCK);
    const float *inside = g->inside + c * (g->room + SLACK);
    const struct counts counts = {k->below[l], k->over_low[l], k->over_high[l], k->collected[l]};
    if (counts.inside >= g->room) return false;
    struct summary r = {0};
    int64_t from = 0;
    switch (place_of(p, &counts)) {
    case AT_LOW: r.value = k->low[l]; break;
    case AT_HIGH: r.value = k->high[l]; break;
    case INSIDE: {
        const struct column values = {inside, 1, counts.inside, 0, 1, 0, false};
        r.value = select_rank(inside, counts.inside, p->k - (p->n - counts.over_low), g->small.a, g->small.b);
        int64_t place = find(&values, r.value, 0), mark = (p->n - 1) / MARKED_ROWS;
        while (g->marks[mark * GROUP + c] > place) mark--;
        from = mark * MARKED_ROWS;
        break;
    }
    default: return false;
    }
    r.value += 0.0f;
    struct column v = {j->x + channel + c, 1, p->n, 0, j->at->channels, 0, false};
    if (j->centre) v.centre = j->centre[channel + c], v.deviations = true;
    r.index = find(&v, r.value, from);
    if (!j->centre) move_moments(&r, &v, (struct moments){k->sum[l], k->square[l]}, k->near[l]);
    write_result(j, channel + c, &r);
    return true;
}

/* Compute the channels that finish_channel could not, from a copy of them. Return false if memory ran out. */
static bool retry_channels(struct median_job *j, const struct group *g, int64_t channel, int width, unsigned missed) {
    const int64_t n = g->plan.n;
    struct space space;
    float *columns = malloc(sizeof(float) * (size_t)__builtin_popcount(missed) * (size_t)(n + SLACK));
    bool room = make_space(&space, n) && columns;
    if (room) median_of_block(j, channel, width, missed, columns, &space);
    free(columns);
    free_space(&space);
    return room;
}

static bool make_group(struct group *g, int64_t n) {
    g->plan = plan_of(n, 4.0, 3.5);
    double width = (double)(g->plan.high - g->plan.low) / (double)g->plan.size;
    g->room = smaller(n, (int64_t)(2 * width * (double)n)) + BLOCK;
    g->blocks = calloc(GROUP / BLOCK, sizeof(struct block));
    g->inside = malloc(sizeof(float) * GROUP * (size_t)(g->room + SLACK));
    g->sample = malloc(sizeof(float) * BLOCK * (MOST_SAMPLED + SLACK));
    g->marks = malloc(sizeof(int32_t) * GROUP * (size_t)(n / MARKED_ROWS + 1));
    return make_space(&g->small, g->room + BLOCK) && g->blocks && g->inside && g->sample && g->marks;
}

static void free_group(struct group *g) {
    free(g->blocks), free(g->inside), free(g->sample), free(g->marks);
    free_space(&g->small);
}

/* Channels last, many rows: a unit of work is a block of channels, and up to GROUP channels are read together. */
static void median_by_rows(struct job *job) {
    struct median_job *j = (struct median_job *)job;
    const int64_t n = j->at->images * j->at->size;
    struct group g;
    bool room = make_group(&g, n);
    for (int64_t from, to; room && medbn_take(job, &from, &to);) {
        const int64_t channel = from * BLOCK, channels = smaller(to * BLOCK, j->at->channels) - channel;
        bracket_group(j, &g, channel, channels);
        if (j->centre)
            survey_rows(j, &g, channel, channels, true);
        else
            survey_rows(j, &g, channel, channels, false);
        for (int64_t first = 0; room && first < channels; first += BLOCK) {
            const int width = (int)smaller(BLOCK, channels - first);
            unsigned missed = 0;
            for (int c = 0; c < width; c++)
                if (!finish_channel(j, &g, channel, first + c)) missed |= 1u << c;
            if (missed) room = retry_channels(j, &g, channel + first, width, missed);
        }
    }
    if (!room) atomic_fetch_or(&job->status, NO_MEMORY);
    free_group(&g);
}

/* Entry point: see kernels.h. */
static int median(const struct layout *at, const float *x, const float *centre, float *value, float *variance,
                  double *deviation, int64_t *index) {
    struct median_job j = {.at = at, .x = x, .centre = centre, .value = value, .variance = variance,
                           .deviation = deviation, .index = index};
    const int64_t blocks = (at->channels + BLOCK - 1) / BLOCK;
    j.job.count = at->last ? blocks : at->channels;
    j.job.grain = 1;
    if (!at->last) return medbn_parallel(&j.job, at, median_in_planes);
    const int64_t n = at->images * at->size;
    int64_t together = smaller(GROUP / BLOCK, (blocks + at->threads - 1) / at->threads);
    if (n <= COPIED_ROWS) together = larger(1, smaller(together, COPIED_VALUES / (BLOCK * n)));
    j.job.grain = together;
    return medbn_parallel(&j.job, at, n <= COPIED_ROWS ? median_by_blocks : median_by_rows);
}
