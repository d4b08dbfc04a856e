
// Hardware access of tiled float32 GEMM: cp.async copies of partial vectors, and mma.m16n8k8 in TF32 (11 significant bits).
template <int WORDS> DEVICE void fetch_some(float* to, const float* from, int count) {
    const unsigned place = (unsigned)__cvta_generic_to_shared(to);
    if constexpr (WORDS == 4) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(place), "l"(from), "r"(4 * count) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" :: "r"(place), "l"(from), "r"(4 * count), "n"(4 * WORDS) : "memory");
}
DEVICE float truncated(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }
DEVICE float rounded(float x) { unsigned y; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x)); return __uint_as_float(y); }
DEVICE void single_step(float& c0, float& c1, float& c2, float& c3, const float (&a)[4], const float (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
          "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
