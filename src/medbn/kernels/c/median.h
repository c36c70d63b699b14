/* The median of every channel, in both layouts, over native_select.h. */

enum {
    BLOCK = 16,            /* channels that share a cache line where channels are last */
    TILE = 64,             /* rows summed in float before the sums go on in double */
    MARKED_ROWS = 4 * TILE,
    GROUP = 64,            /* channels whose rows are read together */
    COPIED_ROWS = 16384    /* rows up to which a block of channels is transposed as a whole, in cache */
};

struct median_job {
    struct job job;
    const struct layout *at;
    const float *x, *centre;
    float *value, *variance;
    double *deviation;
    int64_t *index;
};

static void record(struct median_job *j, int64_t channel, const struct summary *r) {
    j->value[channel] = r->value;
    j->index[channel] = r->index;
    if (j->centre) return;
    j->variance[channel] = (float)r->variance;
    j->deviation[channel] = r->deviation;
    if (!isfinite(r->variance) || !isfinite(r->deviation)) atomic_fetch_or(&j->job.status, NONFINITE);
}

static void median_in_planes(struct job *job) {
    struct median_job *j = (struct median_job *)job;
    const struct layout *at = j->at;
    struct space space;
    bool room = make_space(&space, at->images * at->size);
    if (!room) atomic_fetch_or(&job->status, NO_MEMORY);
    for (int64_t c, end; room && medbn_take(job, &c, &end);)
        for (; c < end; c++) {
            struct column v = {j->x + c * at->size, at->images, at->size, at->channels * at->size, 1, 0, false};
            if (j->centre) v.centre = j->centre[c], v.deviates = true;
            struct summary r = summarise(&v, &space);
            record(j, c, &r);
        }
    free_space(&space);
}

/* --- channels last ---------------------------------------------------------------------------------------------- */

/* Summarise those channels of a block that `wanted` has, from a transposed copy. */
static void median_of_block(struct median_job *j, int64_t channel, int width, unsigned wanted, float *columns,
                            struct space *space) {
    const int64_t n = j->at->images * j->at->size, pitch = n + SLACK, stride = j->at->channels;
    const float *x = j->x + channel;
    float tile[BLOCK * BLOCK];
    const bool all = wanted == (1u << width) - 1;
    for (int64_t i = 0; i < n; i += BLOCK) {
        if (i + BLOCK > n) {
            int64_t row = 0;
            for (int c = 0; c < width; c++)
                if (wanted >> c & 1)
                    for (int64_t r = i, k = row++; r < n; r++) columns[k * pitch + r] = x[r * stride + c];
        } else if (all) {
            transpose(x + i * stride, stride, width, columns + i, pitch);
        } else {
            int64_t row = 0;
            transpose(x + i * stride, stride, width, tile, BLOCK);
            for (int c = 0; c < width; c++)
                if (wanted >> c & 1) memcpy(columns + row++ * pitch + i, tile + c * BLOCK, sizeof(float) * BLOCK);
        }
    }
    int64_t row = 0;
    for (int c = 0; c < width; c++) {
        if (!(wanted >> c & 1)) continue;
        struct column v = {columns + row++ * pitch, 1, n, 0, 1, 0, false};
        if (j->centre) v.centre = j->centre[channel + c], v.deviates = true;
        struct summary r = summarise(&v, space);
        record(j, channel + c, &r);
    }
}

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

/* The state of a block of channels during the pass over the rows. */
struct block {
    float low[BLOCK], high[BLOCK], near[BLOCK], centre[BLOCK];
    double sum[BLOCK], square[BLOCK];
    int32_t below[BLOCK], past[BLOCK], above[BLOCK], kept[BLOCK];
};

struct group {
    struct plan plan;
    int64_t room;         /* values kept per channel */
    struct block *blocks; /* GROUP / BLOCK */
    float *inside;        /* GROUP x (room + SLACK) */
    float *sample;        /* BLOCK x (MOST_SAMPLED + SLACK) */
    int32_t *marks;       /* what each channel of the group had kept, every MARKED_ROWS rows */
    struct space small;   /* for the sample and for what was kept */
};

