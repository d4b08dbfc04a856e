// Hardware access of generated kernels: 16-bit floats, fast functions, warp shuffles, cp.async, mma, programmatic dependent launch.
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };

#define DEVICE __device__ __forceinline__
#define RARE __device__ __noinline__

DEVICE float infinity() { return __int_as_float(0x7f800000); }
// float of an integer 0 to 255, and of a signed byte: its bits become the low mantissa bits of 2 ** 23, which is faster than a conversion.
DEVICE float from_byte(int i) { return __uint_as_float(0x4b000000u | (unsigned)i) - 8388608.0f; }
DEVICE float from_signed_byte(int i) { return __uint_as_float((unsigned)(i & 255) ^ 0x4b000080u) - 8388736.0f; }
DEVICE float wide(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
DEVICE float wide(f16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
DEVICE void narrow(float x, bf16& y) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
DEVICE void narrow(float x, f16& y) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }

namespace op {
// NaN is propagated; exponentials, quotients and roots are accurate to two units in the last place, subnormal results may be 0.
DEVICE float max(float a, float b) { float y; asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
DEVICE float min(float a, float b) { float y; asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
DEVICE float exp2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float div(float a, float b) { float y; asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
DEVICE float rsqrt(float x) { return rsqrtf(x); }
DEVICE float sqrt(float x) { float y; asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float held_sum(float a, float b, float c) { float y; asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c)); return y; }  // a * b + c in [0, 1]
DEVICE double rsqrt(double x) { return ::rsqrt(x); }
}  // namespace op

template <class T> DEVICE T across_lanes(T x, int step) { return __shfl_xor_sync(0xffffffff, x, step); }

// Loads of memory that another block has just written: from L2, past L1.
DEVICE float recent(const float* x) { return __ldcg(x); }
DEVICE void recent_word(float* y, const float* x) {  // 16 bytes
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(y[0]), "=f"(y[1]), "=f"(y[2]), "=f"(y[3]) : "l"(x) : "memory");
}

DEVICE void visible() { __threadfence(); }

// cp.async: copies of 16 bytes to shared memory. Groups of copies (rounds) complete in order.
template <class P, class T> DEVICE void fetch_word(P& to, const T* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((unsigned)__cvta_generic_to_shared(&to)), "l"(from) : "memory");
}
template <class P, class T> DEVICE void fetch_line(P& to, const T* from) {  // also prefetches the line of 128 bytes into L2
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" :: "r"((unsigned)__cvta_generic_to_shared(&to)), "l"(from) : "memory");
}
template <int N> DEVICE void fetch_near(void* to, const void* from) {  // N bytes, 4 or 16; the line is kept in L1
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "n"(N) : "memory");
}
DEVICE void end_round() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void await_round() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }

// Load of 16 bytes that this block does not read again: past L1.
template <class P, class T> DEVICE void read_past(P& to, const T* from) {
    unsigned* y = reinterpret_cast<unsigned*>(&to);
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3]) : "l"(from));
}

// mma.m16n8k16 in a warp: 16 rows, 8 columns, 16 elements along K. Volatile, since the compiler may copy other assembly into both
// branches of a condition that divides the warp: the lanes then wait for each other for ever.
#define MATRIX_STEP(T, NAME) \
    DEVICE void matrix_step(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, T) { \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
            "{%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1)); \
    }
MATRIX_STEP(bf16, "bf16")
MATRIX_STEP(f16, "f16")

// prmt: four of the eight bytes of a and b, selected by the hexadecimal digits of a number.
DEVICE unsigned pick(unsigned a, unsigned b, unsigned digits) { return __byte_perm(a, b, digits); }
// Pairs of 16-bit floats: a * b + c, rounded once; of two floats; of two floats e4m3fn.
template <class T> constexpr bool is_bf16 = false;
template <> constexpr bool is_bf16<bf16> = true;
DEVICE unsigned pair_sum(unsigned a, unsigned b, unsigned c, bf16) { unsigned y; asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c)); return y; }
DEVICE unsigned pair_sum(unsigned a, unsigned b, unsigned c, f16) { unsigned y; asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c)); return y; }
DEVICE unsigned pair_of(float low, float high, bf16) { unsigned y; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y; }
DEVICE unsigned pair_of(float low, float high, f16) { unsigned y; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y; }
#if __CUDA_ARCH__ >= 890
DEVICE void pairs_of_float8(unsigned& low, unsigned& high, unsigned x, f16) {
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b;}" : "=r"(low), "=r"(high) : "r"(x));
}
#else
DEVICE unsigned pair_of_float8(unsigned two) {  // in the upper bytes
    const unsigned nan = ((two & 0x7f00u) == 0x7f00u ? 0x7fffu : 0) | ((two & 0x7f000000u) == 0x7f000000u ? 0x7fff0000u : 0);
    return pair_sum((two & 0x7f007f00u) >> 1 | (two & 0x80008000u), 0x5c005c00u, 0x80008000u, f16()) | nan;
}
DEVICE void pairs_of_float8(unsigned& low, unsigned& high, unsigned x, f16) {
    low = pair_of_float8(pick(x, 0, 0x1404)), high = pair_of_float8(pick(x, 0, 0x3424));
}
#endif
DEVICE unsigned pair_of_pair(unsigned x) {  // bf16 of f16
    unsigned y;
    asm("{.reg .b16 a, b; .reg .f32 c, d; mov.b32 {a, b}, %1; cvt.f32.f16 c, a; cvt.f32.f16 d, b; cvt.rn.bf16x2.f32 %0, d, c;}" : "=r"(y) : "r"(x));
    return y;
}
DEVICE void pairs_of_float8(unsigned& low, unsigned& high, unsigned x, bf16) {
    unsigned a, b;
    pairs_of_float8(a, b, x, f16());
    low = pair_of_pair(a), high = pair_of_pair(b);
}

// Dynamic shared memory, whose size is a launch parameter.
#define ROOM(T, name) extern __shared__ T name[]

// Prefetch of a line into L2. Another kernel may write the line at the same time, since its writes go through L2.
DEVICE void prefetch_line(const void* x) { asm volatile("prefetch.global.L2 [%0];" :: "l"(x)); }

// Programmatic dependent launch: permit the next kernel to start; wait until the previous kernel has ended.
#if __CUDA_ARCH__ >= 900
DEVICE void begin_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEVICE void await_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
DEVICE void begin_next() {}
DEVICE void await_previous() {}
#endif
