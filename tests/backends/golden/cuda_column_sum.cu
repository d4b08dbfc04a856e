// Generated; see test_cuda_cpp.py.
// 2 blocks
extern "C" __global__ void __launch_bounds__(256)
rows_column_sum(const bf16* a_, bf16* out) {
    begin_next();
    await_previous();
    __shared__ float shared[256];
    const int thread = threadIdx.x;
    const int program = blockIdx.x;
    const int m_0 = program * 32 + (thread % 4) * 8;
    const int r64_0 = thread / 4;
    Pack<bf16, 8> v1;
    v1 = m_0 < 48 ? read<8>(a_ + m_0 + r64_0 * 48) : Pack<bf16, 8>{};
    float acc2[8] = {};
    #pragma unroll
    for (int m_v = 0; m_v < 8; ++m_v) {
        acc2[m_v] += wide(v1.at[m_v]);
    }
    across<Sum, 4, 64, 256>(shared, acc2);
    Pack<bf16, 8> y3;
    #pragma unroll
    for (int m_v = 0; m_v < 8; ++m_v) {
        y3.at[m_v] = stored<bf16>(acc2[m_v]);
    }
    if (m_0 < 48 && (thread / 4) == 0) write(out + m_0, y3);
}
