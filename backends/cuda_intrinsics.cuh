// What generated kernels need of the hardware: 16-bit floats, fast functions, exchange between lanes, order between kernels.
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };

#define DEVICE __device__ __forceinline__

DEVICE float infinity() { return __int_as_float(0x7f800000); }
DEVICE float wide(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
DEVICE float wide(f16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
DEVICE void narrow(float x, bf16& y) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
DEVICE void narrow(float x, f16& y) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }

namespace op {
// NaN is not lost; exponentials and quotients are good to two units in the last place, subnormal results may be 0.
DEVICE float max(float a, float b) { float y; asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
DEVICE float min(float a, float b) { float y; asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
DEVICE float exp2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float div(float a, float b) { float y; asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
DEVICE float rsqrt(float x) { return rsqrtf(x); }
DEVICE double rsqrt(double x) { return ::rsqrt(x); }
}  // namespace op

template <class T> DEVICE T across_lanes(T x, int step) { return __shfl_xor_sync(0xffffffff, x, step); }

// Memory that another block has just written: from the cache that all of them share.
DEVICE float recent(const float* x) { return __ldcg(x); }

DEVICE void visible() { __threadfence(); }

// 16 bytes on their way to shared memory past the registers; rounds of them end in order.
template <class P, class T> DEVICE void fetch_word(P& to, const T* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((unsigned)__cvta_generic_to_shared(&to)), "l"(from) : "memory");
}
DEVICE void end_round() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void await_round() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }

// Programmatic dependent launch: what follows may begin; what was before is done.
#if __CUDA_ARCH__ >= 900
DEVICE void begin_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEVICE void await_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
DEVICE void begin_next() {}
DEVICE void await_previous() {}
#endif
