/* Exact selection in one channel, over the vector operations of the file that includes this.
 *
 * A jittered sample brackets the median between two of its own values. One pass then counts what lies below, at and
 * above the two, sums moments, and keeps what lies between them: a few per cent, in which the median is selected. When
 * the bracket misses, a wider one is tried, and then a radix select, which nothing makes slower.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLACK = 32,        /* floats that vector stores may write behind the end of a buffer */
    FLUSH = 64 * LANES, /* values summed in float before the sums go on in double */
    FEW = 32,          /* values among which ranks are simply counted */
    NARROWED = 512,    /* values from which on two pivots are worth more than one */
    SMALL = 4096,      /* values of a channel up to which no sample is worth its while */
    MOST_SAMPLED = 8192
};

/* --- sums ------------------------------------------------------------------------------------------------------- */

struct moments {
    double sum, square; /* of x - near and (x - near)^2 */
};

INLINE bool all_finite(vf v) { return bits(equal(v - v, splat(0.0f))) == bits(first(LANES)); }

INLINE double total(vf v) {
    float t[LANES];
    double sums[LANES / 2];
    store(t, v);
    for (int l = 0; l < LANES / 2; l++) sums[l] = (double)t[l] + (double)t[l + LANES / 2];
    for (int half = LANES / 4; half > 0; half /= 2)
        for (int l = 0; l < half; l++) sums[l] += sums[l + half];
    return sums[0];
}

INLINE int64_t count(vi v) {
    int32_t t[LANES];
    int64_t sum = 0;
    memcpy(t, &v, sizeof t);
    for (int l = 0; l < LANES; l++) sum += t[l];
    return sum;
}

/* --- a contiguous buffer ---------------------------------------------------------------------------------------- */

static uint32_t key_of(float value) {
    uint32_t key;
    memcpy(&key, &value, sizeof key);
    return key >> 31 ? ~key : key | 0x80000000u;
}

static float value_of(uint32_t key) {
    float value;
    key = key >> 31 ? key & 0x7fffffffu : ~key;
    memcpy(&value, &key, sizeof value);
    return value;
}

/* The value of rank k in four passes, whatever the values are. */
static float select_by_digits(const float *values, int64_t n, int64_t k) {
    uint32_t prefix = 0, known = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t counts[256] = {0};
        for (int64_t i = 0; i < n; i++) {
            uint32_t key = key_of(values[i]);
            if ((key & known) == prefix) counts[key >> shift & 255]++;
        }
        uint32_t digit = 0;
        while (digit < 255 && k >= counts[digit]) k -= counts[digit++];
        prefix |= digit << shift;
        known |= 255u << shift;
    }
    return value_of(prefix);
}

static float select_among_few(const float *values, int n, int k) {
    for (int j = 0; j < n; j++) {
        vf v = splat(values[j]);
        int below = 0, upto = 0;
        for (int i = 0; i < n; i += LANES) {
            mask here = first(n - i < LANES ? n - i : LANES);
            vf w = load_first(values + i, n - i < LANES ? n - i : LANES);
            below += __builtin_popcount(bits(both(here, less(w, v))));
            upto += __builtin_popcount(bits(both(here, less(w, v))) | bits(both(here, equal(w, v))));
        }
        if (below <= k && k < upto) return values[j];
    }
    return NAN;
}

/* A value of rank near k: of equally spaced ones, that of the corresponding rank, or so many ranks off. */
INLINE float pivot(const float *values, int64_t n, int64_t k, int size, int off) {
    float sample[FEW];
    for (int j = 0; j < size; j++) sample[j] = values[(2 * j + 1) * n / (2 * size)];
    int rank = (int)(k * size / n) + off;
    if (rank < 0) return -INFINITY;
    return rank < size ? select_among_few(sample, size, rank) : INFINITY;
}

/* Keep in `a` what lies between two values around rank k, and count what does not lie above the first; false if the
 * rank is not there. */
static bool narrow(const float *values, int64_t n, int64_t k, float *a, int64_t *kept, int64_t *upto) {
    const vf low = splat(pivot(values, n, k, FEW, -4)), high = splat(pivot(values, n, k, FEW, 4));
    vi past = {0};
    float *out = a;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf v = load(values + i);
        mask m = less(low, v);
        past = tally(past, m);
        out = squeeze(out, both(m, less(v, high)), v);
    }
    if (i < n) {
        vf v = load_first(values + i, (int)(n - i));
        mask m = both(first((int)(n - i)), less(low, v));
        past = tally(past, m);
        out = squeeze(out, both(m, less(v, high)), v);
    }
    *kept = out - a;
    *upto = n - count(past);
    return *upto <= k && k < *upto + *kept;
}

