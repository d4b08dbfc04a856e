// Generated; see test_cuda_cpp.py.
// 20 blocks
extern "C" __global__ void __launch_bounds__(32)
contraction_matrix_vector(const bf16* __restrict__ w_, const bf16* __restrict__ a_, bf16* __restrict__ out) {
    __shared__ Pack<bf16, 8> ring2[192];
    const int thread = threadIdx.x;
    const int program = blockIdx.x;
    const int n_0 = program * 2;
    float acc1[2] = {};
    auto fetch_round = [&](int r64_block, int round) {
        if (r64_block >= 64) return;
        const int r64_0 = r64_block + (thread % 4) * 8;
        #pragma unroll
        for (int n_i = 0; n_i < 2; ++n_i) {
            const int n = n_0 + n_i;
            fetch(ring2[(round * 2 + n_i) * 32 + thread], w_ + n * 64 + r64_0);
        }
    };
    for (int round = 0; round < 2; ++round) fetch_round(round * 32, round), end_round();
    for (int r64_block = 0, round = 0; r64_block < 64; r64_block += 32, round = (round + 1) % 3) {
        const int r64_0 = r64_block + (thread % 4) * 8;
        fetch_round(r64_block + 64, (round + 2) % 3);
        end_round();
        await_round<2>();
        Pack<bf16, 8> v2[2];
        #pragma unroll
        for (int n_i = 0; n_i < 2; ++n_i) {
            v2[n_i] = ring2[(round * 2 + n_i) * 32 + thread];
        }
        Pack<bf16, 8> v3;
        v3 = read<8>(a_ + r64_0);
        #pragma unroll
        for (int n_i = 0; n_i < 2; ++n_i) {
            #pragma unroll
            for (int r64_v = 0; r64_v < 8; ++r64_v) {
                acc1[n_i] += wide(v2[n_i].at[r64_v]) * wide(v3.at[r64_v]);
            }
        }
    }
    across_warp<Sum, 1, 4>(acc1);
    #pragma unroll
    for (int n_i = 0; n_i < 2; ++n_i) {
        const int n = n_0 + n_i;
        if ((thread % 4) == 0 && thread < 4) out[n] = stored<bf16>(acc1[n_i]);
    }
}
