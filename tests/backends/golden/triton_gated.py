# Generated; see test_kernel_ir.py.
@triton.jit
def contraction(a, v, w, out):
    program = tl.program_id(0)
    tile_n = program
    m = tl.arange(0, 16)
    n = tile_n * 16 + tl.arange(0, 16)
    acc1 = tl.zeros((16, 16), tl.float32)
    acc2 = tl.zeros((16, 16), tl.float32)
    for r64_ in tl.range(0, 64, 16):
        r64 = r64_ + tl.arange(0, 16)
        t3 = tl.load(a + (m * 64)[:, None] + r64[None, :])
        t4 = tl.load(v + n[None, :] + (r64 * 48)[:, None])
        acc1 = tl.dot(t3, t4, acc1, input_precision='ieee')
        t5 = tl.load(w + n[None, :] + (r64 * 48)[:, None])
        acc2 = tl.dot(t3, t5, acc2, input_precision='ieee')
    tl.store(out + ((m * 48)[:, None] + n[None, :]), (acc1 * (1.0 / (tl.exp((-acc1)) + 1.0))) * acc2)
