/* Threads for the kernels.
 *
 * They are those of the OpenMP runtime that torch uses, if its GOMP_parallel is given: its threads spin for
 * milliseconds after each of torch's operations, and would compete with any others. A forked child has lost them; it
 * goes on with threads that live for one call, as does a process without such a runtime. Every unit of work writes its
 * own results, so the number of threads changes no bit.
 */
#include "kernels.h"

#include <pthread.h>
#include <stdlib.h>

enum {
    MOST_THREADS = 256,
    SERIAL_VALUES = 1 << 15 /* activations of fewer values are not worth a second thread */
};

bool medbn_take(struct job *job, int64_t *from, int64_t *to) {
    *from = atomic_fetch_add(&job->next, job->grain);
    *to = smaller(job->count, *from + job->grain);
    return *from < job->count;
}

typedef void runtime(void (*work)(void *), void *argument, unsigned threads, unsigned flags);
static runtime *_Atomic openmp;

static void forget_openmp(void) { atomic_store(&openmp, NULL); }

/* Use the threads of this GOMP_parallel from now on, in this process; NULL for threads that live for one call. */
EXPORT void medbn_use_threads(runtime *parallel) {
    static atomic_flag registered = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&registered) && pthread_atfork(NULL, NULL, forget_openmp)) parallel = NULL;
    atomic_store(&openmp, parallel);
}

/* What every thread is given. */
struct call {
    struct job *job;
    void (*work)(struct job *);
};

static void run_call(void *argument) {
    struct call *call = argument;
    call->work(call->job);
}

/* The threads of one call. The last holder frees it: a thread may start so late that the work is done and the call has
 * returned. */
struct crew {
    pthread_mutex_t lock;
    pthread_cond_t done;
    struct job *job;
    void (*work)(struct job *);
    int working, holders; /* threads at work; threads that may still use this struct */
    bool closed; /* a thread that starts now does nothing */
};

/* Stop using the crew. Called with its lock, which it releases. */
static void leave(struct crew *crew) {
    bool last = --crew->holders == 0;
    pthread_mutex_unlock(&crew->lock);
    if (!last) return;
    pthread_mutex_destroy(&crew->lock);
    pthread_cond_destroy(&crew->done);
    free(crew);
}

static void *thread_main(void *argument) {
    struct crew *crew = argument;
    pthread_mutex_lock(&crew->lock);
    if (!crew->closed) {
        crew->working++;
        pthread_mutex_unlock(&crew->lock);
        crew->work(crew->job);
        pthread_mutex_lock(&crew->lock);
        crew->working--;
        pthread_cond_signal(&crew->done);
    }
    leave(crew);
    return NULL;
}

static void start_thread(struct crew *crew) {
    pthread_attr_t detached;
    pthread_t id;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_mutex_lock(&crew->lock);
    if (pthread_create(&id, &detached, thread_main, crew) == 0) crew->holders++; /* else there are fewer */
    pthread_mutex_unlock(&crew->lock);
    pthread_attr_destroy(&detached);
}

static void run_crew(struct call *call, int64_t threads) {
    struct crew *crew = malloc(sizeof *crew);
    if (!crew) {
        run_call(call);
        return;
    }
    *crew = (struct crew){.job = call->job, .work = call->work, .holders = 1};
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->done, NULL);
    for (int64_t i = 1; i < threads; i++) start_thread(crew);
    run_call(call);
    pthread_mutex_lock(&crew->lock);
    crew->closed = true;
    while (crew->working) pthread_cond_wait(&crew->done, &crew->lock);
    leave(crew);
}

int medbn_parallel(struct job *job, const struct layout *at, void (*work)(struct job *)) {
    const int64_t units = (job->count + job->grain - 1) / job->grain;
    struct call call = {job, work};
    runtime *parallel = atomic_load(&openmp);
    if (at->threads <= 1 || units <= 1 || at->images * at->channels * at->size < SERIAL_VALUES)
        run_call(&call);
    else if (parallel) /* all of its threads: it would end those that it is not asked for */
        parallel(run_call, &call, (unsigned)at->threads, 0);
    else
        run_crew(&call, smaller(smaller(at->threads, units), MOST_THREADS));
    return atomic_load(&job->status);
}
