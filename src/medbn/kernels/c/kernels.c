/* The native kernels' entry points: pick an instruction set at run time, cut work over threads.
 *
 * Pointers and sizes only: nothing here knows of Python or torch. Threads are those of an OpenMP runtime that is there
 * anyway, if its GOMP_parallel is given: between two calls its threads spin for milliseconds, in the way of any other.
 * A forked child has lost them, so it goes on without, with threads that live for one call. Every unit of work writes
 * its own results, so the number of threads changes no bit.
 */
#include "kernels.h"

#include <math.h>

#include <pthread.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

enum { GENERIC, AVX2, AVX512, UNSUPPORTED = -1 };
enum { MOST_THREADS = 256, SERIAL_VALUES = 1 << 15 };

bool medbn_take(struct job *job, int64_t *from, int64_t *to) {
    *from = atomic_fetch_add(&job->next, job->grain);
    *to = smaller(job->count, *from + job->grain);
    return *from < job->count;
}

typedef void runtime(void (*work)(void *), void *argument, unsigned threads, unsigned flags);
static runtime *_Atomic shared;

static void forget(void) { atomic_store(&shared, NULL); }

/* Use the threads of this GOMP_parallel from now on, in this process. */
EXPORT void medbn_share(runtime *parallel) {
    static atomic_flag registered = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&registered) && pthread_atfork(NULL, NULL, forget)) parallel = NULL;
    atomic_store(&shared, parallel);
}

struct call {
    struct job *job;
    void (*work)(struct job *);
};

static void answer(void *argument) {
    struct call *call = argument;
    call->work(call->job);
}

/* The threads of one call. Whoever leaves last frees it: one that starts late finds the work done, unwaited for. */
struct crew {
    pthread_mutex_t lock;
    pthread_cond_t left;
    struct job *job;
    void (*work)(struct job *);
    int working, holders;
    bool closed;
};

static void leave(struct crew *crew) { /* with the lock, which goes with it */
    bool last = --crew->holders == 0;
    pthread_mutex_unlock(&crew->lock);
    if (!last) return;
    pthread_mutex_destroy(&crew->lock);
    pthread_cond_destroy(&crew->left);
    free(crew);
}

static void *help(void *argument) {
    struct crew *crew = argument;
    pthread_mutex_lock(&crew->lock);
    if (!crew->closed) {
        crew->working++;
        pthread_mutex_unlock(&crew->lock);
        crew->work(crew->job);
        pthread_mutex_lock(&crew->lock);
        crew->working--;
        pthread_cond_signal(&crew->left);
    }
    leave(crew);
    return NULL;
}

static void start(struct crew *crew) {
    pthread_attr_t detached;
    pthread_t id;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_mutex_lock(&crew->lock);
    if (pthread_create(&id, &detached, help, crew) == 0) crew->holders++; /* otherwise fewer do it */
    pthread_mutex_unlock(&crew->lock);
    pthread_attr_destroy(&detached);
}

static void run_crew(struct call *call, int64_t threads) {
    struct crew *crew = malloc(sizeof *crew);
    if (!crew) {
        answer(call);
        return;
    }
    *crew = (struct crew){.job = call->job, .work = call->work, .holders = 1};
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->left, NULL);
    for (int64_t i = 1; i < threads; i++) start(crew);
    answer(call);
    pthread_mutex_lock(&crew->lock);
    crew->closed = true;
    while (crew->working) pthread_cond_wait(&crew->left, &crew->lock);
    leave(crew);
}

int medbn_parallel(struct job *job, const struct layout *at, void (*work)(struct job *)) {
    const int64_t units = (job->count + job->grain - 1) / job->grain;
    struct call call = {job, work};
    runtime *parallel = atomic_load(&shared);
    if (at->threads <= 1 || units <= 1 || at->images * at->channels * at->size < SERIAL_VALUES)
        answer(&call);
    else if (parallel) /* always as many as it has: it would end the others */
        parallel(answer, &call, (unsigned)at->threads, 0);
    else
        run_crew(&call, smaller(smaller(at->threads, units), MOST_THREADS));
    return atomic_load(&job->status);
}

/* The best instruction set of this machine. */
EXPORT int medbn_best(void) {
#ifdef MEDBN_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return GENERIC;
}

static const struct kernels *kernels_of(int isa) {
    if (isa > medbn_best()) return NULL;
#ifdef MEDBN_X86
    if (isa == AVX512) return &medbn_avx512;
    if (isa == AVX2) return &medbn_avx2;
#endif
    return isa == GENERIC ? &medbn_generic : NULL;
}

