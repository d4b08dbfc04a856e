"""Repeated regions are found by structure, cover the graph once, and reassemble to the very same graph."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.egraph.blocks.blocks import Blocks, compute_nodes, find_blocks
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.simplify.simplify import simplify

from ..examples import examples
from ..fuzz.reassembly import reassemble

B, T, D, H = 2, 8, 16, 2


# ---------------------------------------------------------------- models
def heads(x: Tensor) -> Tensor:
    return t.permute(t.reshape(x, (B, T, H, -1)), (0, 2, 1, 3))


def merged(x: Tensor) -> Tensor:
    return t.reshape(t.permute(x, (0, 2, 1, 3)), (B, T, D))


def norm(x: Tensor, name: str, named: bool) -> Tensor:
    gain = t.param(name, (D,))
    if named:
        return c.rms_norm(x, gain, eps=1e-6)
    return x * t.rsqrt(t.mean(x * x, -1, True) + 1e-6) * (gain + 1.0)


def turned(x: Tensor, cos: Tensor, sin: Tensor, named: bool) -> Tensor:
    if named:
        return c.rope(x, cos, sin)
    half = x.shape[-1] // 2
    return x * cos + t.concat([-x[..., half:], x[..., :half]], -1) * sin


def weight(name: str, *shape: int) -> Tensor:
    return t.transpose(t.param(name, shape[::-1]))


def transformer(layers: int, *, named: bool = True, windows: int = 1, mask_input: bool = False) -> Graph:
    """Embedding, attention with rotary positions and masks read by every layer, gated MLP, head."""
    x = t.gather(t.param("embed", (50, D)), t.input("ids", (B, T), "int64")) * 4.0
    positions = t.reshape(t.cast(t.input("positions", (B, T), "int64"), "float32"), (B, 1, T, 1))
    tables, masks = [], []
    for w in range(windows):
        angle = positions * t.reshape(t.param(f"freq{w}", (D // H,)), (1, 1, 1, D // H))
        tables.append((t.cos(angle), t.sin(angle)))
        ahead = t.iota((T, T), 1) - t.iota((T, T), 0)
        seen = t.le(ahead, 0) if not w else t.logical_and(t.le(ahead, 0), t.gt(ahead, -4))
        keep = t.cast(t.input("keep", (B, 1, 1, T), "int64"), "bool")
        mask = t.where(t.logical_and(t.reshape(seen, (1, 1, T, T)), keep), 0.0, -1e9)
        masks.append(t.input(f"mask{w}", (B, 1, T, T)) if mask_input else mask)
    for i in range(layers):
        (cos, sin), mask = tables[i % windows], masks[i % windows]
        y = norm(x, f"{i}.n1", named)
        q, k, v = (heads(y @ weight(f"{i}.{n}", D, D)) for n in "qkv")
        q, k = turned(q, cos, sin, named), turned(k, cos, sin, named)
        if named:
            out = c.masked_attention(q, k, v, mask, scale=0.3)
        else:
            out = c.softmax(q @ t.transpose(k) * 0.3 + mask, axis=3) @ v
        x = x + merged(out) @ weight(f"{i}.o", D, D)
        y = norm(x, f"{i}.n2", named)
        gate, up = y @ weight(f"{i}.gate", D, 2 * D), y @ weight(f"{i}.up", D, 2 * D)
        x = x + (c.silu(gate) * up) @ weight(f"{i}.down", 2 * D, D)
    return Graph.of(norm(x, "final", named) @ t.transpose(t.param("embed", (50, D))))


def cnn(stages: tuple[int, ...]) -> Graph:
    """A residual network with batch normalisation."""

    def conv(x: Tensor, name: str, out: int, size: int, stride: int) -> Tensor:
        w = t.param(f"{name}.w", (out, x.shape[1], size, size))  # type: ignore[arg-type]
        y = t.conv(x, w, strides=(stride, stride), pads=(size // 2,) * 4)
        return c.batch_norm(y, *(t.param(f"{name}.{n}", (out,)) for n in ("g", "b", "m", "v")), eps=1e-5)

    x = c.relu(conv(t.input("x", (1, 3, 32, 32)), "stem", 8, 3, 1))
    for s, count in enumerate(stages):
        for b in range(count):
            name, out, stride = f"{s}.{b}", 8 << s, 2 if b == 0 and s else 1
            y = conv(c.relu(conv(x, f"{name}.1", out, 3, stride)), f"{name}.2", out, 3, 1)
            x = c.relu(y + (conv(x, f"{name}.d", out, 1, stride) if stride == 2 else x))
    return Graph.of(t.mean(x, (2, 3)) @ t.param("head", (8 << (len(stages) - 1), 10)))


def nasrnn(steps: int) -> Graph:
    """A recurrent cell of eight gates, unrolled: two values live between steps, weights shared by all steps."""
    xs = t.input("x", (steps, 4, D))
    h, state = t.input("h", (4, D)), t.input("c", (4, D))
    for i in range(steps):
        x = t.reshape(t.slice_axis(xs, 0, i, i + 1), (4, D))
        g = [x @ t.param(f"wx{k}", (D, D)) + h @ t.param(f"wh{k}", (D, D)) for k in range(8)]
        a = [c.sigmoid(g[0]), c.relu(g[1]), c.sigmoid(g[2]), c.relu(g[3]), t.tanh(g[4]), c.sigmoid(g[5])]
        state = t.tanh(a[0] * a[1]) * c.sigmoid(state + a[2]) + t.tanh(a[3] + a[4])
        h = t.tanh(state * a[5]) + c.sigmoid(g[6]) * t.tanh(g[7])
    return Graph.of([h, state])


def resnet_block(x: Tensor, time: Tensor, name: str, out: int) -> Tensor:
    wide: int = x.shape[1]  # type: ignore[assignment]

    def half(x: Tensor, k: str, out: int) -> Tensor:
        y = c.silu(
            c.group_norm(x, t.param(f"{name}{k}g", (x.shape[1],)), t.param(f"{name}{k}s", (x.shape[1],)), groups=2)
        )
        return t.conv(y, t.param(f"{name}{k}w", (out, x.shape[1], 3, 3)), t.param(f"{name}{k}b", (out,)), pads=(1,) * 4)

    y = half(x, "1", out)
    shift = c.silu(time) @ t.param(f"{name}t", (D, out))
    y = half(y + t.reshape(shift, (1, out, 1, 1)), "2", out)
    return y + (x if out == wide else t.conv(x, t.param(f"{name}x", (out, wide, 1, 1))))


def unet(repeats: int = 2) -> Graph:
    """Two levels with skips that are concatenated on the way up, and a time embedding read by every block."""
    time = t.input("time", (1, D))
    time = c.silu(time @ t.param("t1", (D, D))) @ t.param("t2", (D, D))
    x = t.conv(t.input("x", (1, 4, 8, 8)), t.param("in", (8, 4, 3, 3)), pads=(1,) * 4)
    skips = [x]
    for level, width in enumerate((8, 16)):
        for r in range(repeats):
            x = resnet_block(x, time, f"d{level}{r}", width)
            skips.append(x)
        x = t.conv(x, t.param(f"down{level}", (width, width, 3, 3)), strides=(2, 2), pads=(1,) * 4)
        skips.append(x)
    for r in range(repeats):
        x = resnet_block(x, time, f"m{r}", 16)
    for level, width in ((1, 16), (0, 8)):
        for r in range(repeats + 1):
            skip = skips.pop()
            if skip.shape[2] != x.shape[2]:
                x = t.reshape(t.broadcast_to(t.reshape(x, (1, x.shape[1], x.shape[2], 1, x.shape[3], 1)),
                              (1, x.shape[1], x.shape[2], 2, x.shape[3], 2)), (1, x.shape[1], skip.shape[2], skip.shape[3]))  # fmt: skip
            x = resnet_block(t.concat([x, skip], 1), time, f"u{level}{r}", width)
    return Graph.of(t.conv(x, t.param("out", (4, 8, 3, 3)), pads=(1,) * 4))


def dit(layers: int) -> Graph:
    """Blocks modulated by six values of one conditioning vector."""
    cond = c.silu(t.input("time", (B, D)) @ t.param("t1", (D, D))) @ t.param("t2", (D, D)) + t.input("label", (B, D))
    x = t.input("x", (B, T, D)) @ t.param("patch", (D, D))
    one, zero = t.full((D,), 1.0), t.full((D,), 0.0)
    for i in range(layers):
        parts = t.split(t.expand_dims(c.silu(cond) @ t.param(f"{i}.ada", (D, 6 * D)), 1), [D] * 6, 2)
        y = c.layer_norm(x, one, zero, eps=1e-6) * (parts[1] + 1.0) + parts[0]
        q, k, v = (heads(y @ t.param(f"{i}.{n}", (D, D))) for n in "qkv")
        x = x + parts[2] * (merged(c.attention(q, k, v, scale=0.3)) @ t.param(f"{i}.o", (D, D)))
        y = c.layer_norm(x, one, zero, eps=1e-6) * (parts[4] + 1.0) + parts[3]
        x = x + parts[5] * (c.gelu_tanh(y @ t.param(f"{i}.up", (D, 2 * D))) @ t.param(f"{i}.down", (2 * D, D)))
    return Graph.of(x @ t.param("out", (D, D)))


def cached(layers: int) -> Graph:
    """One decoding step: keys and values are written into states, which each layer reads and updates."""
    x, position = t.input("x", (B, 1, D)), t.input("position", (1,), "int64")
    updates = {}
    for i in range(layers):
        y, kv = c.rms_norm(x, t.param(f"{i}.n", (D,)), eps=1e-6), []
        for n in "kv":
            old = t.state(f"{i}.{n}", (B, 9, D))
            index = t.broadcast_to(t.reshape(position, (1, 1, 1)), (B, 1, D))
            updates[f"{i}.{n}"] = t.scatter_elements(old, index, y @ t.param(f"{i}.w{n}", (D, D)), 1)
            kv.append(updates[f"{i}.{n}"])
        x = x + c.attention(y @ t.param(f"{i}.q", (D, D)), *kv, scale=0.3)
        x = x + c.gelu(x @ t.param(f"{i}.up", (D, D))) @ t.param(f"{i}.down", (D, D))
    return Graph.of(x, updates=updates)


# ---------------------------------------------------------------- checks
def checked(graph: Graph, max_nodes: int = 96) -> Blocks:
    """The blocks of a graph, after checking everything that holds for all graphs."""
    blocks = find_blocks(graph, max_nodes=max_nodes)
    again = reassemble(blocks)
    assert all(a is b for a, b in zip(again.roots, graph.roots, strict=True))
    done: set[Tensor] = set()
    for instance in blocks.instances:
        body = blocks.unique[instance.block].graph
        assert len(compute_nodes(body)) <= max_nodes
        assert [n.attr("name") for n in body.inputs] == [f"in{k}" for k in range(len(instance.inputs))]
        for leaf, value in zip(body.inputs, instance.inputs, strict=True):
            assert leaf.type == value.type
            assert value.op == "input" or value in done  # instances come in topological order
        assert [o.type for o in body.outputs] == [o.type for o in instance.outputs]
        done |= set(instance.outputs)
    sizes = sum(len(compute_nodes(blocks.unique[i.block].graph)) for i in blocks.instances)
    assert sizes == len(compute_nodes(graph))  # with the identity above: every compute node exactly once
    return blocks


def repeats(blocks: Blocks) -> Counter[int]:
    return Counter(i.block for i in blocks.instances)


#: name -> graph, how many unique blocks at most, how many nodes the block that occurs most has, and how often it occurs
CASES: dict[str, tuple[Graph, int, int, int]] = {
    "transformer": (transformer(24), 3, 24, 24),
    "transformer by hand": (transformer(24, named=False), 4, 39, 24),
    "mask input": (transformer(12, named=False, mask_input=True), 4, 39, 12),
    "two windows": (transformer(12, named=False, windows=2), 7, 39, 12),
    "ResNet": (cnn((3, 4, 6)), 7, 7, 5),
    "NasRNN": (nasrnn(5), 2, 45, 5),
    "U-Net": (unet(3), 12, 12, 3),
    "DiT": (dit(12), 3, 36, 12),
    "KV cache": (cached(12), 2, 12, 12),
}


@pytest.mark.parametrize("name", CASES)
def test_repeats_are_found(name: str) -> None:
    graph, most, size, times = CASES[name]
    blocks = checked(graph)
    assert len(blocks.unique) <= most, blocks
    ((index, count),) = repeats(blocks).most_common(1)
    assert (len(compute_nodes(blocks.unique[index].graph)), count) == (size, times), blocks


@pytest.mark.parametrize("name", ["transformer by hand", "two windows"])
def test_what_many_layers_read_is_an_input(name: str) -> None:
    """An attention block reads the stream, cos, sin and the mask; an MLP block the stream alone; each gives one
    value."""
    blocks = checked(CASES[name][0])
    shapes = {len(i.inputs) for i in blocks.instances if repeats(blocks)[i.block] == max(repeats(blocks).values())}
    assert shapes == {4, 1}
    assert all(len(i.outputs) == 1 for i in blocks.instances if repeats(blocks)[i.block] > 2)


def test_alternating_windows_share_one_block() -> None:
    """Layers of two windows differ in the masks and tables that they read, not in their structure."""
    one, two = (checked(transformer(6, named=False, windows=w)) for w in (1, 2))
    assert max(repeats(one).values()) == max(repeats(two).values()) == 6


def test_each_layer_prepares_its_own_weights() -> None:
    blocks = checked(transformer(3, named=False))
    most = max(repeats(blocks), key=lambda k: repeats(blocks)[k])
    body = blocks.unique[most].graph
    assert sum(n.op == "permute" and n.args[0].op == "param" for n in body.nodes()) == 4
    assert all(p.op == "param" for i in blocks.instances if i.block == most for p in i.params)


def test_prepared_weights_that_several_read_are_params() -> None:
    shared = t.param("table", (D, D)) * 2.0
    x = t.input("x", (T, D))
    for i in range(20):
        x = t.tanh(c.rms_norm(x, t.param(f"{i}", (D,)), eps=1e-6) @ shared) + x
    blocks = checked(Graph.of(x), max_nodes=20)
    assert len(blocks.instances) > 1
    assert all(any(shared is p for p in i.params) for i in blocks.instances)


def chain(weights: list[Tensor]) -> Graph:
    x = t.input("x", (4, D))
    for k in range(0, len(weights), 2):
        x = t.tanh(c.softmax(x @ weights[k], axis=1) @ weights[k + 1]) + x
    return Graph.of(x)


def test_tied_weights_are_part_of_the_structure() -> None:
    w = [t.param(f"w{i}", (D, D)) for i in range(8)]
    apart = checked(chain(w), max_nodes=5)
    tied = checked(chain([*w[:4], w[4], w[4], w[5], w[5]]), max_nodes=5)
    assert [i.block for i in apart.instances] == [0, 0, 0, 0]
    assert [i.block for i in tied.instances] == [0, 0, 1, 1]
    assert len(tied.instances[3].params) == 1


def scaled(factors: list[Any]) -> Graph:
    x = t.input("x", (4, 40))
    for f in factors:
        x = t.tanh(c.softmax(x * f, axis=1) * 3.0) + x
    return Graph.of(x)


def test_constants_and_attributes_are_part_of_the_structure() -> None:
    same = checked(scaled([2.0, 2.0, 2.0]), max_nodes=5)
    other = checked(scaled([2.0, 4.0, 2.0]), max_nodes=5)
    zeros = checked(scaled([0.0, -0.0, 0.0]), max_nodes=5)
    assert [i.block for i in same.instances] == [0, 0, 0]
    assert [i.block for i in other.instances] == [i.block for i in zeros.instances] == [0, 1, 0]


def test_large_constants_are_params() -> None:
    small = [np.full((1, 40), k, np.float32) for k in range(3)]
    large = [np.full((4, 40), k, np.float64) for k in range(3)]
    cast = [t.cast(t.constant(a), "float32") for a in large]
    assert [i.block for i in checked(scaled([t.constant(a) for a in small]), max_nodes=5).instances] == [0, 1, 2]
    assert [i.block for i in checked(scaled(cast), max_nodes=5).instances] == [0, 0, 0]


def test_names_do_not_matter_and_the_result_is_deterministic() -> None:
    first, second = find_blocks(transformer(4)), find_blocks(transformer(4))
    assert first.unique == second.unique and first.instances == second.instances
    renamed = repr(find_blocks(cnn((2, 2))).unique[0].graph)
    assert "stem" not in renamed


def test_instances_compute_the_model() -> None:
    """Running every block's own graph on the values of its instance, in order, gives what the model gives."""
    graph = unet(1)
    rng = np.random.default_rng(0)
    leaves = {n: rng.uniform(0.5, 1, n.shape) for n in graph.nodes() if n.op in ("input", "param")}
    by_name = {n.attr("name"): a for n, a in leaves.items()}
    known: dict[Tensor, Any] = dict(leaves)
    blocks = checked(graph)
    for instance in blocks.instances:
        body = blocks.unique[instance.block].graph
        for p in instance.params:
            known.setdefault(p, evaluate([p], {}, params=by_name, float64=True)[0])
        given_ = {f"in{k}": known[v] for k, v in enumerate(instance.inputs)}
        weights = {f"w{k}": known[v] for k, v in enumerate(instance.params)}
        known.update(zip(instance.outputs, evaluate(body, given_, params=weights, float64=True), strict=True))
    expected = evaluate(graph, by_name, params=by_name, float64=True)
    np.testing.assert_allclose(known[graph.outputs[0]], expected[0], rtol=1e-12)