/* Sums of a tile, redone in double where they overflowed. */
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

/* Counts and sums of a tile of a block: channels side by side. */
INLINE void count_tile(struct block *k, const float *x, int64_t stride, int width, int64_t rows, bool deviates) {
    for (int lane = 0; lane < width; lane += LANES) {
        const int lanes = width - lane < LANES ? width - lane : LANES;
        const vf low = load(k->low + lane), high = load(k->high + lane), near = load(k->near + lane);
        const vf centre = load(k->centre + lane);
        vf sum = splat(0.0f), square = sum;
        vi below, past, above;
        memcpy(&below, k->below + lane, sizeof below);
        memcpy(&past, k->past + lane, sizeof past);
        memcpy(&above, k->above + lane, sizeof above);
        for (int64_t r = 0; r < rows; r++) {
            const float *from = x + r * stride + lane;
            vf v = read_all(lanes == LANES ? load(from) : load_first(from, lanes), centre, deviates);
            below = tally(below, less(v, low));
            past = tally(past, less(low, v));
            above = tally(above, less(high, v));
            if (!deviates) {
                vf d = v - near;
                sum += d;
                square += d * d;
            }
        }
        memcpy(k->below + lane, &below, sizeof below);
        memcpy(k->past + lane, &past, sizeof past);
        memcpy(k->above + lane, &above, sizeof above);
        if (!deviates) add_sums(k, lane, lanes, sum, square, x + lane, stride, rows);
    }
}

/* Keep what a tile of a block has inside the brackets: each channel's values in a row. */
INLINE void keep_tile(struct block *k, const float *x, int64_t stride, int width, int64_t rows, float *inside,
                      int64_t room, bool deviates) {
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
            float *start = inside + c * (room + SLACK), *out = start + k->kept[c];
            for (int i = 0; i < here; i += LANES) {
                vf v = read_all(load(tile + c * BLOCK + i), centre, deviates);
                mask in = both(less(low, v), less(v, high));
                if (here < BLOCK) in = both(in, first(here - i < LANES ? here - i : LANES));
                out = squeeze(out, in, v);
            }
            k->kept[c] = (int32_t)smaller(out - start, room); /* a full buffer is one that missed something */
        }
    }
}

INLINE void pass_rows(struct median_job *j, struct group *g, int64_t channel, int64_t channels, bool deviates) {
    const int64_t n = g->plan.n, stride = j->at->channels;
    for (int64_t i = 0; i < n; i += TILE)
        for (int64_t c = 0; c < channels; c += BLOCK) {
            struct block *k = g->blocks + c / BLOCK;
            const float *x = j->x + i * stride + channel + c;
            const int width = (int)smaller(BLOCK, channels - c);
            if (i % MARKED_ROWS == 0)
                memcpy(g->marks + i / MARKED_ROWS * GROUP + c, k->kept, sizeof k->kept);
            count_tile(k, x, stride, width, smaller(TILE, n - i), deviates);
            keep_tile(k, x, stride, width, smaller(TILE, n - i), g->inside + c * (g->room + SLACK), g->room, deviates);
        }
}

/* Bracket every channel of the group by the values that some rows have there. */
static void bracket_group(struct median_job *j, struct group *g, int64_t channel, int64_t channels) {
    const struct plan *p = &g->plan;
    const int64_t pitch = MOST_SAMPLED + SLACK;
    for (int64_t first = 0; first < channels; first += BLOCK) {
        struct block *k = g->blocks + first / BLOCK;
        const int width = (int)smaller(BLOCK, channels - first);
        *k = (struct block){.kept = {0}};
        for (int c = 0; j->centre && c < width; c++) k->centre[c] = j->centre[channel + first + c];
        for (int64_t i = 0; i < p->size; i++) {
            const float *x = j->x + sampled(p, i) * j->at->channels + channel + first;
            for (int c = 0; c < width; c++) g->sample[c * pitch + i] = read(x[c], k->centre[c], j->centre != NULL);
        }
        for (int c = 0; c < width; c++) {
            struct bracket found = bracket_of(p, g->sample + c * pitch, g->small.a, g->small.b);
            k->low[c] = found.low, k->high[c] = found.high, k->near[c] = found.near;
        }
    }
}

