// Hardware access of clustered attention (sm_90): distributed shared memory, mbarriers, cluster barrier.
namespace clustered {
typedef unsigned Address;  // an address in shared memory

DEVICE Address place_of(const void* x) { return (Address)__cvta_generic_to_shared(x); }
DEVICE int block_rank() { int x; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(x)); return x; }
// An mbarrier whose phase ends after one arrival and `bytes` received bytes.
DEVICE void make_barrier(Address at, int bytes) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
}
DEVICE void await(Address at) {
    unsigned done = 0;
    while (!done) asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(at) : "memory");
}
DEVICE void arrive_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void await_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// mapa: the corresponding address in another block of the cluster. st.async: stores there, counted by an mbarrier of that block.
DEVICE Address in_block(Address at, int block) { Address x; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(x) : "r"(at), "r"(block)); return x; }
DEVICE void send(Address to, const float (&x)[4], Address barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier) : "memory");
}
DEVICE void send(Address to, const float (&x)[2], Address barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 :: "r"(to), "f"(x[0]), "f"(x[1]), "r"(barrier) : "memory");
}
// Maximum over a warp, in all lanes; NaN if one value is NaN. (Bits of floats are ordered as integers are, negative ones in reverse.)
DEVICE float highest(float x) {
    const float y = x != x ? __int_as_float(0x7fffffff) : x;
    const int bits = __float_as_int(y), most = __reduce_max_sync(0xffffffff, bits < 0 ? bits ^ 0x7fffffff : bits);
    return __int_as_float(most < 0 ? most ^ 0x7fffffff : most);
}
}  // namespace clustered
