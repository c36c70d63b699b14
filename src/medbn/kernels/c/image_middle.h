/* The statistics that are medians over images. A unit of work is BLOCK channels, one per lane.
 *
 * Floats are compared as integers of the same order, and the lower of two middle values is found bit by bit from the
 * highest: 16 passes over a table that is in cache, whatever the values are.
 */

typedef int32_t lanes __attribute__((vector_size(4 * BLOCK), aligned(4))); /* compilers cut it into registers */

static const float SIGMA = 1.4826f;                          /* MAD_TO_SIGMA in reference.py */
static const float SQUARED_SIGMA = (float)(1.4826 * 1.4826); /* of the derivative of the squared MAD */

struct statistics_job {
    struct job job;
    const struct layout *at;
    const float *mean, *variance; /* (images, channels) */
    float *table;                 /* the centre, the variance, and the MAD */
    double *deviation;
    int64_t *selected; /* (6, channels) */
    float *slopes;     /* (2, channels) */
};

/* Integers in the order of floats, and back: the same operation. */
INLINE void reorder(lanes *k) { *k ^= (*k >> 31) & 0x7fffffff; }

/* The keys of one row of BLOCK floats; -0 has that of 0. */
INLINE void load_keys(const float *row, lanes *k) {
    float sums[BLOCK];
    for (int l = 0; l < BLOCK; l++) sums[l] = row[l] + 0.0f;
    memcpy(k, sums, sizeof *k);
    reorder(k);
}

INLINE void choose(lanes *into, const lanes *from, const lanes *where) {
    *into = (*from & *where) | (*into & ~*where);
}

/* The mean of the two middle values of each lane, and their rows: those that a stable sort puts there. */
static void middle_of_rows(const lanes *keys, int64_t n, float *middle, lanes *low_row, lanes *high_row) {
    const int32_t lower = (int32_t)((n - 1) / 2), upper = (int32_t)(n / 2);
    lanes low = (lanes){0} + INT32_MIN;
    for (int bit = 30; bit >= 0; bit -= 2) { /* two bits at a time: one load for three comparisons */
        const lanes first = low ^ (int32_t)(1u << bit), second = low ^ (int32_t)(2u << bit);
        const lanes third = second ^ (int32_t)(1u << bit);
        lanes below_first = {0}, below_second = {0}, below_third = {0};
        for (int64_t i = 0; i < n; i++) {
            const lanes key = keys[i];
            below_first += key < first; /* true is -1 */
            below_second += key < second;
            below_third += key < third;
        }
        const lanes to_first = -below_first <= lower, to_second = -below_second <= lower;
        const lanes to_third = -below_third <= lower;
        choose(&low, &first, &to_first);
        choose(&low, &second, &to_second);
        choose(&low, &third, &to_third);
    }
    lanes less = {0}, equal = {0}, high = (lanes){0} + INT32_MAX;
    for (int64_t i = 0; i < n; i++) {
        const lanes key = keys[i], next = (key > low) & (key < high);
        less -= key < low;
        equal -= key == low;
        choose(&high, &key, &next);
    }
    const lanes one = less + equal > upper; /* both middle values are equal */
    choose(&high, &low, &one);
    lanes low_left = lower - less, high_left = upper - less - (equal & ~one); /* equal values to pass over */
    *low_row = *high_row = (lanes){0};
    for (int64_t i = 0; i < n; i++) {
        const lanes row = (lanes){0} + (int32_t)i, is_low = keys[i] == low, is_high = keys[i] == high;
        const lanes at_low = is_low & (low_left == 0), at_high = is_high & (high_left == 0);
        choose(low_row, &row, &at_low);
        choose(high_row, &row, &at_high);
        low_left += is_low;
        high_left += is_high;
    }
    float a[BLOCK], b[BLOCK];
    reorder(&low);
    reorder(&high);
    memcpy(a, &low, sizeof a);
    memcpy(b, &high, sizeof b);
    for (int l = 0; l < BLOCK; l++) middle[l] = 0.5f * a[l] + 0.5f * b[l];
}

/* The statistics of `width` channels from channel c on. */
static void statistics_of_block(struct statistics_job *j, int64_t c, int width, lanes *keys) {
    const int64_t images = j->at->images, n = j->at->channels;
    float row[BLOCK] = {0}, centre[BLOCK], inner[BLOCK], mad[BLOCK];
    double deviation[BLOCK] = {0};
    lanes rows[6];
    for (int64_t b = 0; b < images; b++) {
        memcpy(row, j->mean + b * n + c, sizeof *row * (size_t)width);
        load_keys(row, keys + b);
    }
    middle_of_rows(keys, images, centre, rows, rows + 1);
    for (int64_t b = 0; b < images; b++) {
        memcpy(row, j->variance + b * n + c, sizeof *row * (size_t)width);
        load_keys(row, keys + b);
    }
    middle_of_rows(keys, images, inner, rows + 2, rows + 3);
    for (int64_t b = 0; b < images; b++) {
        memcpy(row, j->mean + b * n + c, sizeof *row * (size_t)width);
        for (int l = 0; l < BLOCK; l++) {
            row[l] -= centre[l];
            deviation[l] += (double)row[l];
            row[l] = fabsf(row[l]);
        }
        load_keys(row, keys + b);
    }
    middle_of_rows(keys, images, mad, rows + 4, rows + 5);
    for (int l = 0; l < width; l++) {
        const float between = SIGMA * mad[l];
        j->table[c + l] = centre[l];
        j->table[n + c + l] = inner[l] + between * between;
        j->table[2 * n + c + l] = mad[l];
        j->deviation[c + l] = deviation[l] * (double)j->at->size;
        for (int i = 0; i < 6; i++) j->selected[i * n + c + l] = rows[i][l];
        for (int i = 0; i < 2; i++) {
            const float d = j->mean[rows[4 + i][l] * n + c + l] - centre[l];
            j->slopes[i * n + c + l] = SQUARED_SIGMA * mad[l] * (float)((d > 0) - (d < 0));
        }
    }
}

static void statistics_of_blocks(struct job *job) {
    struct statistics_job *j = (struct statistics_job *)job;
    lanes *keys = malloc(sizeof *keys * (size_t)j->at->images);
    if (!keys) atomic_fetch_or(&job->status, NO_MEMORY);
    for (int64_t unit, end; keys && medbn_take(job, &unit, &end);)
        for (; unit < end; unit++) {
            const int64_t c = unit * BLOCK;
            statistics_of_block(j, c, (int)smaller(BLOCK, j->at->channels - c), keys);
        }
    free(keys);
}

/* Entry point: see kernels.h. */
static int image_statistics(const struct layout *at, const float *mean, const float *variance, float *table,
                            double *deviation, int64_t *selected, float *slopes) {
    /* Threads are worth it for so many values as are compared. */
    const struct layout compared = {at->images, at->channels, 32, true, at->threads};
    struct statistics_job j = {.at = at, .mean = mean, .variance = variance, .table = table, .deviation = deviation,
                               .selected = selected, .slopes = slopes};
    j.job.count = (at->channels + BLOCK - 1) / BLOCK;
    j.job.grain = 1;
    return medbn_parallel(&j.job, &compared, statistics_of_blocks);
}
