# Generated; see test_convolutions.py.
@triton.jit
def windows(a, out):
    program = tl.program_id(0)
    tile_m = program
    m = tile_m * 64 + tl.arange(0, 64)
    i3_ = m % 4
    i2_ = m // 4 % 5
    i0i1_ = m // 20
    max1 = tl.full((64,), float('-inf'), tl.float32)
    for w9 in tl.static_range(9):
        t2 = (-1) < (((w9 % 3) + -1) + i3_ * 2)
        t3 = ((w9 // 3) + -1) + i2_ * 2
        t4 = (-1) < t3
        t5 = t3 < 9
        t6 = tl.load(a + ((w9 % 3) + (w9 // 3) * 8 + -9) + i0i1_ * 72 + i2_ * 16 + i3_ * 2, mask=((m < 160) & t2 & t4 & t5), other=0)
        t7 = tl.where(t2, tl.where((t4 & t5), t6, float('-inf')), float('-inf'))
        max1 = tl.maximum(max1, t7, tl.PropagateNan.ALL)
    tl.store(out + (i0i1_ * 20 + i2_ * 4 + i3_), max1, mask=(m < 160))
