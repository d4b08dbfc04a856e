"""Cost of a stage in a chain of matrix-vector products: kernels of a CUDA graph beside one persistent kernel.

`python -m benchmarks.decoding.stage_cost [--layers 18]` on a GPU of compute capability 9.0. A chain has the products of
a decode step of Gemma-3-270M (cold weights, or with `small` one product whose weights stay in L2). Variants:

- `graph`: one kernel per product; `pdl_plain`: with programmatic dependent launch; `pdl_warm`: with a prefetch of
  weights into L2 before the wait; `pdl`: with weights loaded into registers before the wait;
- `counters`: one persistent kernel, a counter of finished blocks per stage; `prefetch`: also the weights of the next
  stage to L2;
- `flags`: one persistent kernel whose values carry the number of the launch, so that a reader polls the data itself;
- `..._ring`: weights of further stages are copied to shared memory while a stage waits.

Prints µs of the chain and of a stage, and the largest difference of results from those of `graph`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
from typing import Any

import torch

LAYER = ((640, 1536), (1024, 640), (640, 4096), (2048, 640))  # (K, N) of the products of a layer
SMALL = ((640, 640),)
SOURCE = r"""
typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
__device__ __forceinline__ float wide(u32 x, int i) { return __uint_as_float(i ? x & 0xffff0000u : x << 16); }
struct Stage { const uint4* w; void* x; void* y; };
__device__ __forceinline__ float sum(float x) { for (int s = 1; s < 32; s *= 2) x += __shfl_xor_sync(~0u, x, s); return x; }
__device__ __forceinline__ u32 acquire(const u32* x) { u32 y; asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(y) : "l"(x) : "memory"); return y; }
__device__ __forceinline__ void release(u32* x) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(x) : "memory"); }
__device__ __forceinline__ void ahead(const void* x) { asm volatile("prefetch.global.L2 [%0];" :: "l"(x)); }
__device__ __forceinline__ uint4 once(const uint4* x) { uint4 y; asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(y.x), "=r"(y.y), "=r"(y.z), "=r"(y.w) : "l"(x)); return y; }
#define THREADS 512
#define WARPS 16
// The product of rows of w that belong to this warp; PART: 1 loads weights, 2 waits for x and finishes.
template <int K, int N, int MODE> struct Product {
    static constexpr int BLOCKS = 132, ROWS = (N + BLOCKS * WARPS - 1) / (BLOCKS * WARPS), WORDS = (K / 8 + 31) / 32;
    uint4 held[ROWS][WORDS];
    __device__ __forceinline__ void load(const uint4* w) {
        const int warp = threadIdx.x / 32 * BLOCKS + blockIdx.x, lane = threadIdx.x % 32;
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int i = 0; i < WORDS; ++i) {
                const int row = warp + r * BLOCKS * WARPS, word = lane + 32 * i;
                if (row < N && word < K / 8) held[r][i] = once(w + row * (K / 8) + word);
            }
    }
    // The same words by way of shared memory, each thread its own.
    __device__ __forceinline__ static void fetch(uint4* ring, const uint4* w) {
        const int warp = threadIdx.x / 32 * BLOCKS + blockIdx.x, lane = threadIdx.x % 32;
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int i = 0; i < WORDS; ++i) {
                const int row = warp + r * BLOCKS * WARPS, word = lane + 32 * i;
                if (row < N && word < K / 8)
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((u32)__cvta_generic_to_shared(ring + (r * WORDS + i) * THREADS + threadIdx.x)), "l"(w + row * (K / 8) + word) : "memory");
            }
    }
    __device__ __forceinline__ void take(const uint4* ring) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int i = 0; i < WORDS; ++i) held[r][i] = ring[(r * WORDS + i) * THREADS + threadIdx.x];
    }
    __device__ __forceinline__ void warm(const uint4* w) {
        const int warp = threadIdx.x / 32 * BLOCKS + blockIdx.x, lane = threadIdx.x % 32;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int row = warp + r * BLOCKS * WARPS;
            if (row < N && lane < K / 64) ahead(w + row * (K / 8) + lane * 8);
        }
    }
    __device__ __forceinline__ void finish(float* staged, const void* x, void* y, u32 epoch) {
        const int warp = threadIdx.x / 32 * BLOCKS + blockIdx.x, lane = threadIdx.x % 32;
        float square = 0;
        if (MODE == 2) {
            const uint2* values = (const uint2*)x;
            for (int i = threadIdx.x; i < K / 2; i += THREADS) {
                u32 a, b, fa, fb;
                do asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(a), "=r"(fa), "=r"(b), "=r"(fb) : "l"(values + 2 * i) : "memory");
                while (fa != epoch || fb != epoch);
                const float u = __uint_as_float(a), v = __uint_as_float(b);
                staged[2 * i] = u, staged[2 * i + 1] = v, square += u * u + v * v;
            }
        } else {
            for (int i = threadIdx.x; i < K; i += THREADS) { const float v = __ldcg((const float*)x + i); staged[i] = v, square += v * v; }
        }
        square = sum(square);
        if (lane == 0) staged[2048 + threadIdx.x / 32] = square;
        __syncthreads();
        float total = 0;
        for (int i = 0; i < WARPS; ++i) total += staged[2048 + i];
        const float scale = rsqrtf(total / K + 1e-6f);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int row = warp + r * BLOCKS * WARPS;
            float acc = 0;
