# Generated; see test_kernel_ir.py.
@triton.jit
def contraction(a, w_down, b_down, w_up, b_up, r, out):
    program = tl.program_id(0)
    tile_m = program
    m = tile_m * 16 + tl.arange(0, 16)
    r80 = tl.arange(0, 128)
    acc1 = tl.zeros((16, 128), tl.float32)
    for r160_ in tl.range(0, 160, 32):
        r160 = r160_ + tl.arange(0, 32)
        t2 = tl.load(a + (m * 160)[:, None] + r160[None, :])
        t3 = tl.load(w_down + (r160 * 80)[:, None] + r80[None, :], mask=(r80 < 80)[None, :], other=0)
        acc1 = tl.dot(t2, t3, acc1, input_precision='ieee')
    t4 = tl.load(b_down + r80, mask=(r80 < 80), other=0)
    t5 = acc1 + t4[None, :]
    t6 = t5 * (tl.erf((t5 * 0.7071067811865476)) + 1.0)
    for n_ in tl.range(0, 96, 32, num_stages=2):
        n = n_ + tl.arange(0, 32)
        t7 = tl.load(w_up + n[None, :] + (r80 * 96)[:, None], mask=(r80 < 80)[:, None], other=0)
        t8 = tl.dot(t6, t7, input_precision='ieee')
        t9 = tl.load(b_up + n)
        t10 = tl.load(r + (m * 96)[:, None] + n[None, :])
        tl.store(out + ((m * 96)[:, None] + n[None, :]), ((t8 * 0.5) + t9[None, :]) + t10)
