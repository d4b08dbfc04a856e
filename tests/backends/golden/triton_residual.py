# Generated; see test_convolutions.py.
@triton.jit
def contraction(r, a, w, gain, shift, mean, var, out):
    program = tl.program_id(0)
    tile_n = program
    m = tl.arange(0, 16)
    n = tile_n * 16 + tl.arange(0, 16)
    i2i3_ = n % 36
    i0_ = n // 36
    r16 = tl.arange(0, 16)
    t1 = tl.load(r + (i0_ * 576 + i2i3_)[None, :] + (m * 36)[:, None], mask=(n < 72)[None, :], other=0)
    t2 = tl.load(a + (i0_ * 576 + i2i3_)[None, :] + (r16 * 36)[:, None], mask=(n < 72)[None, :], other=0)
    t3 = tl.load(w + (m * 16)[:, None] + r16[None, :])
    t4 = tl.load(gain + m)
    t5 = tl.load(var + m)
    t6 = tl.load(shift + m)
    t7 = tl.load(mean + m)
    t8 = tl.dot(t3, t2, input_precision='ieee')
    t9 = t4 * tl.rsqrt((t5 + 1e-05))
    t10 = t1 + ((t8 * t9[:, None]) + (t6 - (t7 * t9))[:, None])
    tl.store(out + ((i0_ * 576 + i2i3_)[None, :] + (m * 36)[:, None]), tl.maximum(t10, 0.0, tl.PropagateNan.ALL), mask=(n < 72)[None, :])
