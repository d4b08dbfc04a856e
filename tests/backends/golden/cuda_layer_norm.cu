// Generated; see test_cuda_cpp.py.
// 20 blocks
extern "C" __global__ void __launch_bounds__(32)
rows_layer_norm(const bf16* __restrict__ a_, const bf16* __restrict__ g_, const bf16* __restrict__ b_, bf16* __restrict__ out) {
    const int thread = threadIdx.x;
    const int program = blockIdx.x;
    const int m_0 = program * 1;
    float acc1[1] = {};
    for (int n_block = 0; n_block < 48; n_block += 32) {
        const int n_0 = n_block + (thread % 16) * 2;
        Pack<bf16, 2> v2;
        v2 = n_0 < 48 ? read<2>(a_ + m_0 * 48 + n_0) : Pack<bf16, 2>{};
        #pragma unroll
        for (int n_v = 0; n_v < 2; ++n_v) {
            acc1[0] += wide(v2.at[n_v]);
        }
    }
    across_warp<Sum, 1, 16>(acc1);
    float acc3[1] = {};
    for (int n_block = 0; n_block < 48; n_block += 32) {
        const int n_0 = n_block + (thread % 16) * 2;
        Pack<bf16, 2> v4;
        v4 = n_0 < 48 ? read<2>(a_ + m_0 * 48 + n_0) : Pack<bf16, 2>{};
        const auto t5 = acc1[0] * 0.020833333333333332f;
        #pragma unroll
        for (int n_v = 0; n_v < 2; ++n_v) {
            const auto t6 = wide(v4.at[n_v]) - t5;
            acc3[0] += n_0 < 48 ? (t6 * t6) : 0.0f;
        }
    }
    across_warp<Sum, 1, 16>(acc3);
    for (int n_block = 0; n_block < 48; n_block += 32) {
        const int n_0 = n_block + (thread % 16) * 2;
        Pack<bf16, 2> v7;
        v7 = n_0 < 48 ? read<2>(a_ + m_0 * 48 + n_0) : Pack<bf16, 2>{};
        Pack<bf16, 2> v8;
        v8 = n_0 < 48 ? read<2>(g_ + n_0) : Pack<bf16, 2>{};
        Pack<bf16, 2> v9;
        v9 = n_0 < 48 ? read<2>(b_ + n_0) : Pack<bf16, 2>{};
        const auto t10 = acc1[0] * 0.020833333333333332f;
        const auto t11 = op::rsqrt((acc3[0] * 0.020833333333333332f) + 1e-05f);
        Pack<bf16, 2> y13;
        #pragma unroll
        for (int n_v = 0; n_v < 2; ++n_v) {
            const auto t12 = (((wide(v7.at[n_v]) - t10) * t11) * wide(v8.at[n_v])) + wide(v9.at[n_v]);
            y13.at[n_v] = stored<bf16>(t12);
        }
        if (n_0 < 48 && thread < 16) write(out + m_0 * 48 + n_0, y13);
    }
}