/* Finish channel c of the group; false if its bracket missed or its buffer was too small. */
static bool finish(struct median_job *j, struct group *g, int64_t channel, int64_t c) {
    const struct plan *p = &g->plan;
    const struct block *k = g->blocks + c / BLOCK;
    const int l = (int)(c % BLOCK);
    const float *inside = g->inside + c * (g->room + SLACK);
    const struct counts found = {k->below[l], k->past[l], k->above[l], k->kept[l]};
    if (found.inside >= g->room) return false;
    struct summary r = {0};
    int64_t from = 0;
    switch (place_of(p, &found)) {
    case AT_LOW: r.value = k->low[l]; break;
    case AT_HIGH: r.value = k->high[l]; break;
    case INSIDE: {
        const struct column kept = {inside, 1, found.inside, 0, 1, 0, false};
        r.value = select_rank(inside, found.inside, p->k - (p->n - found.past), g->small.a, g->small.b);
        int64_t place = find(&kept, r.value, 0), mark = (p->n - 1) / MARKED_ROWS;
        while (g->marks[mark * GROUP + c] > place) mark--;
        from = mark * MARKED_ROWS;
        break;
    }
    default: return false;
    }
    r.value += 0.0f;
    struct column v = {j->x + channel + c, 1, p->n, 0, j->at->channels, 0, false};
    if (j->centre) v.centre = j->centre[channel + c], v.deviates = true;
    r.index = find(&v, r.value, from);
    if (!j->centre) settle(&r, &v, (struct moments){k->sum[l], k->square[l]}, k->near[l]);
    record(j, channel + c, &r);
    return true;
}

/* Channels that could not be finished, from a copy of them. */
static bool retry(struct median_job *j, const struct group *g, int64_t channel, int width, unsigned missed) {
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

static void median_by_rows(struct job *job) {
    struct median_job *j = (struct median_job *)job;
    const int64_t n = j->at->images * j->at->size;
    struct group g;
    bool room = make_group(&g, n);
    for (int64_t from, to; room && medbn_take(job, &from, &to);) {
        const int64_t channel = from * BLOCK, channels = smaller(to * BLOCK, j->at->channels) - channel;
        bracket_group(j, &g, channel, channels);
        if (j->centre)
            pass_rows(j, &g, channel, channels, true);
        else
            pass_rows(j, &g, channel, channels, false);
        for (int64_t first = 0; room && first < channels; first += BLOCK) {
            const int width = (int)smaller(BLOCK, channels - first);
            unsigned missed = 0;
            for (int c = 0; c < width; c++)
                if (!finish(j, &g, channel, first + c)) missed |= 1u << c;
            if (missed) room = retry(j, &g, channel + first, width, missed);
        }
    }
    if (!room) atomic_fetch_or(&job->status, NO_MEMORY);
    free_group(&g);
}

static int median(const struct layout *at, const float *x, const float *centre, float *value, float *variance,
                  double *deviation, int64_t *index) {
    struct median_job j = {.at = at, .x = x, .centre = centre, .value = value, .variance = variance,
                           .deviation = deviation, .index = index};
    const int64_t blocks = (at->channels + BLOCK - 1) / BLOCK;
    j.job.count = at->last ? blocks : at->channels;
    j.job.grain = 1;
    if (!at->last) return medbn_parallel(&j.job, at, median_in_planes);
    if (at->images * at->size <= COPIED_ROWS) return medbn_parallel(&j.job, at, median_by_blocks);
    j.job.grain = smaller(GROUP / BLOCK, (blocks + at->threads - 1) / at->threads);
    return medbn_parallel(&j.job, at, median_by_rows);
}
