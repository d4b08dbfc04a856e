# Generated; see test_convolutions.py.
@triton.jit
def contraction(a, w, gain, shift, mean, var, out):
    program = tl.program_id(0)
    tile_m = program
    m = tile_m * 16 + tl.arange(0, 16)
    i2_ = m % 6
    i1_ = m // 6 % 6
    i0_ = m // 36
    n = tl.arange(0, 16)
    acc1 = tl.zeros((16, 16), tl.float32)
    for r144_ in tl.range(0, 144, 16):
        r144 = r144_ + tl.arange(0, 16)
        t2 = (((r144_ // 16) % 3) + -1) + i2_
        t3 = (((r144_ // 16) // 3) + -1) + i1_
        t4 = tl.load(a + (((r144_ // 16) % 3) * 16 + ((r144_ // 16) // 3) * 96 + -112) + ((tl.arange(0, 16)))[None, :] + (i0_ * 576 + i1_ * 96 + i2_ * 16)[:, None], mask=((m < 72) & ((-1) < t2) & (t2 < 6) & ((-1) < t3) & (t3 < 6))[:, None], other=0)
        t5 = tl.load(w + (n * 144)[None, :] + r144[:, None])
        acc1 = tl.dot(t4, t5, acc1, input_precision='ieee')
    t6 = tl.load(gain + n)
    t7 = tl.load(var + n)
    t8 = t6 * tl.rsqrt((t7 + 1e-05))
    t9 = tl.load(shift + n)
    t10 = tl.load(mean + n)
    t11 = tl.maximum(((acc1 * t8[None, :]) + (t9 - (t10 * t8))[None, :]), 0.0, tl.PropagateNan.ALL)
    tl.store(out + ((i0_ * 576 + i1_ * 96 + i2_ * 16)[:, None] + n[None, :]), t11, mask=(m < 72)[:, None])
