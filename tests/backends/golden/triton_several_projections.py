# Generated; see test_multi_output_kernels.py.
@triton.jit
def contraction(a, g, w, out, out1, out2):
    program = tl.program_id(0)
    tile_n = program
    m = tl.arange(0, 16)
    n = tile_n * 16 + tl.arange(0, 16)
    acc1 = tl.zeros((16, 16), tl.float32)
    acc2 = tl.full((16, 16), 0.0, tl.float32)
    for r64_ in tl.range(0, 64, 16):
        r64 = r64_ + tl.arange(0, 16)
        t3 = tl.load(a + (m * 64)[:, None] + r64[None, :])
        t4 = tl.load(g + r64)
        t5 = tl.load(w + n[None, :] + (r64 * 96)[:, None])
        acc1 = tl.dot(t3 * t4[None, :], t5, acc1, input_precision='ieee')
        acc2 = acc2 + t3 * t3
    acc2 = tl.sum(acc2, 1)
    t6 = acc1 * tl.rsqrt(((acc2 * 0.015625) + 1e-06))[:, None]
    tl.store(out + ((m * 48)[:, None] + n[None, :]), t6, mask=(n < 48)[None, :])
    tl.store(out1 + ((m * 24)[:, None] + n[None, :] + (-48)), t6, mask=((47 < n) & (n < 72))[None, :])
    tl.store(out2 + ((m * 24)[:, None] + n[None, :] + (-72)), t6, mask=(71 < n)[None, :])
