// Generated; see test_cuda_cpp.py.
// 10 blocks
extern "C" __global__ void __launch_bounds__(32)
pointwise_transposed(const bf16* a_, const bf16* b_, bf16* out) {
    begin_next();
    await_previous();
    const int thread = threadIdx.x;
    const int program = blockIdx.x;
    const int m_0 = (thread % 8) * 8;
    const int n_0 = program * 2;
    Pack<bf16, 8> v1[2];
    #pragma unroll
    for (int n_v = 0; n_v < 2; ++n_v) {
        const int n = n_0 + n_v;
        v1[n_v] = m_0 < 48 ? read<8>(a_ + m_0 + n * 48) : Pack<bf16, 8>{};
    }
    Pack<bf16, 2> v2[8];
    #pragma unroll
    for (int m_v = 0; m_v < 8; ++m_v) {
        const int m = m_0 + m_v;
        v2[m_v] = m_0 < 48 ? read<2>(b_ + m * 20 + n_0) : Pack<bf16, 2>{};
    }
    #pragma unroll
    for (int m_v = 0; m_v < 8; ++m_v) {
        const int m = m_0 + m_v;
        Pack<bf16, 2> y3;
        #pragma unroll
        for (int n_v = 0; n_v < 2; ++n_v) {
            y3.at[n_v] = stored<bf16>(wide(v1[n_v].at[m_v]) + wide(v2[m_v].at[n_v]));
        }
        if (m_0 < 48 && thread < 8) write(out + m * 20 + n_0, y3);
    }
}