EXPORT int medbn_median(int isa, const struct layout *at, const float *x, const float *centre, float *value,
                        float *variance, double *deviation, int64_t *index) {
    const struct kernels *use = kernels_of(isa);
    return use ? use->median(at, x, centre, value, variance, deviation, index) : UNSUPPORTED;
}

EXPORT int medbn_image_moments(int isa, const struct layout *at, const float *x, float *mean, float *variance) {
    const struct kernels *use = kernels_of(isa);
    return use ? use->image_moments(at, x, mean, variance) : UNSUPPORTED;
}

EXPORT int medbn_normalise(int isa, const struct layout *at, const float *x, const float *centre, const float *scale,
                           const float *bias, float *y) {
    const struct kernels *use = kernels_of(isa);
    return use ? use->normalise(at, x, centre, scale, bias, y) : UNSUPPORTED;
}

EXPORT int medbn_reduce(int isa, const struct layout *at, const float *g, const float *x, const float *centre,
                        double *sum_g, double *sum_gx) {
    const struct kernels *use = kernels_of(isa);
    return use ? use->reduce(at, g, x, centre, sum_g, sum_gx) : UNSUPPORTED;
}

EXPORT int medbn_combine(int isa, const struct layout *at, const float *g, const float *x, const float *centre,
                         const float *a, const float *q, const float *p, int per_image, float *dx) {
    const struct kernels *use = kernels_of(isa);
    return use ? use->combine(at, g, x, centre, a, q, p, per_image != 0, dx) : UNSUPPORTED;
}

/* What stands between the passes is a few numbers per channel; torch would take longer for these than for a pass. */

EXPORT int medbn_median_forward(int isa, const struct layout *at, const float *x, const float *weight,
                                const float *bias, const float *held_centre, const float *held_variance, double share,
                                double eps, float *table, double *deviation, int64_t *index, float *y) {
    const struct kernels *use = kernels_of(isa);
    if (!use) return UNSUPPORTED;
    const int64_t n = at->channels;
    float *centre = table, *variance = table + n, *used = table + 2 * n, *scale = table + 3 * n;
    float *gain = table + 4 * n, *shift = table + 5 * n;
    int status = use->median(at, x, NULL, centre, variance, deviation, index);
    if (status) return status;
    const float rest = (float)(1.0 - share);
    for (int64_t c = 0; c < n; c++) {
        float spread = variance[c];
        used[c] = centre[c];
        if (held_centre) {
            /* nothing times infinity is NaN */
            used[c] = share > 0.0 ? (float)share * centre[c] + rest * held_centre[c] : held_centre[c];
            spread = share > 0.0 ? (float)share * spread + rest * held_variance[c] : held_variance[c];
        }
        scale[c] = (float)(1.0 / sqrt((double)spread + eps));
        gain[c] = weight ? weight[c] * scale[c] : scale[c];
        shift[c] = bias ? bias[c] : 0.0f;
    }
    return use->normalise(at, x, used, gain, shift, y);
}

EXPORT int medbn_channel_backward(int isa, const struct layout *at, const float *g, const float *x, const float *used,
                                  const float *centre, const float *scale, const float *weight,
                                  const double *deviation, const int64_t *index, double share, double *sums,
                                  float *table, float *dx) {
    const struct kernels *use = kernels_of(isa);
    if (!use) return UNSUPPORTED;
    const int64_t n = at->channels;
    float *d_weight = table, *d_bias = table + n, *along = table + 2 * n, *slope = table + 3 * n, *shift = table + 4 * n;
    int status = use->reduce(at, g, x, used, sums, sums + n);
    if (status & NO_MEMORY) return status;
    const double count = (double)at->images * (double)at->size;
    for (int64_t c = 0; c < n; c++) {
        const double r = scale[c], w = weight ? weight[c] : 1.0, gain = r * sums[n + c];
        const double d_centre = -share * w * r * sums[c], q = -share * w * r * r * gain / count;
        d_weight[c] = (float)gain;
        d_bias[c] = (float)sums[c];
        along[c] = (float)(w * r);
        slope[c] = (float)q;
        sums[c] = d_centre - q * deviation[c]; /* what the median itself gets, or all of them together */
        shift[c] = index ? 0.0f : (float)(sums[c] / count);
    }
    status = use->combine(at, g, x, centre, along, slope, shift, false, dx);
    if (!index || (status & NO_MEMORY)) return status;
    for (int64_t c = 0; c < n; c++) {
        const int64_t b = index[c] / at->size, s = index[c] % at->size;
        dx[at->last ? (b * at->size + s) * n + c : (b * n + c) * at->size + s] += (float)sums[c];
    }
    return status;
}
