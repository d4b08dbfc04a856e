// Generated; see test_cuda_cpp.py.
// 6 blocks
extern "C" __global__ void __launch_bounds__(64)
contraction_norm_vector(const bf16* a_, const bf16* g_, const bf16* w_, bf16* out, float* part0, float* part1, int* counters) {
    begin_next();
    await_previous();
    __shared__ float shared[80];
    const int thread = threadIdx.x;
    const int program = blockIdx.x;
    const int batch = program / 3, tile = program % 3;
    const int part = batch;
    const int r128p_0 = thread / 4 * 4;
    const int n_0 = tile * 16 + (thread % 4) * 4;
    Pack<bf16, 4> v1;
    v1 = read<4>(a_ + part * 64 + r128p_0);
    Pack<bf16, 4> v2;
    v2 = read<4>(g_ + part * 64 + r128p_0);
    Pack<bf16, 4> v3[4];
    #pragma unroll
    for (int r128p_v = 0; r128p_v < 4; ++r128p_v) {
        const int r128p = r128p_0 + r128p_v;
        v3[r128p_v] = read<4>(w_ + n_0 + part * 3072 + r128p * 48);
    }
    float acc4[1] = {};
    #pragma unroll
    for (int r128p_v = 0; r128p_v < 4; ++r128p_v) {
        const auto t5 = wide(v1.at[r128p_v]);
        acc4[0] += t5 * t5;
    }
    float acc6[4] = {};
    #pragma unroll
    for (int r128p_v = 0; r128p_v < 4; ++r128p_v) {
        const auto t7 = wide(v1.at[r128p_v]) * wide(v2.at[r128p_v]);
        #pragma unroll
        for (int n_v = 0; n_v < 4; ++n_v) {
            acc6[n_v] += t7 * wide(v3[r128p_v].at[n_v]);
        }
    }
    across<Sum, 4, 16, 64>(shared, acc4, acc6);
    Pack<float, 4> y8;
    #pragma unroll
    for (int n_v = 0; n_v < 4; ++n_v) {
        y8.at[n_v] = acc6[n_v];
    }
    if ((thread / 4) == 0) write(part0 + n_0 + part * 48, y8);
    if ((thread % 4) == 0 && (thread / 4) == 0) part1[part] = acc4[0];
    if (!is_last(counters + program % 3, 2)) return;
    const int parts_0 = thread / 4;
    Pack<float, 4> v9;
    v9 = parts_0 < 2 ? read_recent<4>(part0 + n_0 + parts_0 * 48) : Pack<float, 4>{};
    float acc10[4] = {};
    #pragma unroll
    for (int n_v = 0; n_v < 4; ++n_v) {
        acc10[n_v] += v9.at[n_v];
    }
    float v11;
    v11 = parts_0 < 2 ? recent(part1 + parts_0) : 0;
    float acc12[1] = {};
    acc12[0] += v11;
    across<Sum, 4, 16, 64>(shared + 40, acc10, acc12);
    const auto t13 = op::rsqrt((acc12[0] * 0.0078125f) + 1e-06f);
    Pack<bf16, 4> y14;
    #pragma unroll
    for (int n_v = 0; n_v < 4; ++n_v) {
        y14.at[n_v] = stored<bf16>(acc10[n_v] * t13);
    }
    if ((thread / 4) == 0) write(out + n_0, y14);
}
