# Generated; see test_warp_specialized_attention.py.
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

fetch_box = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # renamed after Triton 3.6


@gluon.jit
def attention_compute(g, out, queries, keys, values, queries_full, queries_empty, keys_full, keys_empty, values_full, values_empty, W: gl.constexpr):
    S: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    O: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 16, 16])
    P: gl.constexpr = gl.DotOperandLayout(0, O, 2)
    Q: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])
    B: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])
    STAGES: gl.constexpr = 2
    step = 0
    program = gl.program_id(0)
    tile = 1 - program // 2
    batch = program % 2
    i0 = batch
    tile_m = tile
    m = tile_m * 128 + W * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, S))
    m_stored = tile_m * 128 + W * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, B))
    n = gl.arange(0, 16, layout=gl.SliceLayout(0, O))
    n_stored = gl.arange(0, 16, layout=gl.SliceLayout(0, B))
    r16 = gl.arange(0, 16, layout=gl.SliceLayout(0, Q))
    t1 = gl.load(g + r16)
    mbarrier.wait(queries_full.index(0), 0 & 1)
    raw = queries.index(W).load(Q)
    t2 = raw.to(gl.float32)
    queries.index(W).store((t2 * t1.to(gl.float32)[None, :]).to(gl.float16))
    fence_async_shared()
    free3 = gl.minimum((tile_m * 128) + 1, 256) // 64 * 64
    begin = 0
    blocks = gl.maximum((gl.minimum((tile_m * 128 + 127) + 1, 256) - begin + 63) // 64, 1)
    cut = blocks - free3 // 64
    max4 = gl.full([64], float('-inf'), gl.float32, layout=gl.SliceLayout(1, S))
    acc6 = gl.full([64], 0.0, gl.float32, layout=gl.SliceLayout(1, S))
    acc5 = gl.zeros([64, 16], gl.float32, layout=O)
    slot = step % STAGES
    mbarrier.wait(keys_full.index(slot), (step // STAGES) & 1)
    coming = warpgroup_mma(queries.index(W), keys.index(slot).permute((1, 0)), gl.zeros([64, 64], gl.float32, layout=S), use_acc=False, is_async=True)
    r256_ = begin + (blocks - 1) * 64
    r256 = r256_ + gl.arange(0, 64, layout=gl.SliceLayout(0, S))
    t8 = gl.convert_layout(gl.sum(t2 * t2, 1), gl.SliceLayout(1, S))
    t9 = gl.rsqrt(((t8 * 0.0625) + 1e-06)) * 0.36067376022224085
    factor = t9
    score7 = warpgroup_mma_wait(0, deps=[coming])
    mbarrier.arrive(keys_empty.index(slot))
    t11 = gl.where((0 < ((m * -1)[:, None] + r256[None, :])), float('-inf'), score7)
    max4_new = gl.maximum(max4, gl.reduce(t11, 1, larger) * factor, tl.PropagateNan.ALL)
    max4_safe = gl.where(max4_new == float('-inf'), 0.0, max4_new)
    scale10 = gl.exp2(max4 - max4_safe)
    max4 = max4_new
    t12 = gl.exp2(((t11 * factor[:, None]) - max4_safe[:, None]))
    acc6 = acc6 * scale10 + gl.sum(t12, 1)
    weights = gl.convert_layout(t12.to(gl.float16), P)
    for block in range(1, blocks):
        ahead = (step + 1) % STAGES
        mbarrier.wait(keys_full.index(ahead), ((step + 1) // STAGES) & 1)
        coming = warpgroup_mma(queries.index(W), keys.index(ahead).permute((1, 0)), gl.zeros([64, 64], gl.float32, layout=S), use_acc=False, is_async=True)
        mbarrier.wait(values_full.index(slot), (step // STAGES) & 1)
        pending = warpgroup_mma(weights, values.index(slot), acc5, is_async=True)
        r256_ = begin + (blocks - 1 - block) * 64
        r256 = r256_ + gl.arange(0, 64, layout=gl.SliceLayout(0, S))
        score7 = warpgroup_mma_wait(1, deps=[coming])
        mbarrier.arrive(keys_empty.index(ahead))
        if block < cut:
            t13 = gl.where((0 < ((m * -1)[:, None] + r256[None, :])), float('-inf'), score7)
            logits = t13
        else:
            logits = score7
        max4_new = gl.maximum(max4, gl.reduce(logits, 1, larger) * factor, tl.PropagateNan.ALL)
        max4_safe = gl.where(max4_new == float('-inf'), 0.0, max4_new)
        scale14 = gl.exp2(max4 - max4_safe)
        max4 = max4_new
        t15 = gl.exp2(((logits * factor[:, None]) - max4_safe[:, None]))
        acc6 = acc6 * scale14 + gl.sum(t15, 1)
        acc5 = warpgroup_mma_wait(0, deps=[pending])
        mbarrier.arrive(values_empty.index(slot))
        acc5 = acc5 * gl.convert_layout(scale14, gl.SliceLayout(1, O))[:, None]
        weights = gl.convert_layout(t15.to(gl.float16), P)
        slot = ahead
        step += 1
    mbarrier.arrive(queries_empty.index(0))
    mbarrier.wait(values_full.index(slot), (step // STAGES) & 1)
    pending = warpgroup_mma(weights, values.index(slot), acc5, is_async=True)
    acc5 = warpgroup_mma_wait(0, deps=[pending])
    mbarrier.arrive(values_empty.index(slot))
    step += 1
    t16 = acc5 * gl.convert_layout(1.0 / acc6, gl.SliceLayout(1, O))[:, None]
    gl.store(out + ((i0 * 4096) + (m_stored * 16)[:, None] + n_stored[None, :]), gl.convert_layout(t16.to(gl.float16), B))


@gluon.jit
def attention_copy(q_box0, k_box1, v_box2, queries, keys, values, queries_full, queries_empty, keys_full, keys_empty, values_full, values_empty):
    STAGES: gl.constexpr = 2
    step = 0
    program = gl.program_id(0)
    tile = 1 - program // 2
    batch = program % 2
    i0 = batch
    tile_m = tile
    mbarrier.wait(queries_empty.index(0), 0 & 1 ^ 1)
    mbarrier.expect(queries_full.index(0), 4096)
    rows = tile_m * 128 + 0
    fetch_box(q_box0, [rows + i0 * 256, 0], queries_full.index(0), queries.index(0))
    rows = tile_m * 128 + 64
    fetch_box(q_box0, [rows + i0 * 256, 0], queries_full.index(0), queries.index(1))
    free3 = gl.minimum((tile_m * 128) + 1, 256) // 64 * 64
    begin = 0
    blocks = gl.maximum((gl.minimum((tile_m * 128 + 127) + 1, 256) - begin + 63) // 64, 1)
    cut = blocks - free3 // 64
    for block in range(blocks):
        slot = step % STAGES
        r256_ = begin + (blocks - 1 - block) * 64
        mbarrier.wait(keys_empty.index(slot), (step // STAGES) & 1 ^ 1)
        mbarrier.expect(keys_full.index(slot), 2048)
        fetch_box(k_box1, [r256_ + i0 * 256, 0], keys_full.index(slot), keys.index(slot))
        mbarrier.wait(values_empty.index(slot), (step // STAGES) & 1 ^ 1)
        mbarrier.expect(values_full.index(slot), 2048)
        fetch_box(v_box2, [r256_ + i0 * 256, 0], values_full.index(slot), values.index(slot))
        step += 1


@gluon.jit
def attention(g, out, q_box0, k_box1, v_box2):
    queries = gl.allocate_shared_memory(gl.float16, [2, 64, 16], gl.NVMMASharedLayout(swizzle_byte_width=32, element_bitwidth=16, rank=2))
    keys = gl.allocate_shared_memory(gl.float16, [2, 64, 16], k_box1.layout)
    keys_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    keys_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    values = gl.allocate_shared_memory(gl.float16, [2, 64, 16], v_box2.layout)
    values_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    values_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    queries_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(queries_full.index(0), count=1)
    queries_empty = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(queries_empty.index(0), count=2)
    for i in gl.static_range(2):
        mbarrier.init(keys_full.index(i), count=1)
        mbarrier.init(keys_empty.index(i), count=2)
        mbarrier.init(values_full.index(i), count=1)
        mbarrier.init(values_empty.index(i), count=2)
    fence_async_shared()
    gl.warp_specialize([
        (attention_compute, (g, out, queries, keys, values, queries_full, queries_empty, keys_full, keys_empty, values_full, values_empty, 0)),
        (attention_compute, (g, out, queries, keys, values, queries_full, queries_empty, keys_full, keys_empty, values_full, values_empty, 1)),
        (attention_copy, (q_box0, k_box1, v_box2, queries, keys, values, queries_full, queries_empty, keys_full, keys_empty, values_full, values_empty)),
    ], [4, 1], [240, 24])
