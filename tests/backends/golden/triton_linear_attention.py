# Generated; see test_kernel_ir.py.
@triton.jit
def contraction(q, k, v, out):
    program = tl.program_id(0)
    tile = 3 - program // 2
    batch = program % 2
    i0 = batch
    tile_m = tile
    m = tile_m * 16 + tl.arange(0, 16)
    n = tl.arange(0, 16)
    r16 = tl.arange(0, 16)
    free3 = tl.minimum(tl.min(m, 0) + 1, 64) // 16 * 16
    t4 = tl.load(q + (i0 * 1024) + (m * 16)[:, None] + r16[None, :])
    t5 = tl.maximum(t4, 0.0, tl.PropagateNan.ALL)
    acc1 = tl.zeros((16, 16), tl.float32)
    acc2 = tl.full((16, 16), 0.0, tl.float32)
    for r64_ in tl.range(0, free3, 16):
        r64 = r64_ + tl.arange(0, 16)
        t6 = tl.load(k + (i0 * 1024) + r16[:, None] + (r64 * 16)[None, :])
        t7 = tl.dot(t5, tl.maximum(t6, 0.0, tl.PropagateNan.ALL), input_precision='ieee')
        t8 = tl.load(v + (i0 * 1024) + n[None, :] + (r64 * 16)[:, None])
        acc1 = tl.dot(t7, t8, acc1, input_precision='ieee')
        acc2 = acc2 + t7
    for r64_ in tl.range(free3, tl.minimum(tl.max(m, 0) + 1, 64), 16):
        r64 = r64_ + tl.arange(0, 16)
        t9 = tl.load(k + (i0 * 1024) + r16[:, None] + (r64 * 16)[None, :])
        t10 = tl.dot(t5, tl.maximum(t9, 0.0, tl.PropagateNan.ALL), input_precision='ieee')
        t11 = tl.where((r64[None, :] <= m[:, None]), t10, 0.0)
        t12 = tl.load(v + (i0 * 1024) + n[None, :] + (r64 * 16)[:, None])
        acc1 = tl.dot(t11, t12, acc1, input_precision='ieee')
        acc2 = acc2 + t11
    acc2 = tl.sum(acc2, 1)
    tl.store(out + ((i0 * 1024) + (m * 16)[:, None] + n[None, :]), acc1 / (acc2 + 1.0)[:, None])