def test_long_graphs_without_repeats_are_cut() -> None:
    x = t.input("x", (4, D))
    for i in range(400):
        x = (t.tanh, t.exp, t.abs)[i * i % 3](x) + float(i)
    blocks = checked(Graph.of(x), max_nodes=60)
    assert 14 <= len(blocks.instances) <= 40
    assert all(len(i.inputs) == len(i.outputs) == 1 for i in blocks.instances)


def test_graphs_with_nothing_to_compute() -> None:
    x, w = t.input("x", (2,)), t.param("w", (2,))
    assert checked(Graph.of([x, w + w, w])).instances == ()
    assert len(checked(Graph.of([x, x + w, x + w, w])).instances) == 1


@st.composite
def random_graphs(draw: Any) -> Graph:
    """Any directed graph: nodes over earlier nodes, inputs, states and weights, several outputs and updates."""
    pool = [t.input("x", (4, 4)), t.state("s", (4, 4)), t.param("w", (4, 4)), t.full((4, 4), 2.0)]
    ops = (
        lambda a, b: a + b,
        lambda a, b: a @ b,
        lambda a, b: t.tanh(a),
        lambda a, b: a * b,
        lambda a, b: t.transpose(a),
    )
    for _ in range(draw(st.integers(1, 60))):
        near = st.integers(max(0, len(pool) - 6), len(pool) - 1)
        a, b = (pool[draw(st.one_of(near, st.integers(0, len(pool) - 1)))] for _ in range(2))
        pool.append(draw(st.sampled_from(ops))(a, b))
    outputs = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))
    return Graph.of([*outputs, pool[-1]], updates={"s": pool[-2]})


