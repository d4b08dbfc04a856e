// Hardware access of products whose rows a block shares, and whose sums a thread-block cluster shares (sm_90): shuffles, cluster barrier,
// distributed shared memory.
DEVICE float from_lane(float x, int lane) { return __shfl_sync(0xffffffff, x, lane); }
// The threads of all blocks meet; those of a block leave, and wait until all have left, before the block may end.
DEVICE void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
DEVICE void leave_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void await_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The value at the corresponding place in the shared memory of another block.
DEVICE float in_block(const float* place, int block) {
    unsigned at;
    float x;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"((unsigned)__cvta_generic_to_shared(place)), "r"(block));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
    return x;
}