#pragma unroll
            for (int i = 0; i < WORDS; ++i) {
                const int word = lane + 32 * i;
                if (row < N && word < K / 8) {
                    const u32 v[4] = {held[r][i].x, held[r][i].y, held[r][i].z, held[r][i].w};
                    for (int j = 0; j < 8; ++j) acc += wide(v[j / 2], j % 2) * staged[word * 8 + j];
                }
            }
            acc = sum(acc) * scale;
            if (lane == 0 && row < N) {
                if (MODE == 2) asm volatile("st.volatile.global.v2.u32 [%0], {%1,%2};" :: "l"((uint2*)y + row), "r"(__float_as_uint(acc)), "r"(epoch) : "memory");
                else ((float*)y)[row] = acc;
            }
        }
    }
};
template <int K, int N, int EARLY> __device__ void alone(const uint4* w, const void* x, void* y) {
    __shared__ float staged[2048 + WARPS];
    Product<K, N, 0> p;
    if (EARLY) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    if (EARLY == 2) p.warm(w);
    if (EARLY == 3) p.load(w);
    if (EARLY) asm volatile("griddepcontrol.wait;" ::: "memory");
    if (EARLY != 3) p.load(w);
    p.finish(staged, x, y, 0);
}
template <int K, int N, int MODE, int DEEP> __device__ __forceinline__ void ring_stage(float* staged, const Stage* s, u32* done, int i, u32 epoch, const uint4* ring) {
    Product<K, N, MODE> p;
    if (MODE != 2 && i) {
        if (threadIdx.x == 0) while ((int)(acquire(done + 32 * (i - 1)) - epoch * 132) < 0);
        __syncthreads();
    }
    asm volatile("cp.async.wait_group %0;" :: "n"(DEEP - 1) : "memory");
    p.take(ring);
    p.finish(staged, s[i].x, s[i].y, epoch);
    __syncthreads();
    if (MODE != 2 && threadIdx.x == 0) release(done + 32 * i);
}
template <int K, int N, int MODE, bool HELD> __device__ __forceinline__ void stage(float* staged, const Stage* s, u32* done, int i, u32 epoch) {
    Product<K, N, MODE> p;
    if (HELD) p.load(s[i].w);
    if (MODE != 2 && i) {
        if (threadIdx.x == 0) while ((int)(acquire(done + 32 * (i - 1)) - epoch * 132) < 0);
        __syncthreads();
    }
    if (!HELD) p.load(s[i].w);
    p.finish(staged, s[i].x, s[i].y, epoch);
    __syncthreads();
    if (MODE != 2 && threadIdx.x == 0) release(done + 32 * i);
}
"""
PERSISTENT = r"""
extern "C" __global__ void __launch_bounds__(THREADS, 1) {name}(const Stage* stages, int count, u32* done, u32* launches) {{
    __shared__ float staged[2048 + WARPS];
    const u32 epoch = *(volatile u32*)launches + 1;
    for (int i = 0; i < count; ++i) {{
        {warm}
        switch (i % {kinds}) {{ {cases} }}
    }}
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(launches + 1, 1) == 131) {{ launches[1] = 0; __threadfence(); *(volatile u32*)launches = epoch; }}
}}
"""
RING = r"""
extern "C" __global__ void __launch_bounds__(THREADS, 1) {name}(const Stage* stages, int count, u32* done, u32* launches) {{
    __shared__ float staged[2048 + WARPS];
    extern __shared__ uint4 rings[];
    const u32 epoch = *(volatile u32*)launches + 1;
    for (int i = 1 - {deep}; i < count; ++i) {{
        const int next = i + {deep} - 1;
        if (next < count) {{
            uint4* const ring = rings + next % {deep} * 8 * THREADS;
            switch (next % {kinds}) {{ {fetches} }}
        }}
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (i < 0) continue;
        const uint4* const ring = rings + i % {deep} * 8 * THREADS;
        switch (i % {kinds}) {{ {cases} }}
    }}
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(launches + 1, 1) == 131) {{ launches[1] = 0; __threadfence(); *(volatile u32*)launches = epoch; }}
}}
"""
ALONE = r"""
extern "C" __global__ void __launch_bounds__(THREADS, 1) {name}(const uint4* w, const void* x, void* y) {{ alone<{k}, {n}, {early}>(w, x, y); }}
"""


def source(products: tuple[tuple[int, int], ...], prefix: str) -> str:
    """CUDA C++ of all ways to run a chain of these products."""
    found = []
    for j, (k, n) in enumerate(products):
        for early in EARLY.values():
            found.append(ALONE.format(name=f"{prefix}alone{j}_{early}", k=k, n=n, early=early))
    kinds = len(products)
    for name, mode, held, far in (
        ("counters", 0, "false", 0), ("held", 0, "true", 0), ("prefetch", 0, "true", 1), ("prefetch2", 0, "true", 2),
        ("flags", 2, "true", 0), ("flags_prefetch", 2, "true", 1), ("flags_prefetch3", 2, "true", 3),
    ):  # fmt: skip
        cases = " ".join(
            f"case {j}: stage<{k}, {n}, {mode}, {held}>(staged, stages, done, i, epoch); break;"
            for j, (k, n) in enumerate(products)
        )
        warm = ""
        if far:
            warms = " ".join(
                f"case {j}: {{ Product<{k}, {n}, {mode}> p; p.warm(stages[i + {far}].w); break; }}"
                for j, (k, n) in enumerate(products)
            )
            warm = f"if (i + {far} < count) switch ((i + {far}) % {kinds}) {{ {warms} }}"
        found.append(PERSISTENT.format(name=prefix + name, kinds=kinds, cases=cases, warm=warm))
    for name, (mode, deep) in RINGS.items():
        fetches = " ".join(
            f"case {j}: Product<{k}, {n}, {mode}>::fetch(ring, stages[next].w); break;"
            for j, (k, n) in enumerate(products)
        )
        cases = " ".join(
            f"case {j}: ring_stage<{k}, {n}, {mode}, {deep}>(staged, stages, done, i, epoch, ring); break;"
            for j, (k, n) in enumerate(products)
        )
        found.append(RING.format(name=prefix + name, deep=deep, kinds=kinds, fetches=fetches, cases=cases))
    return "".join(found)


EARLY = {"graph": 0, "pdl_plain": 1, "pdl_warm": 2, "pdl": 3}
#: name -> (0: counters, 2: flags; stages whose weights are in shared memory or on their way)
RINGS = {"counters_ring": (0, 3), "flags_ring2": (2, 2), "flags_ring3": (2, 3)}
WAYS = (*RINGS, "counters", "held", "prefetch", "prefetch2", "flags", "flags_prefetch", "flags_prefetch3")


class Kernels:
    """Compiled kernels by name, launched on the current stream."""

    def __init__(self, text: str) -> None:
        from cuda.core import Device, Program, ProgramOptions

        Device(0).set_current()
        self.module = Program(text, "c++", ProgramOptions(std="c++17", arch="sm_90a")).compile("cubin")
        self.ready: set[str] = set()

    def launch(self, name: str, grid: int, given: list[int], early: bool = False, whole: bool = False) -> None:
        """Launch a kernel of 512 threads; `early`: programmatic dependent launch, `whole`: all blocks at once."""
        from cuda.bindings import driver

        room = 3 * 8 * 16 * 512 if "ring" in name else 0
        if room and name not in self.ready:
            what = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (failed,) = driver.cuKernelSetAttribute(what, room, self.module.get_kernel(name).handle, driver.CUdevice(0))
            assert not failed, failed
            self.ready.add(name)
        numbers = [ctypes.c_uint64(p) for p in given]
        arguments = (ctypes.c_void_p * len(given))(*(ctypes.addressof(n) for n in numbers))
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = 512, 1, 1
        config.sharedMemBytes, config.hStream = room, driver.CUstream(torch.cuda.current_stream().cuda_stream)
        attributes = []
        if early or whole:
            attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
            kinds = driver.CUlaunchAttributeID
            attribute.id = (
                kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
                if early
                else kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            )
            if early:
                value.programmaticStreamSerializationAllowed = 1
            else:
                value.cooperative = 1
            attribute.value = value
            attributes.append(attribute)
        config.attrs, config.numAttrs = attributes, len(attributes)
        function = driver.CUfunction(int(self.module.get_kernel(name).handle))
        (failed,) = driver.cuLaunchKernelEx(config, function, ctypes.addressof(arguments), 0)
        assert not failed, failed


def timed(run: Any) -> float:
    """µs of a CUDA graph's replay with a flushed L2 cache: the least of several medians."""
    flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    found = []
    for _ in range(40):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(found[5:])


