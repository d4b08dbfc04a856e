// Generated; see test_warp_specialized_gemm.py.
extern "C" __global__ void __launch_bounds__(384, 1) __cluster_dims__(2, 1, 1)
contraction(const bf16* b_, const bf16* r_, DESCRIBED x_box, DESCRIBED w_box1, DESCRIBED out_box2) {
    ROOM(float, room);
    Roles<bf16, 128, 128, 1, true, 2, 1, 1, 3, true, false, 2> roles(room);
    begin_next();
    await_previous();
    if (roles.group == 0) {
        fewer_registers<24>();
        if (threadIdx.x == 0) {
            for (int tile = roles.first(); tile < 1; tile += 1) {
                const Spot at = roles.spot<2, 1, 2, 128, 0>(tile);
                for (int k = 0; k < 256; k += 64, roles.next()) {
                    roles.begin_stage(32768);
                    roles.left(x_box, k, at.m);
                    roles.right<0>(w_box1, at.n, k);
                }
            }
            roles.end_stages();
        }
    } else {
        more_registers<240>();
        float sums[2][2][32];
        for (int tile = roles.first(); tile < 1; tile += 1) {
            const Spot at = roles.spot<2, 1, 2, 128, 0>(tile);
            if (!roles.mine(4)) continue;
            roles.multiply(sums, 4);
            #pragma unroll
            for (int c = 0; c < 2; ++c) {
                const Address piece = roles.begin_piece();
                #pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int m_0 = at.m + roles.base() + i * 64 + roles.row();
                    const int n_0 = at.n + c * 64 + roles.column();
                    const float (&acc1)[32] = sums[i][c];
                    Pack<bf16, 2> v2[8];
                    #pragma unroll
                    for (int n_i = 0; n_i < 8; ++n_i) {
                        const int n_1 = n_0 + n_i * 8;
                        v2[n_i] = read<2>(b_ + n_1);
                    }
                    Pack<bf16, 2> v3[16];
                    #pragma unroll
                    for (int m_i = 0; m_i < 2; ++m_i) {
                        const int m = m_0 + m_i * 8;
                        #pragma unroll
                        for (int n_i = 0; n_i < 8; ++n_i) {
                            const int n_1 = n_0 + n_i * 8;
                            v3[m_i * 8 + n_i] = read<2>(r_ + m * 128 + n_1);
                        }
                    }
                    #pragma unroll
                    for (int m_i = 0; m_i < 2; ++m_i) {
                        #pragma unroll
                        for (int n_i = 0; n_i < 8; ++n_i) {
                            Pack<bf16, 2> y5;
                            #pragma unroll
                            for (int n_v = 0; n_v < 2; ++n_v) {
                                const auto t4 = (acc1[m_i * 16 + n_i * 2 + n_v] + wide(v2[n_i].at[n_v])) + wide(v3[m_i * 8 + n_i].at[n_v]);
                                y5.at[n_v] = stored<bf16>(t4);
                            }
                            roles.keep(piece + i * 8192, m_i, n_i, y5);
                        }
                    }
                }
                roles.end_piece(piece, out_box2, at.n + c * 64, at.m + roles.base());
            }
        }
        roles.end_results();
    }
    roles.leave();
}