@settings(deadline=None, max_examples=examples(75))
@given(random_graphs(), st.sampled_from((1, 3, 10, 96)))
def test_any_graph_is_covered_once_and_reassembles(graph: Graph, max_nodes: int) -> None:
    checked(graph, max_nodes)


# ---------------------------------------------------------------- exported models
#: name -> its sizes, how many unique blocks at most, and how often each of the layer's blocks occurs
EXPORTED: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "BERT": ("Encoder", {"layers": 3}, 3, 3),
    "GPT-2": ("Gpt2", {"layers": 3}, 3, 3),
    "Llama": ("Llama", {"layers": 3}, 4, 3),
    "Gemma": ("Gemma", {"layers": 3}, 4, 3),
    "DiT": ("DiT", {"layers": 3}, 5, 3),
}


@pytest.fixture(scope="module")
def modules() -> Any:
    pytest.importorskip("torch")
    path = Path(__file__).parents[1] / "models" / "modules.py"
    spec = importlib.util.spec_from_file_location("block_test_modules", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_models(name: str, modules: Any) -> None:
    """Models traced by torch.export, with mask and position inputs where the architecture has them."""
    from tensor_graphs.models.torch_export.export import load_module

    kind, sizes, most, times = EXPORTED[name]
    example = {"BERT": "encoder", "GPT-2": "gpt2"}.get(name, name.lower())
    graph = load_module(getattr(modules, kind)(**sizes).eval(), modules.example(example)[1])
    blocks = checked(simplify(graph))
    assert len(blocks.unique) <= most, blocks
    covered = sum(
        len(compute_nodes(blocks.unique[k].graph)) * n for k, n in repeats(blocks).items() if n in (times, 2 * times)
    )
    assert covered >= 0.8 * len(compute_nodes(blocks.graph)), blocks


def test_a_layer_behind_its_tables_is_the_same_block() -> None:
    """The first layer's beginning runs on from the embedding and the tables of positions: found there as it is in the
    others, so that queries, keys and values of one product lie in one block everywhere."""
    heads, kv, d, places, w = 4, 2, 8, 16, 32
    at = t.input("at", (1,), "int64")
    angles = t.reshape(t.cast(at, "float32"), (1, 1, 1)) * t.constant(
        np.linspace(1, 0, d // 2, dtype=np.float32)
    ).reshape((1, 1, d // 2))
    angles = t.reshape(t.concat([angles, angles], 2), (1, 1, 1, d))
    cos, sin = t.cos(angles), t.sin(angles)
    seen = t.reshape(t.le(t.iota((1, places), 1), t.reshape(at, (1, 1))), (1, 1, 1, 1, places))
    spot = t.broadcast_to(t.reshape(at, (1, 1, 1, 1)), (1, kv, 1, d))
    h = t.cast(t.gather(t.param("table", (50, w), "bfloat16"), t.input("ids", (1, 1), "int64"), 0), "float32")
    updates = {}
    for n in range(4):

        def normed(x: Tensor, name: str, n: int = n) -> Tensor:
            return x * t.rsqrt(t.mean(x * x, axis=2, keepdims=True) + 1e-6) * t.param(f"{name}{n}", (w,))

        def part(x: Tensor, name: str, count: int, n: int = n) -> Tensor:
            return t.reshape(t.matmul(x, t.param(f"{name}{n}", (w, count * d))), (1, count, 1, d))

        def rotated(x: Tensor) -> Tensor:
            a, b = t.slice_axis(x, 3, 0, d // 2), t.slice_axis(x, 3, d // 2, d)
            return x * cos + t.concat([-b, a], 3) * sin

        x = normed(h, "gain")
        k, v = (
            t.scatter_elements(t.cast(t.state(f"{name}{n}", (1, kv, places, d), "bfloat16"), "float32"), spot, new, 2)
            for name, new in (("keys", rotated(part(x, "k", kv))), ("values", part(x, "v", kv)))
        )
        updates |= {f"keys{n}": t.cast(k, "bfloat16"), f"values{n}": t.cast(v, "bfloat16")}
        q = t.reshape(rotated(part(x, "q", heads)), (1, kv, heads // kv, 1, d))
        wide = [t.reshape(s, (1, kv, 1, places, d)) for s in (k, v)]
        scores = t.where(seen, t.matmul(q, t.permute(wide[0], (0, 1, 2, 4, 3))), t.full((1, 1, 1, 1, 1), -1e9))
        out = t.matmul(c.softmax(scores, axis=4), wide[1])
        h = h + t.matmul(t.reshape(out, (1, 1, w)), t.param(f"o{n}", (w, w)))
        x = normed(h, "after")
        h = h + t.matmul(c.silu(t.matmul(x, t.param(f"up{n}", (w, 2 * w)))), t.param(f"down{n}", (2 * w, w)))
    graph = Graph.of({"out": h}, updates=updates, name="layers")
    blocks = find_blocks(graph)
    for n in range(4):
        wanted = {f"{name}{n}" for name in "qkv"}
        assert any(wanted <= {p.attr("name") for p in i.params} for i in blocks.instances), (n, repr(blocks))
