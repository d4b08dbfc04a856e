"""Repeated regions are found by structure, cover the graph once, and reassemble to the very same graph."""

from __future__ import annotations

from collections import Counter

import pytest

from tensor_graphs.egraph import api as t
from tensor_graphs.egraph import composite as c
from tensor_graphs.egraph.blocks import Blocks, compute_nodes, find_blocks, reassemble
from tensor_graphs.egraph.graph import Graph, Tensor

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


CASES = {
    "transformer": (transformer(24), 5, 24),
    "transformer by hand": (transformer(24, named=False), 6, 24),
    "mask input": (transformer(12, named=False, mask_input=True), 6, 12),
    "two windows": (transformer(12, named=False, windows=2), 7, 12),
    "ResNet": (cnn((3, 4, 6)), 9, 5),
    "NasRNN": (nasrnn(5), 2, 5),
    "U-Net": (unet(), 16, 2),
    "DiT": (dit(12), 4, 12),
    "KV cache": (cached(12), 3, 12),
}


@pytest.mark.parametrize("name", CASES)
def test_repeats_are_found(name: str) -> None:
    graph, most, times = CASES[name]
    blocks = checked(graph)
    assert len(blocks.unique) <= most, blocks
    assert max(repeats(blocks).values()) >= times, blocks