/* The value of rank k; `values` stay as they are, a and b are work space for n + SLACK each. */
static float select_rank(const float *values, int64_t n, int64_t k, float *a, float *b) {
    for (int64_t effort = 8 * n; n > FEW; effort -= n) {
        if (effort <= 0) return select_by_digits(values, n, k); /* pivots kept missing */
        int64_t kept, upto;
        float *other = values == a ? b : a; /* what a failure may spoil */
        if (n > NARROWED && narrow(values, n, k, other, &kept, &upto)) {
            if (other == b) b = a, a = other;
            values = a;
            n = kept;
            k -= upto;
            continue;
        }
        float at = pivot(values, n, k, 16, 0);
        vf p = splat(at);
        float *low = a, *high = b;
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) {
            vf v = load(values + i);
            low = squeeze(low, less(v, p), v);
            high = squeeze(high, less(p, v), v);
        }
        if (i < n) {
            mask here = first((int)(n - i));
            vf v = load_first(values + i, (int)(n - i));
            low = squeeze(low, both(here, less(v, p)), v);
            high = squeeze(high, both(here, less(p, v)), v);
        }
        if (k < low - a) {
            n = low - a;
            values = a;
        } else if (k < n - (high - b)) {
            return at;
        } else {
            k -= n - (high - b);
            n = high - b;
            values = b;
            b = a;
            a = (float *)values;
        }
    }
    return select_among_few(values, (int)n, (int)k);
}

/* --- a channel -------------------------------------------------------------------------------------------------- */

/* `images` runs of `size` values, `stride` apart, each `step` from the next; or |value - centre| of each. */
struct column {
    const float *x;
    int64_t images, size, stride, step;
    float centre;
    bool deviates;
};

INLINE int64_t values_in(const struct column *v) { return v->images * v->size; }

INLINE float read(float x, float centre, bool deviates) { return deviates ? fabsf(x - centre) : x; }

INLINE vf read_all(vf x, vf centre, bool deviates) { return deviates ? magnitude(x - centre) : x; }

INLINE void add_in_double(const float *x, int64_t step, int64_t i, int64_t end, double near, double *sum,
                          double *square) {
    for (; i + LANES <= end; i += LANES)
        for (int l = 0; l < LANES; l++) {
            double d = x[(i + l) * step] - near;
            sum[l] += d;
            square[l] += d * d;
        }
    for (int l = 0; i < end; i++, l++) {
        double d = x[i * step] - near;
        sum[l] += d;
        square[l] += d * d;
    }
}

/* Moments of the values at positions [from, to) in double: for what overflows float. */
static struct moments moments_in_double(const struct column *v, float near, int64_t from, int64_t to) {
    double sum[LANES] = {0}, square[LANES] = {0};
    while (from < to) {
        int64_t b = from / v->size, i = from % v->size, end = smaller(v->size, i + to - from);
        const float *x = v->x + b * v->stride;
        if (v->step == 1)
            add_in_double(x, 1, i, end, near, sum, square);
        else
            add_in_double(x, v->step, i, end, near, sum, square);
        from += end - i;
    }
    for (int l = 1; l < LANES; l++) sum[0] += sum[l], square[0] += square[l];
    return (struct moments){sum[0], square[0]};
}

/* The first position from `from` on that has `value`, which is there. */
static int64_t find(const struct column *v, float value, int64_t from) {
    const vf wanted = splat(value), centre = splat(v->centre);
    int64_t i = from % v->size;
    for (int64_t b = from / v->size; b < v->images; b++, i = 0) {
        const float *x = v->x + b * v->stride;
        if (v->step == 1)
            for (; i + LANES <= v->size; i += LANES) {
                unsigned found = bits(equal(read_all(load(x + i), centre, v->deviates), wanted));
                if (found) return b * v->size + i + __builtin_ctz(found);
            }
        for (; i < v->size; i++)
            if (read(x[i * v->step], v->centre, v->deviates) == value) return b * v->size + i;
    }
    return 0; /* only where a value is NaN */
}

static void copy(const struct column *v, float *to) {
    const vf centre = splat(v->centre);
    for (int64_t b = 0; b < v->images; b++, to += v->size) {
        const float *x = v->x + b * v->stride;
        int64_t i = 0;
        for (; i + LANES <= v->size; i += LANES) store(to + i, read_all(load(x + i), centre, v->deviates));
        if (i < v->size) store(to + i, read_all(load_first(x + i, (int)(v->size - i)), centre, v->deviates));
    }
}

/* How a sample of `size` brackets rank k of n: by its own values of the ranks `low` and `high`. */
struct plan {
    int64_t n, k, size, low, high;
};

