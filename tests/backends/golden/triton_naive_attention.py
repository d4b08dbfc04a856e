# Generated; see test_kernel_ir.py.
@triton.jit
def attention(q, g, k, v, out):
    program = tl.program_id(0)
    tile = 1 - program // 2
    batch = program % 2
    i0 = batch
    tile_m = tile
    m = tile_m * 16 + tl.arange(0, 16)
    n = tl.arange(0, 16)
    r16 = tl.arange(0, 16)
    t1 = tl.load(q + (i0 * 512) + (m * 16)[:, None] + r16[None, :])
    t2 = tl.sum(t1 * t1, 1)
    free6 = tl.minimum(tl.min(m, 0) + 1, 32) // 16 * 16
    t7 = tl.load(g + r16)
    t8 = (t1 * tl.rsqrt(((t2 * 0.0625) + 1e-06))[:, None]) * t7[None, :]
    t9 = t8 * 0.36067376022224085
    max3 = tl.full((16,), float('-inf'), tl.float32)
    acc4 = tl.zeros((16, 16), tl.float32)
    acc5 = tl.full((16,), 0.0, tl.float32)
    for r32_ in tl.range(0, free6, 16):
        r32 = r32_ + tl.arange(0, 16)
        t10 = tl.load(k + (i0 * 512) + r16[:, None] + (r32 * 16)[None, :])
        t11 = tl.dot(t9, t10, input_precision='ieee')
        max3_new = tl.maximum(max3, tl.reduce(t11, 1, larger), tl.PropagateNan.ALL)
        max3_safe = tl.where(max3_new == float('-inf'), 0.0, max3_new)
        scale12 = tl.exp2(max3 - max3_safe)
        max3 = max3_new
        t13 = tl.exp2((t11 - max3_safe[:, None]))
        t14 = tl.load(v + (i0 * 512) + n[None, :] + (r32 * 16)[:, None])
        acc4 = tl.dot(t13, t14, acc4 * scale12[:, None], input_precision='ieee')
        acc5 = acc5 * scale12 + tl.sum(t13, 1)
    for r32_ in tl.range(free6, tl.minimum(tl.max(m, 0) + 1, 32), 16):
        r32 = r32_ + tl.arange(0, 16)
        t15 = tl.load(k + (i0 * 512) + r16[:, None] + (r32 * 16)[None, :])
        t16 = tl.dot(t9, t15, input_precision='ieee')
        t17 = tl.where((r32[None, :] <= m[:, None]), t16, float('-inf'))
        max3_new = tl.maximum(max3, tl.reduce(t17, 1, larger), tl.PropagateNan.ALL)
        max3_safe = tl.where(max3_new == float('-inf'), 0.0, max3_new)
        scale18 = tl.exp2(max3 - max3_safe)
        max3 = max3_new
        t19 = tl.exp2((t17 - max3_safe[:, None]))
        t20 = tl.load(v + (i0 * 512) + n[None, :] + (r32 * 16)[:, None])
        acc4 = tl.dot(t19, t20, acc4 * scale18[:, None], input_precision='ieee')
        acc5 = acc5 * scale18 + tl.sum(t19, 1)
    tl.store(out + ((i0 * 512) + (m * 16)[:, None] + n[None, :]), acc4 / acc5[:, None])