def chain(
    kernels: Kernels, prefix: str, products: tuple[tuple[int, int], ...], count: int, cold: bool
) -> dict[str, Any]:
    """µs of a chain of `count` stages in each way."""
    torch.manual_seed(0)
    distinct = count if cold else len(products)
    weights = [
        torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * k**-0.5
        for k, n in (products[i % len(products)] for i in range(distinct))
    ]
    row: dict[str, Any] = {"stages": count, "products": len(products), "cold": cold}
    results = {}
    for way in (*EARLY, *WAYS):
        wide = 2 if way.startswith("flags") else 1
        values = [torch.zeros(4096 * wide, device="cuda") for _ in range(count + 1)]
        start = torch.linspace(-1, 1, 4096, device="cuda")
        if wide == 2:
            values[0].view(-1, 2)[:, 0] = start
        else:
            values[0].copy_(start)
        done, launches = (
            torch.zeros(32 * count, dtype=torch.int32, device="cuda"),
            torch.zeros(2, dtype=torch.int32, device="cuda"),
        )
        table = [
            [weights[i % distinct].data_ptr(), values[i].data_ptr(), values[i + 1].data_ptr()] for i in range(count)
        ]
        stages = torch.tensor(table, dtype=torch.int64, device="cuda")

        def run(
            way: str = way,
            table: Any = table,
            values: Any = values,
            stages: Any = stages,
            done: Any = done,
            launches: Any = launches,
            wide: int = wide,
        ) -> None:
            if way in EARLY:
                for i, addresses in enumerate(table):
                    name = f"{prefix}alone{i % len(products)}_{EARLY[way]}"
                    kernels.launch(name, 132, addresses, early=EARLY[way] > 0)
                return
            if wide == 2:  # the first values carry the number of this launch
                values[0].view(torch.int32).view(-1, 2)[:, 1] = launches[0] + 1
            kernels.launch(
                prefix + way, 132, [stages.data_ptr(), count, done.data_ptr(), launches.data_ptr()], whole=True
            )

        us = timed(run)
        last = values[-1].view(-1, wide)[: products[(count - 1) % len(products)][1], 0]
        results[way] = last.clone()
        row[way] = {
            "us": round(us, 1),
            "stage_us": round(us / count, 3),
            "difference": float((results[way] - results["graph"]).abs().max()),
        }
    return row


def main() -> None:
    """Print one JSON row per chain."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=18)
    options = parser.parse_args()
    kernels = Kernels(SOURCE + source(LAYER, "layer_") + source(SMALL, "small_"))
    for count in (8, 32, 100):
        print(json.dumps(chain(kernels, "small_", SMALL, count, False)), flush=True)
    for layers in (2, 8, options.layers):
        print(json.dumps(chain(kernels, "layer_", LAYER, 4 * layers, True)), flush=True)


if __name__ == "__main__":
    main()
