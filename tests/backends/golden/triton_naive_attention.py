# Generated; see test_kir.py.
@triton.jit
def attention(q, g, k, v, out):
    program = tl.program_id(0)
    batch = program // 2
    tile = program % 2
    i0 = batch
    tile_m = tile
    m = tile_m * 16 + tl.arange(0, 16)
    n = tl.arange(0, 16)
    r16 = tl.arange(0, 16)
    t1 = tl.load(q + (i0 * 512) + (m * 16)[:, None] + r16[None, :])
    t2 = tl.sum(t1 * t1, 1)
    free6 = tl.minimum(tl.min(m, 0) + 1, 32) // 16 * 16
    t7 = tl.load(g + r16)
    t8 = t1 * t7[None, :]
    t11 = tl.rsqrt(((t2 * 0.0625) + 1e-06))
    max3 = tl.full((16,), float('-inf'), tl.float32)
    acc4 = tl.zeros((16, 16), tl.float32)
    acc5 = tl.full((16,), 0.0, tl.float32)
    for r32_ in tl.range(0, free6, 16):
        r32 = r32_ + tl.arange(0, 16)
        t9 = tl.load(k + (i0 * 512) + r16[:, None] + (r32 * 16)[None, :])
        t10 = tl.dot(t8, t9, input_precision='ieee')
        t12 = (t10 * t11[:, None]) * 0.36067376022224085
        max3_new = tl.maximum(max3, tl.max(t12, 1))
        max3_safe = tl.where(max3_new == float('-inf'), 0.0, max3_new)
        scale13 = tl.exp2(max3 - max3_safe)
        max3 = max3_new
        t14 = tl.exp2((t12 - max3_safe[:, None]))
        t15 = tl.load(v + (i0 * 512) + n[None, :] + (r32 * 16)[:, None])
        acc4 = tl.dot(t14, t15, acc4 * scale13[:, None], input_precision='ieee')
        acc5 = acc5 * scale13 + tl.sum(t14, 1)
    for r32_ in tl.range(free6, tl.minimum(tl.max(m, 0) + 1, 32), 16):
        r32 = r32_ + tl.arange(0, 16)
        t16 = tl.load(k + (i0 * 512) + r16[:, None] + (r32 * 16)[None, :])
        t17 = tl.dot(t8, t16, input_precision='ieee')
        t18 = tl.where((r32[None, :] <= m[:, None]), ((t17 * t11[:, None]) * 0.36067376022224085), float('-inf'))
        max3_new = tl.maximum(max3, tl.max(t18, 1))
        max3_safe = tl.where(max3_new == float('-inf'), 0.0, max3_new)
        scale19 = tl.exp2(max3 - max3_safe)
        max3 = max3_new
        t20 = tl.exp2((t18 - max3_safe[:, None]))
        t21 = tl.load(v + (i0 * 512) + n[None, :] + (r32 * 16)[:, None])
        acc4 = tl.dot(t20, t21, acc4 * scale19[:, None], input_precision='ieee')
        acc5 = acc5 * scale19 + tl.sum(t20, 1)
    tl.store(out + ((i0 * 512) + (m * 16)[:, None] + n[None, :]), acc4 / acc5[:, None])
