/* A bracket: two values of a sample that very probably enclose the median. */

enum { MOST_SAMPLED = 8192 };

/* A sample of `size` of n values brackets rank k of all by its own ranks `low` and `high`. */
struct plan {
    int64_t n, k, size, low, high;
};

/* A sample of (n / per_sample)^(2/3) values, and a bracket of `sigmas` standard deviations of the rank on each side. */
static struct plan plan_of(int64_t n, double per_sample, double sigmas) {
    double root = cbrt((double)n / per_sample);
    struct plan p = {.n = n, .k = (n - 1) / 2};
    p.size = smaller(n, smaller(MOST_SAMPLED, larger(64, (int64_t)(root * root))));
    double middle = ((double)p.k + 0.5) * (double)p.size / (double)n, margin = sigmas * sqrt((double)p.size) / 2;
    p.low = (int64_t)floor(middle - margin);
    p.high = (int64_t)ceil(middle + margin);
    return p;
}

/* The position of sample j: one in each of `size` equal stretches. A hash says where in it, so that no period of the
 * data escapes the sample. */
INLINE int64_t sampled(const struct plan *p, int64_t j) {
    uint32_t h = (uint32_t)j;
    h ^= h >> 16, h *= 0x7feb352du, h ^= h >> 15, h *= 0x846ca68bu, h ^= h >> 16;
    double stretch = (double)p->n / (double)p->size;
    return smaller(p->n - 1, (int64_t)(((double)j + h * 0x1p-32) * stretch));
}

/* Two values of the sample, and a finite one to sum moments about. */
struct bracket {
    float low, high, near;
};

/* The bracket of a sample; a and b are work space. */
static struct bracket bracket_of(const struct plan *p, const float *sample, float *a, float *b) {
    struct bracket k = {-INFINITY, INFINITY, 0};
    if (p->low >= 0) k.low = select_rank(sample, p->size, p->low, a, b);
    if (p->high < p->size) k.high = select_rank(sample, p->size, p->high, a, b);
    k.near = fabsf(k.low) < fabsf(k.high) ? k.low : k.high;
    if (!isfinite(k.near)) k.near = 0;
    return k;
}

/* How many values are where: x < low, x > low, x > high, low < x < high. */
struct counts {
    int64_t below, over_low, over_high, inside;
};

/* Where rank k is. */
enum place { BELOW, AT_LOW, INSIDE, AT_HIGH, ABOVE };

static enum place place_of(const struct plan *p, const struct counts *c) {
    int64_t k = p->k, n = p->n;
    if (k < c->below) return BELOW;
    if (k < n - c->over_low) return AT_LOW;
    if (k < n - c->over_low + c->inside) return INSIDE;
    return k < n - c->over_high ? AT_HIGH : ABOVE;
}
