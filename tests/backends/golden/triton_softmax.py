# Generated; see test_kernel_ir.py.
@triton.jit
def rows(a, out):
    program = tl.program_id(0)
    tile_m = program
    m = tile_m * 1 + tl.arange(0, 1)
    n = tl.arange(0, 64)
    t1 = tl.load(a + (m * 48)[:, None] + n[None, :], mask=(n < 48)[None, :], other=0)
    t2 = t1 * 0.5
    t3 = tl.reduce(tl.where((n < 48)[None, :], t2, float('-inf')), 1, larger)
    safe4 = tl.where(t3 == float('-inf'), 0.0, t3)
    t5 = tl.sum(tl.where((n < 48)[None, :], tl.exp(t2 - safe4[:, None]), 0.0), 1)
    tl.store(out + ((m * 48)[:, None] + n[None, :]), tl.exp(((t1 * 0.5) - t3[:, None])) / t5[:, None], mask=(n < 48)[None, :])
