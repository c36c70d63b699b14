/* The statistics of one channel, in one pass over it.
 *
 * The pass counts the values below, at and above the bracket, sums moments, and collects what lies inside the bracket:
 * a few per cent, in which the median is then selected.
 */

enum { SMALL = 4096 /* values of a channel up to which a sample costs more than it saves */ };

/* Work space for one thread. `inside`, a and b hold a channel each; `marks` say how many values had been collected in
 * `inside` when a stretch of the channel began, so that a collected value leads back to its position. */
struct space {
    float *inside, *a, *b, *sample;
    struct mark {
        int64_t position, collected;
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

/* The state of a pass over a channel. */
struct survey {
    vf low, high, near, centre, sum, square;
    vi below, over_low, over_high;
    float *out;
};

/* Count and collect the lanes `here` of a vector and, with `sums`, add up moments about `near`. */
INLINE void survey_vector(struct survey *s, vf x, mask here, bool deviations, bool sums) {
    vf v = read_all(x, s->centre, deviations);
    mask over_low = both(here, less(s->low, v));
    s->below = add_mask(s->below, both(here, less(v, s->low)));
    s->over_low = add_mask(s->over_low, over_low);
    s->over_high = add_mask(s->over_high, both(here, less(s->high, v)));
    s->out = compress(s->out, both(over_low, less(v, s->high)), v);
    if (sums) {
        vf d = keep(here, v - s->near);
        s->sum += d;
        s->square += d * d;
    }
}

/* Read a channel: count what is outside the bracket, collect what is inside, and sum moments. */
INLINE struct counts survey_column(const struct column *v, const struct bracket *k, struct space *space,
                                   struct moments *m, bool deviations, bool sums) {
    const vf zero = splat(0.0f);
    struct survey s = {.low = splat(k->low), .high = splat(k->high), .near = splat(k->near), .centre = splat(v->centre),
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
            for (; i + LANES <= end; i += LANES) survey_vector(&s, load(x + i), first(LANES), deviations, sums);
            if (i < end) {
                survey_vector(&s, load_first(x + i, (int)(end - i)), first((int)(end - i)), deviations, sums);
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
    return (struct counts){count(s.below), count(s.over_low), count(s.over_high), s.out - space->inside};
}

/* The same, compiled apart for each case. */
static struct counts survey(const struct column *v, const struct bracket *k, struct space *space, struct moments *m) {
    if (v->deviations) return survey_column(v, k, space, NULL, true, false);
    return m ? survey_column(v, k, space, m, false, true) : survey_column(v, k, space, NULL, false, false);
}

/* The statistics of a channel: the median, where it first occurs, the sum of x - median and the mean of its square. */
struct summary {
    float value;
    int64_t index;
    double deviation, variance;
};

/* Moments about the median, from those about a value near it; by another pass if that value was not near enough. */
static void move_moments(struct summary *r, const struct column *v, struct moments m, float near) {
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

/* The first position of the median: from where it was collected, or from the start. */
static int64_t find_value(const struct column *v, float value, enum place at, const struct space *s,
                          int64_t collected) {
    int64_t from = 0;
    if (at == INSIDE) {
        const struct column inside = {s->inside, 1, collected, 0, 1, 0, false};
        int64_t place = find(&inside, value, 0), low = 0, high = s->marked;
        while (high - low > 1) {
            int64_t middle = (low + high) / 2;
            if (s->marks[middle].collected <= place) low = middle;
            else high = middle;
        }
        from = s->marks[low].position;
    }
    return find(v, value, from);
}

/* The statistics of a channel without a sample: it is copied, and the median selected in the copy. */
static struct summary summarise_small(const struct column *v, struct space *s) {
    struct column flat = {s->inside, 1, values_in(v), 0, 1, 0, false};
    struct summary r = {0};
    if (v->images == 1 && !v->deviations)
        flat.x = v->x;
    else
        copy(v, s->inside);
    r.value = select_rank(flat.x, flat.size, (flat.size - 1) / 2, s->a, s->b) + 0.0f;
    r.index = find(&flat, r.value, 0);
    if (v->deviations) return r;
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

/* The statistics of a channel. If the bracket misses the median, a wider one is tried, then a radix select. */
static struct summary summarise(const struct column *v, struct space *s) {
    struct plan p = plan_of(values_in(v), 16.0, 2.5);
    if (p.n <= SMALL) return summarise_small(v, s);
    for (int64_t j = 0; j < p.size; j++) {
        int64_t position = sampled(&p, j);
        float x = v->x[position / v->size * v->stride + position % v->size];
        s->sample[j] = read(x, v->centre, v->deviations);
    }
    struct summary r = {0};
    struct moments m = {0, 0};
    struct bracket k = bracket_of(&p, s->sample, s->a, s->b);
    const float near = k.near;
    struct counts c = survey(v, &k, s, &m);
    enum place at = place_of(&p, &c);
    if (at == BELOW || at == ABOVE) {
        int64_t margin = 3 * (p.high - p.low) / 2;
        p.low -= margin;
        p.high += margin;
        k = bracket_of(&p, s->sample, s->a, s->b);
        c = survey(v, &k, s, NULL);
        at = place_of(&p, &c);
    }
    if (at == AT_LOW)
        r.value = k.low;
    else if (at == AT_HIGH)
        r.value = k.high;
    else if (at == INSIDE)
        r.value = select_rank(s->inside, c.inside, p.k - (p.n - c.over_low), s->a, s->b);
    else {
        copy(v, s->inside);
        r.value = select_by_digits(s->inside, p.n, p.k);
    }
    r.value += 0.0f;
    r.index = find_value(v, r.value, at, s, c.inside);
    if (!v->deviations) move_moments(&r, v, m, near);
    return r;
}
