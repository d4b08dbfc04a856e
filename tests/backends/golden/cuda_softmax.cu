// Generated; see test_cuda_cpp.py.
// 5 blocks
extern "C" __global__ void __launch_bounds__(32)
rows_softmax(const bf16* a_, bf16* out) {
    begin_next();
    await_previous();
    const int thread = threadIdx.x;
    const int program = blockIdx.x;
    const int m_0 = program * 4 + thread / 8;
    const int n_0 = (thread % 8) * 8;
    Pack<bf16, 8> v1;
    v1 = n_0 < 48 ? read<8>(a_ + m_0 * 48 + n_0) : Pack<bf16, 8>{};
    float acc2[1];
    fill(acc2, -infinity());
    #pragma unroll
    for (int n_v = 0; n_v < 8; ++n_v) {
        acc2[0] = op::max(acc2[0], n_0 < 48 ? (wide(v1.at[n_v]) * 0.5f) : -infinity());
    }
    across_warp<Max, 1, 8>(acc2);
    float t3[8];
    #pragma unroll
    for (int n_v = 0; n_v < 8; ++n_v) {
        t3[n_v] = op::exp((wide(v1.at[n_v]) * 0.5f) - acc2[0]);
    }
    float acc4[1] = {};
    #pragma unroll
    for (int n_v = 0; n_v < 8; ++n_v) {
        acc4[0] += n_0 < 48 ? t3[n_v] : 0.0f;
    }
    across_warp<Sum, 1, 8>(acc4);
    Pack<bf16, 8> y5;
    #pragma unroll
    for (int n_v = 0; n_v < 8; ++n_v) {
        y5.at[n_v] = stored<bf16>(op::div(t3[n_v], acc4[0]));
    }
    if (n_0 < 48) write(out + m_0 * 48 + n_0, y5);
}
