/* What the files of the C kernels share: the layout of an activation, the table of kernels, the threads. */
#ifndef MEDBN_KERNELS_H
#define MEDBN_KERNELS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define MEDBN_X86 1
#endif

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

/* A float32 activation (images, channels, size): planes of `size` values, or rows of `channels` values if `last`. */
struct layout {
    int64_t images, channels, size;
    int32_t last, threads;
};

/* Bits of a status: a value is not finite; an allocation failed. Another status: there is no such instruction set. */
enum { NONFINITE = 1, NO_MEMORY = 2, UNSUPPORTED = -1 };

/* One set of kernels per instruction set; binding.py says what each computes. Each returns a status. */
struct kernels {
    /* The median of x, its first position, the variance and the sum of x - median. With a centre, the median of
     * |x - centre| and its first position alone. */
    int (*median)(const struct layout *at, const float *x, const float *centre, float *value, float *variance,
                  double *deviation, int64_t *index);
    int (*image_moments)(const struct layout *at, const float *x, float *mean, float *variance);
    /* From these: the medians over images (rows 0 and 1 of `table`; row 2 gets the MAD), the sum of x - centre, the six
     * images per channel that the medians come from, and the derivatives of the squared MAD. */
    int (*image_statistics)(const struct layout *at, const float *mean, const float *variance, float *table,
                            double *deviation, int64_t *selected, float *slopes);
    int (*normalise)(const struct layout *at, const float *x, const float *centre, const float *scale,
                     const float *bias, float *y);
    int (*reduce)(const struct layout *at, const float *g, const float *x, const float *centre, double *sum_g,
                  double *sum_gx);
    int (*combine)(const struct layout *at, const float *g, const float *x, const float *centre,
                   const float *scale, const float *slope, const float *shift, bool per_image, float *dx);
};

extern const struct kernels medbn_generic;
#ifdef MEDBN_X86
extern const struct kernels medbn_avx2, medbn_avx512;
#endif

/* The kernels of an instruction set; NULL where this machine does not have it. */
const struct kernels *medbn_kernels_of(int isa);

/* Mix statistics with running ones, between two passes; see kernels.c. */
void medbn_mix(int64_t channels, const float *weight, const float *bias, const float *running_centre,
               const float *running_variance, double batch_weight, float *table);

/* Work that is cut into `count` independent units, which threads take `grain` at a time. It is the first member of the
 * structs that hold the arguments. */
struct job {
    int64_t count, grain;
    _Atomic int64_t next;
    _Atomic int status;
};

/* The next units [from, to) to do; false when none are left. */
bool medbn_take(struct job *job, int64_t *from, int64_t *to);

/* Run `work` on up to `at->threads` threads and return the job's status. Their number never changes a result. */
int medbn_parallel(struct job *job, const struct layout *at, void (*work)(struct job *));

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
