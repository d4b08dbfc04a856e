# Generated; see test_kernel_ir.py.
@triton.jit
def pointwise(a, b, out):
    program = tl.program_id(0)
    tile_m = program % 3
    tile_n = program // 3
    m = tile_m * 8 + tl.arange(0, 8)
    n = tile_n * 32 + tl.arange(0, 32)
    t1 = tl.load(a + (m * 48)[:, None] + n[None, :], mask=((m < 20))[:, None] & ((n < 48))[None, :], other=0)
    t2 = tl.load(b + n, mask=(n < 48), other=0)
    t3 = (t1 * 0.5) * (tl.erf((t1 * 0.7071067811865476)) + 1.0)
    tl.store(out + ((m * 48)[:, None] + n[None, :]), t3 * t2[None, :], mask=((m < 20))[:, None] & ((n < 48))[None, :])