static struct plan plan_of(int64_t n, double per_sample, double sigmas) {
    double wanted = cbrt((double)n / per_sample);
    struct plan p = {.n = n, .k = (n - 1) / 2};
    p.size = smaller(n, smaller(MOST_SAMPLED, larger(64, (int64_t)(wanted * wanted))));
    double middle = ((double)p.k + 0.5) * (double)p.size / (double)n, margin = sigmas * sqrt((double)p.size) / 2;
    p.low = (int64_t)floor(middle - margin);
    p.high = (int64_t)ceil(middle + margin);
    return p;
}

/* The position of sample j: one in each of `size` equal stretches, at a place in it that no regular pattern follows. */
INLINE int64_t sampled(const struct plan *p, int64_t j) {
    uint32_t h = (uint32_t)j;
    h ^= h >> 16, h *= 0x7feb352du, h ^= h >> 15, h *= 0x846ca68bu, h ^= h >> 16;
    double stretch = (double)p->n / (double)p->size;
    return smaller(p->n - 1, (int64_t)(((double)j + h * 0x1p-32) * stretch));
}

struct bracket {
    float low, high, near; /* near: a value to take moments about */
};

static struct bracket bracket_of(const struct plan *p, const float *sample, float *a, float *b) {
    struct bracket k = {-INFINITY, INFINITY, 0};
    if (p->low >= 0) k.low = select_rank(sample, p->size, p->low, a, b);
    if (p->high < p->size) k.high = select_rank(sample, p->size, p->high, a, b);
    k.near = fabsf(k.low) < fabsf(k.high) ? k.low : k.high;
    if (!isfinite(k.near)) k.near = 0;
    return k;
}

struct counts {
    int64_t below, past, above, inside; /* x < low, x > low, x > high, low < x < high */
};

enum place { BELOW, AT_LOW, INSIDE, AT_HIGH, ABOVE };

static enum place place_of(const struct plan *p, const struct counts *c) {
    int64_t k = p->k, n = p->n;
    if (k < c->below) return BELOW;
    if (k < n - c->past) return AT_LOW;
    if (k < n - c->past + c->inside) return INSIDE;
    return k < n - c->above ? AT_HIGH : ABOVE;
}

/* Work space for one thread: `inside`, a and b hold a channel, marks say where in `inside` each stretch of it began. */
struct space {
    float *inside, *a, *b, *sample;
    struct mark {
        int64_t position, kept;
    } *marks;
    int64_t marked;
};

static bool make_space(struct space *s, int64_t n) {
    size_t room = sizeof(float) * (size_t)(larger(n, MOST_SAMPLED) + SLACK);
    *s = (struct space){.inside = malloc(room), .a = malloc(room), .b = malloc(room)};
    s->sample = malloc(sizeof(float) * (MOST_SAMPLED + SLACK));
    s->marks = malloc(sizeof(struct mark) * (size_t)(n / FLUSH + 2));
    return s->inside && s->a && s->b && s->sample && s->marks;
}

static void free_space(struct space *s) {
    free(s->inside), free(s->a), free(s->b), free(s->sample), free(s->marks);
}

struct sift {
    vf low, high, near, centre, sum, square;
    vi below, past, above;
    float *out;
};

INLINE void sift_vector(struct sift *s, vf x, mask here, bool deviates, bool sums) {
    vf v = read_all(x, s->centre, deviates);
    mask past = both(here, less(s->low, v));
    s->below = tally(s->below, both(here, less(v, s->low)));
    s->past = tally(s->past, past);
    s->above = tally(s->above, both(here, less(s->high, v)));
    s->out = squeeze(s->out, both(past, less(v, s->high)), v);
    if (sums) {
        vf d = keep(here, v - s->near);
        s->sum += d;
        s->square += d * d;
    }
}

/* The one pass over a channel. */
INLINE struct counts sift_as(const struct column *v, const struct bracket *k, struct space *space, struct moments *m,
                             bool deviates, bool sums) {
    const vf zero = splat(0.0f);
    struct sift s = {.low = splat(k->low), .high = splat(k->high), .near = splat(k->near), .centre = splat(v->centre),
                     .sum = zero, .square = zero, .out = space->inside};
    int64_t pending = 0, from = 0;
    space->marked = 0;
    for (int64_t b = 0; b < v->images; b++) {
        const float *x = v->x + b * v->stride;
        for (int64_t i = 0; i < v->size;) {
            if (pending == 0) {
                from = b * v->size + i;
                space->marks[space->marked++] = (struct mark){from, s.out - space->inside};
            }
            int64_t end = smaller(v->size, i + FLUSH);
            pending += end - i;
            for (; i + LANES <= end; i += LANES) sift_vector(&s, load(x + i), first(LANES), deviates, sums);
            if (i < end) {
                sift_vector(&s, load_first(x + i, (int)(end - i)), first((int)(end - i)), deviates, sums);
                i = end;
            }
            if (pending < FLUSH && !(b + 1 == v->images && i == v->size)) continue;
            if (sums) {
                struct moments part = {total(s.sum), total(s.square)};
                if (!all_finite(s.square)) part = moments_in_double(v, k->near, from, from + pending);
                m->sum += part.sum;
                m->square += part.square;
                s.sum = s.square = zero;
            }
            pending = 0;
        }
    }
    return (struct counts){count(s.below), count(s.past), count(s.above), s.out - space->inside};
}

