/* Exact selection in a contiguous buffer. */

enum {
    FEW = 32,      /* values among which ranks are simply counted */
    NARROWED = 512 /* from so many values on, two pivots remove more than one does */
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

/* The value of rank k of at most FEW: the one that has at most k values below it, and more than k up to it. */
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

/* A value of rank near k: of `size` equally spaced values, the one of the corresponding rank plus `off`. Infinite where
 * there is no such rank. */
INLINE float pivot(const float *values, int64_t n, int64_t k, int size, int off) {
    float sample[FEW];
    for (int j = 0; j < size; j++) sample[j] = values[(2 * j + 1) * n / (2 * size)];
    int rank = (int)(k * size / n) + off;
    if (rank < 0) return -INFINITY;
    return rank < size ? select_among_few(sample, size, rank) : INFINITY;
}

/* Copy to `a` the values between two pivots around rank k, and count the values up to the lower pivot. Return whether
 * rank k is among what was copied. */
static bool narrow(const float *values, int64_t n, int64_t k, float *a, int64_t *copied, int64_t *upto) {
    const vf low = splat(pivot(values, n, k, FEW, -4)), high = splat(pivot(values, n, k, FEW, 4));
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
        float at = pivot(values, n, k, 16, 0);
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
