/* Exact selection in a contiguous buffer. */

enum {
    FEW = 32,     /* values among which ranks are simply counted */
    MARGIN = 4,   /* ranks of FEW values around the one sought, between which it very probably is */
    NARROWED = 128 /* from so many values on, two pivots remove more than one does */
};

/* Unsigned integers in the same order as the floats. */
static uint32_t key_of(float value) {
    uint32_t key;
    memcpy(&key, &value, sizeof key);
    return key >> 31 ? ~key : key | 0x80000000u;
}

/* The inverse of key_of. */
static float value_of(uint32_t key) {
    float value;
    key = key >> 31 ? key & 0x7fffffffu : ~key;
    memcpy(&value, &key, sizeof value);
    return value;
}

/* The value of rank k by a radix select: four passes, which no values make longer. */
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

/* A few values, and how many of all of them are not above each. */
struct few {
    const float *values;
    int n;
    vi upto[FEW / LANES];
};

/* Compare all with all: no values make that slower, and there is no branch to guess wrong. */
INLINE void rank_few(struct few *f, const float *values, int n) {
    vf v[FEW / LANES];
    f->values = values;
    f->n = n;
    for (int i = 0; i < FEW / LANES; i++) {
        const int here = n - i * LANES;
        v[i] = here >= LANES ? load(values + i * LANES) : here > 0 ? load_first(values + i * LANES, here) : splat(NAN);
        f->upto[i] = (vi){0};
    }
    for (int j = 0; j < n; j++)
        for (int i = 0; i < FEW / LANES; i++) f->upto[i] = add_mask(f->upto[i], upto(splat(values[j]), v[i]));
}

/* The value of rank k: the least that more than k are not above. Without equal values, there is one for each number. */
INLINE float few_at(const struct few *f, int k) {
    for (; k < f->n; k++) {
        uint64_t lanes = 0;
        for (int i = 0; i < FEW / LANES; i++)
            lanes |= (uint64_t)(bits(above(f->upto[i], k)) & ~bits(above(f->upto[i], k + 1))) << i * LANES;
        lanes &= ((uint64_t)1 << f->n) - 1;
        if (lanes) return f->values[__builtin_ctzll(lanes)];
    }
    return NAN;
}

static float select_among_few(const float *values, int n, int k) {
    struct few f;
    rank_few(&f, values, n);
    return few_at(&f, k);
}

/* Take `size` equally spaced values. */
INLINE void take_few(const float *values, int64_t n, int size, float *sample) {
    for (int j = 0; j < size; j++) sample[j] = values[(2 * j + 1) * n / (2 * size)];
}

/* Copy to `a` the values between two pivots around rank k, and count the values up to the lower pivot. Return whether
 * rank k is among what was copied. */
static bool narrow(const float *values, int64_t n, int64_t k, float *a, int64_t *copied, int64_t *upto) {
    float sample[FEW];
    struct few f;
    const int middle = (int)(k * FEW / n);
    take_few(values, n, FEW, sample);
    rank_few(&f, sample, FEW);
    const vf low = splat(middle < MARGIN ? -INFINITY : few_at(&f, middle - MARGIN));
    const vf high = splat(middle + MARGIN < FEW ? few_at(&f, middle + MARGIN) : INFINITY);
    vi over_low = {0};
    float *out = a;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf v = load(values + i);
        mask m = less(low, v);
        over_low = add_mask(over_low, m);
        out = compress(out, both(m, less(v, high)), v);
    }
    if (i < n) {
        vf v = load_first(values + i, (int)(n - i));
        mask m = both(first((int)(n - i)), less(low, v));
        over_low = add_mask(over_low, m);
        out = compress(out, both(m, less(v, high)), v);
    }
    *copied = out - a;
    *upto = n - count(over_low);
    return *upto <= k && k < *upto + *copied;
}

/* The value of rank k, by quickselect with sampled pivots. `values` are not changed unless they are a or b, which are
 * work space for n + SLACK floats each. */
static float select_rank(const float *values, int64_t n, int64_t k, float *a, float *b) {
    for (int64_t effort = 8 * n; n > FEW; effort -= n) {
        if (effort <= 0) return select_by_digits(values, n, k); /* the pivots were bad again and again */
        int64_t copied, upto;
        float *other = values == a ? b : a; /* overwritten even if the rank was not between the pivots */
        if (n > NARROWED && narrow(values, n, k, other, &copied, &upto)) {
            if (other == b) b = a, a = other;
            values = a;
            n = copied;
            k -= upto;
            continue;
        }
        float sample[FEW / 2];
        take_few(values, n, FEW / 2, sample);
        float at = select_among_few(sample, FEW / 2, (int)(k * (FEW / 2) / n));
        vf p = splat(at);
        float *low = a, *high = b;
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) {
            vf v = load(values + i);
            low = compress(low, less(v, p), v);
            high = compress(high, less(p, v), v);
        }
        if (i < n) {
            mask here = first((int)(n - i));
            vf v = load_first(values + i, (int)(n - i));
            low = compress(low, both(here, less(v, p)), v);
            high = compress(high, both(here, less(p, v)), v);
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