static struct counts sift(const struct column *v, const struct bracket *k, struct space *space, struct moments *m) {
    if (v->deviates) return sift_as(v, k, space, NULL, true, false);
    return m ? sift_as(v, k, space, m, false, true) : sift_as(v, k, space, NULL, false, false);
}

/* What is known of a channel. */
struct summary {
    float value;
    int64_t index;
    double deviation, variance;
};

/* Moments about the median from those about a value near it; from scratch if that was not near at all. */
static void settle(struct summary *r, const struct column *v, struct moments m, float near) {
    double n = (double)values_in(v), e = (double)r->value - near;
    r->deviation = m.sum - n * e;
    double square = m.square - 2 * e * m.sum + n * e * e;
    if (!(square >= n * e * e)) {
        m = moments_in_double(v, r->value, 0, values_in(v));
        r->deviation = m.sum;
        square = m.square;
    }
    r->variance = square / n;
}

static int64_t index_of(const struct column *v, float value, enum place at, const struct space *s, int64_t kept) {
    int64_t from = 0;
    if (at == INSIDE) {
        const struct column inside = {s->inside, 1, kept, 0, 1, 0, false};
        int64_t place = find(&inside, value, 0), low = 0, high = s->marked;
        while (high - low > 1) {
            int64_t middle = (low + high) / 2;
            if (s->marks[middle].kept <= place) low = middle;
            else high = middle;
        }
        from = s->marks[low].position;
    }
    return find(v, value, from);
}

static struct summary summarise_small(const struct column *v, struct space *s) {
    struct column flat = {s->inside, 1, values_in(v), 0, 1, 0, false};
    struct summary r = {0};
    if (v->images == 1 && !v->deviates)
        flat.x = v->x;
    else
        copy(v, s->inside);
    r.value = select_rank(flat.x, flat.size, (flat.size - 1) / 2, s->a, s->b) + 0.0f;
    r.index = find(&flat, r.value, 0);
    if (v->deviates) return r;
    const vf centre = splat(r.value);
    for (int64_t i = 0; i < flat.size;) {
        int64_t from = i, end = smaller(flat.size, i + FLUSH);
        vf sum = splat(0.0f), square = sum;
        for (; i + LANES <= end; i += LANES) {
            vf d = load(flat.x + i) - centre;
            sum += d;
            square += d * d;
        }
        if (i < end) {
            vf d = keep(first((int)(end - i)), load_first(flat.x + i, (int)(end - i)) - centre);
            sum += d;
            square += d * d;
            i = end;
        }
        struct moments part = {total(sum), total(square)};
        if (!all_finite(square)) part = moments_in_double(&flat, r.value, from, end);
        r.deviation += part.sum;
        r.variance += part.square;
    }
    r.variance /= (double)flat.size;
    return r;
}

/* The median of a channel, where it stands first, and the moments about it. */
static struct summary summarise(const struct column *v, struct space *s) {
    struct plan p = plan_of(values_in(v), 16.0, 2.5);
    if (p.n <= SMALL) return summarise_small(v, s);
    for (int64_t j = 0; j < p.size; j++) {
        int64_t position = sampled(&p, j);
        float x = v->x[position / v->size * v->stride + position % v->size];
        s->sample[j] = read(x, v->centre, v->deviates);
    }
    struct summary r = {0};
    struct moments m = {0, 0};
    struct bracket k = bracket_of(&p, s->sample, s->a, s->b);
    const float near = k.near;
    struct counts c = sift(v, &k, s, &m);
    enum place at = place_of(&p, &c);
    if (at == BELOW || at == ABOVE) {
        int64_t margin = 3 * (p.high - p.low) / 2;
        p.low -= margin;
        p.high += margin;
        k = bracket_of(&p, s->sample, s->a, s->b);
        c = sift(v, &k, s, NULL);
        at = place_of(&p, &c);
    }
    if (at == AT_LOW)
        r.value = k.low;
    else if (at == AT_HIGH)
        r.value = k.high;
    else if (at == INSIDE)
        r.value = select_rank(s->inside, c.inside, p.k - (p.n - c.past), s->a, s->b);
    else {
        copy(v, s->inside);
        r.value = select_by_digits(s->inside, p.n, p.k);
    }
    r.value += 0.0f;
    r.index = index_of(v, r.value, at, s, c.inside);
    if (!v->deviates) settle(&r, v, m, near);
    return r;
}
