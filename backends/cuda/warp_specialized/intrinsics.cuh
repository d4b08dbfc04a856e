// Hardware access of warp-specialized kernels (sm_90): TMA copies of boxes, mbarriers, wgmma of warp groups.
typedef unsigned Address;  // an address in shared memory
struct alignas(64) Box { unsigned long long words[16]; };  // a CUtensorMap: TMA descriptor of a matrix
#define DESCRIBED const __grid_constant__ Box

DEVICE Address place_of(const void* x) { return (Address)__cvta_generic_to_shared(x); }
DEVICE int alike(int x) { return __shfl_sync(0xffffffff, x, 0); }
DEVICE int block_of_cluster() { int x; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(x)); return x; }
template <int N> DEVICE void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N> DEVICE void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }

// The phase of an mbarrier ends after `arrivals` arrivals and once all expected bytes have been received.
DEVICE void make_barrier(Address at, int arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at), "r"(arrivals) : "memory"); }
DEVICE void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void announce(Address at, int bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory"); }
DEVICE void arrive(Address at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory"); }
DEVICE void arrive_in(Address at, int block) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}" :: "r"(at), "r"(block) : "memory");
}
// mapa: the corresponding address in another block of the cluster. st.async: store of four floats there, counted by an mbarrier of that block.
// Addition of four received floats.
DEVICE Address in_block(Address at, int block) { Address x; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(x) : "r"(at), "r"(block)); return x; }
DEVICE void send(Address to, const float* x, Address barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier) : "memory");
}
DEVICE void add_held(float* x, Address at) {
    float a, b, c, d;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "r"(at) : "memory");
    x[0] += a, x[1] += b, x[2] += c, x[3] += d;
}
DEVICE void await(Address at, int parity) {
    unsigned done = 0;
    while (!done) asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(at), "r"(parity) : "memory");
}
DEVICE void meet_group(int group) { asm volatile("bar.sync %0, 128;" :: "r"(group) : "memory"); }
DEVICE void meet_warp() { __syncwarp(); }
DEVICE void meet_cluster() { asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory"); }
DEVICE void leave_cluster() { asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory"); }

// TMA load of a box into shared memory, multicast to all BLOCKS of the cluster; TMA store of a box to global memory.
template <int BLOCKS> DEVICE void fetch_box(Address to, const Box& box, int column, int row, Address barrier) {
    if constexpr (BLOCKS > 1)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                     :: "r"(to), "l"(&box), "r"(column), "r"(row), "r"(barrier), "h"((unsigned short)((1 << BLOCKS) - 1)) : "memory");
    else
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                     :: "r"(to), "l"(&box), "r"(column), "r"(row), "r"(barrier) : "memory");
}
DEVICE void put_box(const Box& box, int column, int row, Address from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" :: "l"(&box), "r"(column), "r"(row), "r"(from) : "memory");
}
DEVICE void end_puts() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> DEVICE void await_puts() { asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory"); }
DEVICE void await_all_puts() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
DEVICE void shown_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
template <class P> DEVICE void hold(Address at, const P& pair) { asm volatile("st.shared.b32 [%0], %1;" :: "r"(at), "r"(*reinterpret_cast<const unsigned*>(&pair)) : "memory"); }
DEVICE unsigned held_word(Address at) { unsigned x; asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory"); return x; }

// wgmma: matrix descriptors of operands in shared memory; products are asynchronous until their wait.
DEVICE unsigned long long strip(Address at, unsigned apart, unsigned next) {
    return (unsigned long long)((at & 0x3ffff) >> 4) | (unsigned long long)(apart >> 4) << 16 | (unsigned long long)(next >> 4) << 32 | 1ull << 62;
}
DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEVICE void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }
template <int N> DEVICE void settle(float (&x)[N][32]) {  // the compiler must not move accumulators in flight across this
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
        for (int j = 0; j < 32; ++j) asm volatile("" : "+f"(x[i][j]) :: "memory");
}
template <class T, int COLUMNS> struct Product;  // one wgmma instruction: M = 64, K = 16
