// What persistent kernels need of the hardware: groups of threads, counters that other blocks see, memory of a block.

// Threads of a block that compute one tile, with their part of the shared memory. At most 15 groups: barriers 1 to 15.
template <int THREADS> struct Group {
    char* place;
    DEVICE int thread() const { return threadIdx.x % THREADS; }
    DEVICE void wait() const {
        if constexpr (THREADS == 32) __syncwarp();
        else asm volatile("bar.sync %0, %1;" :: "r"(1 + threadIdx.x / THREADS), "n"(THREADS) : "memory");
    }
    template <class T> DEVICE T* room(int offset) const { return reinterpret_cast<T*>(place + offset); }
    DEVICE bool* flag() const { return reinterpret_cast<bool*>(place); }
};
// The block works in groups; the groups have ended.
template <int THREADS> DEVICE void begin_groups() {}
DEVICE void end_groups() {}

// A counter has come to a number: what its writers wrote before is visible to those who then meet this thread.
DEVICE bool has_come(const int* counter, int number) {
    int x;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(counter) : "memory");
    return x >= number;
}
// Add to a counter, after everything that this thread and those that it met have written.
DEVICE void report(int* counter, int number) {
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" :: "l"(counter), "r"(number) : "memory");
}
DEVICE void yield() {}
DEVICE int blocks() { return gridDim.x; }

#define BLOCK_ROOM(name) extern __shared__ __align__(128) char name[]
