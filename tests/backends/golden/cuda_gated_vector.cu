// Generated; see test_cuda_cpp.py.
// 3 blocks
extern "C" __global__ void __launch_bounds__(128)
contraction_gated_vector(const bf16* __restrict__ a_, const bf16* __restrict__ w_, const bf16* __restrict__ v_, bf16* __restrict__ out) {
    __shared__ float shared[128];
    const int thread = threadIdx.x;
    const int program = blockIdx.x;
    const int n_0 = program * 16 + (thread % 8) * 2;
    float acc1[2] = {};
    float acc2[2] = {};
    for (int r64_block = 0; r64_block < 64; r64_block += 32) {
        const int r64_0 = r64_block + thread / 8;
        bf16 v3[2];
        #pragma unroll
        for (int r64_i = 0; r64_i < 2; ++r64_i) {
            const int r64 = r64_0 + r64_i * 16;
            v3[r64_i] = a_[r64];
        }
        Pack<bf16, 2> v4[2];
        #pragma unroll
        for (int r64_i = 0; r64_i < 2; ++r64_i) {
            const int r64 = r64_0 + r64_i * 16;
            v4[r64_i] = read<2>(w_ + n_0 + r64 * 48);
        }
        Pack<bf16, 2> v5[2];
        #pragma unroll
        for (int r64_i = 0; r64_i < 2; ++r64_i) {
            const int r64 = r64_0 + r64_i * 16;
            v5[r64_i] = read<2>(v_ + n_0 + r64 * 48);
        }
        #pragma unroll
        for (int r64_i = 0; r64_i < 2; ++r64_i) {
            const auto t6 = wide(v3[r64_i]);
            #pragma unroll
            for (int n_v = 0; n_v < 2; ++n_v) {
                acc1[n_v] += t6 * wide(v4[r64_i].at[n_v]);
            }
        }
        #pragma unroll
        for (int r64_i = 0; r64_i < 2; ++r64_i) {
            const auto t7 = wide(v3[r64_i]);
            #pragma unroll
            for (int n_v = 0; n_v < 2; ++n_v) {
                acc2[n_v] += t7 * wide(v5[r64_i].at[n_v]);
            }
        }
    }
    across<Sum, 8, 16, 128>(shared, acc1, acc2);
    Pack<bf16, 2> y9;
    #pragma unroll
    for (int n_v = 0; n_v < 2; ++n_v) {
        const auto t8 = (acc1[n_v] * op::recip(op::exp(-acc1[n_v]) + 1.0f)) * acc2[n_v];
        y9.at[n_v] = stored<bf16>(t8);
    }
    if ((thread / 8) == 0) write(out + n_0, y9);
}
