"""Provides the thread pool of C kernels in programs whose other kernels use no threads: C text that replaces OpenMP's
run-time library.

The compiler turns a parallel loop into a function of (thread, number of threads) and a call of `GOMP_parallel`. Here a
region is divided into `PARTS` parts per thread, which count as threads for the loop; a free thread takes the next part.
So the calling thread waits only for parts that have begun, never for a thread that is not running (because of other
processes on its core, a fork, or a core that another library's idle threads keep busy). Idle threads look for work for
`SPIN_NS`, then sleep.

All libraries of a process share the threads of the first one: `tensor_graphs_region_1` is looked up among global
symbols first. A caller that finds the threads busy computes its region alone. The number of threads is OpenMP's at the
time of the call (OMP_NUM_THREADS, torch.set_num_threads).
"""

from __future__ import annotations

PARTS = 4  # parts of a region for each thread: more balance better, and each costs an exchange between cores
SHARED = "tensor_graphs_region_1"  # symbol by which libraries of a process find the threads of the first one
SPIN_NS = 500_000  # nanoseconds that an idle thread looks for work: longer than what lies between regions or steps

THREADS = f"""#if defined(_OPENMP) && defined(__linux__)
#define TENSOR_GRAPHS_THREADS 1
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void)0)
#endif
typedef void (*region_body)(void *data, int part, int parts);
static struct {{
    _Alignas(64) _Atomic uint64_t left; /* number of the region << 32 | parts that nobody has taken */
    _Alignas(64) _Atomic int done;      /* parts that are computed */
    _Alignas(64) _Atomic uint32_t round; /* number of the region, for threads that wait */
    _Atomic int asleep, helpers;        /* threads that sleep; threads that may take part */
    _Alignas(64) _Atomic int busy; /* process whose region is being computed, or 0 */
    region_body body;
    void *data;
    int parts, made;
    pid_t owner;
}} region;
static void region_parts(uint32_t round)
{{
    for (;;) {{
        uint64_t left = atomic_load(&region.left);
        if ((uint32_t)(left >> 32) != round || !(uint32_t)left) return;
        if (!atomic_compare_exchange_weak(&region.left, &left, left - 1)) continue;
        region.body(region.data, region.parts - (int)(uint32_t)left, region.parts); /* unchanged until this part is done */
        atomic_fetch_add(&region.done, 1);
    }}
}}
static uint64_t region_ns(void)
{{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}}
static void *region_helper(void *number)
{{
    uint32_t seen = 0;
    for (;;) {{
        const uint64_t begin = region_ns();
        while (atomic_load(&region.round) == seen) {{
            for (int i = 0; i < 64 && atomic_load_explicit(&region.round, memory_order_relaxed) == seen; i++) PAUSE();
            if (region_ns() - begin < {SPIN_NS}u) continue;
            atomic_fetch_add(&region.asleep, 1);
            syscall(SYS_futex, &region.round, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
            atomic_fetch_sub(&region.asleep, 1);
        }}
        seen = atomic_load(&region.round);
        if ((long)number < atomic_load(&region.helpers)) region_parts(seen);
    }}
    return NULL;
}}
static void region_helpers(int wanted, pid_t own)
{{
    if (region.owner != own) {{ /* the first call, or a forked child, which has none of its parent's threads */
        region.owner = own;
        region.made = 0;
        atomic_store(&region.asleep, 0);
    }}
    sigset_t all, before;
    while (region.made < wanted) {{
        pthread_t thread;
        pthread_attr_t detached;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before); /* signals go to the program's own threads */
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        const int failed = pthread_create(&thread, &detached, region_helper, (void *)(long)region.made);
        pthread_attr_destroy(&detached);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (failed) break;
        region.made++;
    }}
    atomic_store(&region.helpers, region.made < wanted ? region.made : wanted);
}}
void {SHARED}(region_body body, void *data, int threads)
{{
    const int own = getpid();
    int holder = 0;
    int taken = threads > 1 && atomic_compare_exchange_strong(&region.busy, &holder, own);
    if (threads > 1 && !taken && holder != own) /* a forked child does not wait for a region of its parent */
        taken = atomic_compare_exchange_strong(&region.busy, &holder, own);
    if (!taken) {{
        body(data, 0, 1);
        return;
    }}
    region_helpers(threads - 1, own);
    region.body = body, region.data = data, region.parts = threads * {PARTS};
    atomic_store(&region.done, 0);
    const uint32_t round = atomic_load(&region.round) + 1;
    atomic_store(&region.left, (uint64_t)round << 32 | (uint32_t)region.parts);
    atomic_store(&region.round, round);
    if (atomic_load(&region.asleep)) syscall(SYS_futex, &region.round, FUTEX_WAKE_PRIVATE, threads - 1, NULL, NULL, 0);
    region_parts(round);
    for (int i = 0; atomic_load(&region.done) != region.parts; i++)
        if (i < 2000) PAUSE();
        else sched_yield(); /* the thread that computes a part may wait for this core */
    atomic_store(&region.busy, 0);
}}
extern int omp_get_max_threads(void) __attribute__((weak));
static __thread int region_part, region_count = 1;
__attribute__((visibility("hidden"))) int omp_get_thread_num(void) {{ return region_part; }}
__attribute__((visibility("hidden"))) int omp_get_num_threads(void) {{ return region_count; }}
typedef struct {{ void (*loop)(void *); void *data; }} region_loop;
static void region_run(void *data, int part, int parts)
{{
    const region_loop *const own = data;
    const int before = region_part, count = region_count;
    region_part = part, region_count = parts;
    own->loop(own->data);
    region_part = before, region_count = count;
}}
__attribute__((visibility("hidden"))) void GOMP_parallel(void (*loop)(void *), void *data, unsigned threads, unsigned flags)
{{
    region_loop own = {{loop, data}};
    const int most = omp_get_max_threads ? omp_get_max_threads() : 1;
    (void)flags;
    {SHARED}(region_run, &own, threads ? (int)threads : most);
}}
#endif
"""

__all__ = ["PARTS", "SHARED", "SPIN_NS", "THREADS"]
