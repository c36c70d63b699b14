/* Sums over the lanes of vectors. */

struct moments {
    double sum, square; /* of x - near and (x - near)^2 */
};

/* Whether all lanes are finite. */
INLINE bool all_finite(vf v) { return bits(equal(v - v, splat(0.0f))) == bits(first(LANES)); }

/* The sum of the lanes in double, pairwise. */
INLINE double total(vf v) {
    float t[LANES];
    double sums[LANES / 2];
    store(t, v);
    for (int l = 0; l < LANES / 2; l++) sums[l] = (double)t[l] + (double)t[l + LANES / 2];
    for (int half = LANES / 4; half > 0; half /= 2)
        for (int l = 0; l < half; l++) sums[l] += sums[l + half];
    return sums[0];
}

/* Add the first lanes to as many sums. */
INLINE void add_lanes(double *sums, vf v, int lanes) {
    typedef double doubles __attribute__((vector_size(8 * LANES)));
    doubles all = {0};
    memcpy(&all, sums, sizeof *sums * (size_t)lanes);
    all += __builtin_convertvector(v, doubles);
    memcpy(sums, &all, sizeof *sums * (size_t)lanes);
}

/* The sum of the lanes of counters. */
INLINE int64_t count(vi v) {
    int32_t t[LANES];
    int64_t sum = 0;
    memcpy(t, &v, sizeof t);
    for (int l = 0; l < LANES; l++) sum += t[l];
    return sum;
}
