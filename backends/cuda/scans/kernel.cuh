// Running sums over the threads of a block. Threads have values of consecutive positions, in the order of their numbers;
// LANES neighbours have the same positions of different sums. Returns the sum of the values of earlier threads, and
// `carried`, the sum of what the block has added before, to which the values of all threads are added.
template <int THREADS, int LANES, class T> DEVICE T earlier(T own, T* shared, T& carried) {
    constexpr int inner = LANES > 1 ? 1 : least(THREADS, 32), outer = THREADS / LANES / inner;
    const int lane = threadIdx.x % LANES, part = threadIdx.x / LANES / inner % outer;
    T before = 0, whole = own;
#pragma unroll
    for (int step = 1; step < inner; step *= 2) {
        const T other = across_lanes(whole, step);
        before += threadIdx.x & step ? other : T(0);
        whole += other;
    }
    if constexpr (outer > 1) {
        if (LANES > 1 || threadIdx.x % inner == 0) shared[part * LANES + lane] = whole;
        __syncthreads();
        whole = 0;
#pragma unroll
        for (int i = 0; i < outer; ++i) {
            const T other = shared[i * LANES + lane];
            before += i < part ? other : T(0);
            whole += other;
        }
        __syncthreads();
    }
    before += carried;
    carried += whole;
    return before;
}
