"""Evaluates terms and graphs with Torch on a device: the reference for GPU kernels and programs.

The fast counterpart of `egraph.interpret`: in float64 mode the compute dtype of every float is float64 and casts
between floats are identities; composites are evaluated by their decompositions. Values are freed after their last
use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...costdb.keys.device import GPU_KIND
from ...egraph.evaluate.interpret import Around, expand_all
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.ir.weight_data import load_data
from ...egraph.ops.ops import Op
from ...egraph.ops.recurrence import scan
from ...egraph.types import dtypes
from ...egraph.types.dtypes import torch_dtype
from ...errors import UsageError

if TYPE_CHECKING:
    import torch

Attrs = Mapping[str, Any]
Function = Callable[..., Any]


def evaluate(root: Tensor, values: Mapping[str, torch.Tensor], *, wide: bool = True) -> torch.Tensor:
    """Value of a term as a Torch tensor.

    `wide`: compute floats in float64, else in their own dtypes. `values`: params by name, on one device. Raises
    UsageError for a leaf without a value or an op without a Torch function.
    """
    import torch

    where = next(iter(values.values())).device if values else torch.device("cpu")
    return _run([root], lambda leaf: values.get(leaf.attr("name")), where, wide=wide)[0]


def evaluate_graph(
    graph: Graph, values: Mapping[str, Any], *, float64: bool = False, device: str = GPU_KIND
) -> list[np.ndarray[Any, Any]]:
    """Values of a graph's roots as arrays, computed by Torch on a device. `values`: inputs and states by name;
    `float64`: all floats are float64."""
    from ..runtime.marshalling import array_of

    return [array_of(x) for x in evaluate_tensors(graph, values, device, float64=float64)]


def evaluate_tensors(
    graph: Graph, values: Mapping[str, Any], device: str, *, float64: bool = False,
    poll: Callable[[], object] = lambda: None, kept: dict[str, torch.Tensor] | None = None, around: Around | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """Values of a graph's roots as tensors on a device. `values`: arrays or tensors of inputs and states, by name;
    `float64`: all floats are float64.

    `kept`: params already on the device, by name; newly copied ones are added. `poll` is called before each operation;
    an exception from it ends the run. `around(node, operands, compute)`, if given, computes each operation.
    """
    import torch

    from ..runtime.marshalling import is_torch
    from ..runtime.upload import uploaded

    def given(leaf: Tensor) -> torch.Tensor | None:
        name, weight = str(leaf.attr("name")), leaf.op == "param"
        if weight and kept is not None and name in kept:
            return kept[name]
        data = (graph.params if weight else values).get(name)  # params may also hold initial states
        if data is None or is_torch(data):
            return data
        there = uploaded(data, device)
        if weight and kept is not None:
            kept[name] = there
        return there

    with torch.no_grad():
        return [
            x.contiguous()
            for x in _run(graph.roots, given, torch.device(device), wide=float64, poll=poll, around=around)
        ]


def _run(
    roots: Sequence[Tensor], given: Callable[[Tensor], torch.Tensor | None], where: torch.device, *, wide: bool,
    poll: Callable[[], object] = lambda: None, around: Around | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    tops = expand_all(list(roots))
    order = topological(tops)
    uses: dict[int, int] = {}
    for used in (*(a for node in order for a in node.args), *tops):
        uses[id(used)] = uses.get(id(used), 0) + 1
    live: dict[int, torch.Tensor] = {}
    for node in order:
        poll()
        compute = partial(_value, node, given=given, where=where, wide=wide)
        operands = [live[id(a)] for a in node.args]
        plain = around is None or node.entry.kind == "leaf"
        live[id(node)] = compute(operands) if plain else around(node, operands, compute)  # type: ignore[misc]
        del operands
        for a in node.args:
            uses[id(a)] -= 1
            if not uses[id(a)]:
                live.pop(id(a), None)
    return [live[id(top)] for top in tops]


def _value(
    node: Tensor, args: Sequence[torch.Tensor], given: Callable[[Tensor], torch.Tensor | None], where: torch.device,
    wide: bool,
) -> torch.Tensor:  # fmt: skip
    attrs = dict(node.attrs)
    if wide and "dtype" in attrs and dtypes.is_float(attrs["dtype"]):
        attrs["dtype"] = "float64"
    if node.entry.kind == "leaf":
        found = _leaf(node, attrs, given, where)
        if not found.is_floating_point():
            return found
        return found.double() if wide else found.to(torch_dtype(node.dtype))  # its storage dtype may be narrower
    made: torch.Tensor = _function(node.entry)(attrs, *args)
    return made


def _function(entry: Op) -> Function:
    """The function of attributes and operands that computes an op. Raises UsageError if there is none."""
    if entry.name in FUNCTIONS:
        return FUNCTIONS[entry.name]
    if entry.monoid in REDUCTIONS:
        return REDUCTIONS[entry.monoid]
    if (method := entry.methods.torch or entry.methods.torch_copy) is not None:
        return lambda attrs, x: getattr(x, method[0])(attrs[method[1]])
    known = entry.torch_function
    if known is None:
        raise UsageError(
            f"the reference knows no op called {entry.name!r}",
            hint="give its entry a torch_function, or add it to backends/verification/torch_reference.py",
        )
    return _arithmetic(known.name) if known.counted else _torch(known.name)


def _leaf(
    node: Tensor, attrs: Attrs, given: Callable[[Tensor], torch.Tensor | None], where: torch.device
) -> torch.Tensor:  # fmt: skip
    import torch

    from ..runtime.marshalling import tensor_of

    if node.op == "constant":
        assert node.data is not None
        return tensor_of(np.array(load_data(node.data))).to(where)
    if node.op == "full":
        return torch.full(attrs["shape"], attrs["value"], dtype=torch_dtype(attrs["dtype"]), device=where)
    if node.op == "iota":
        line = torch.arange(attrs["shape"][attrs["axis"]], device=where).to(torch_dtype(attrs["dtype"]))
        return line.reshape([-1 if i == attrs["axis"] else 1 for i in range(node.rank)]).expand(attrs["shape"])
    found = given(node)
    if found is None:
        raise UsageError(f"no data for {node.op} {attrs['name']!r} ({node.type})")
    return found


# ---------------------------------------------------------------- the table
def _torch(name: str) -> Function:
    """Function of attributes and operands that calls the Torch function `name` on the operands."""

    def run(attrs: Attrs, *args: Any) -> Any:
        import torch

        return getattr(torch, name)(*args)

    return run


def _arithmetic(name: str) -> Function:
    """Function of attributes and operands that calls the Torch function `name` (`_torch`). As in NumPy, bools are
    computed as 0 and 1, and nonzero results are true."""
    function = _torch(name)

    def run(attrs: Attrs, *args: Any) -> Any:
        made = function(attrs, *map(_counted, args))
        return made if args[0].is_floating_point() else made.to(args[0].dtype)

    return run


def _cast(attrs: Attrs, x: Any) -> Any:
    return x.to(torch_dtype(attrs["dtype"]))  # Torch truncates when casting to integers, as the op requires


def _rounded_to(half: str) -> Function:
    """Function that rounds floats to a 16-bit dtype; float64 values, which stand for real numbers, stay."""
    return lambda attrs, x: x if x.element_size() == 8 else x.to(torch_dtype(half)).to(x.dtype)


def _from_float8(attrs: Attrs, x: Any) -> Any:
    import torch

    return x.contiguous().view(torch.float8_e4m3fn).to(torch_dtype(attrs["dtype"]))


def _reduction(name: str) -> Function:
    def run(attrs: Attrs, x: Any) -> Any:
        import torch

        axes = list(attrs["axes"])
        if not axes:  # Torch would reduce over all axes
            return x
        if not x.numel() and name != "sum":
            return _of_nothing(name, axes, x)
        return getattr(torch, name)(x, dim=axes, keepdim=True).to(x.dtype)

    return run


def _of_nothing(name: str, axes: Sequence[int], x: Any) -> Any:
    import torch

    dtype = str(x.dtype).removeprefix("torch.")
    empty = dtypes.least(dtype) if name == "amax" else dtypes.greatest(dtype)
    return torch.full([1 if i in axes else d for i, d in enumerate(x.shape)], empty, dtype=x.dtype, device=x.device)


def _prod(attrs: Attrs, x: Any) -> Any:
    for axis in attrs["axes"]:
        x = _counted(x).prod(dim=axis, keepdim=True).to(x.dtype)
    return x


def _counted(x: Any) -> Any:
    """Integers and bools converted to int64, in which Torch accumulates; the cast back wraps as in NumPy."""
    return x if x.is_floating_point() else x.long()


def _argsort(attrs: Attrs, x: Any) -> Any:
    import torch

    return torch.argsort(x, dim=attrs["axis"], descending=attrs["descending"], stable=True)


def _matmul(attrs: Attrs, x: Any, y: Any) -> Any:
    import torch

    if not x.is_floating_point():  # GPUs have no integer GEMM; float64 is exact up to 2**53
        return torch.matmul(x.double(), y.double()).to(x.dtype)
    return torch.matmul(x, y)


def _conv(attrs: Attrs, x: Any, w: Any) -> Any:
    import torch

    if not x.is_floating_point():
        return _conv(attrs, x.double(), w.double()).to(x.dtype)
    n, pads = x.dim() - 2, attrs["pads"]
    padded = torch.constant_pad_nd(x, [p for i in reversed(range(n)) for p in (pads[i], pads[n + i])])
    return torch.convolution(
        padded, w, None, attrs["strides"], [0] * n, attrs["dilations"], False, [0] * n, attrs["groups"]
    )


def _slice(attrs: Attrs, x: Any) -> Any:
    return x[(slice(None),) * attrs["axis"] + (slice(attrs["start"], attrs["stop"], attrs["step"]),)]


def _windows(attrs: Attrs, x: Any) -> Any:
    span = attrs["dilation"] * (attrs["size"] - 1) + 1
    return x.unfold(attrs["axis"], span, attrs["stride"])[..., :: attrs["dilation"]]


def _concat(attrs: Attrs, x: Any, y: Any) -> Any:
    import torch

    return torch.cat((x, y), dim=attrs["axis"])


def _pad(attrs: Attrs, x: Any) -> Any:
    import torch

    widths = [0] * (2 * (x.dim() - 1 - attrs["axis"])) + [attrs["lo"], attrs["hi"]]
    return torch.constant_pad_nd(x, widths, attrs["value"])


def _gather(attrs: Attrs, x: Any, index: Any) -> Any:
    axis = attrs["axis"]
    flat = index.reshape(-1).long().clamp(0, x.shape[axis] - 1)
    return x.index_select(axis, flat).reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _from_the_end(index: Any, size: int) -> Any:
    """Indices with negative ones resolved from the end, as in NumPy; Torch needs int64."""
    index = index.long()
    return index + size * (index < 0)


def _gather_elements(attrs: Attrs, x: Any, index: Any) -> Any:
    size = x.shape[attrs["axis"]]  # an index out of range would invalidate the device context
    return x.gather(attrs["axis"], _from_the_end(index, size).clamp(0, size - 1))


def _scatter_elements(attrs: Attrs, x: Any, index: Any, updates: Any) -> Any:
    axis, mode = attrs["axis"], attrs["mode"]
    index = _from_the_end(index, x.shape[axis])
    if mode == "set":
        return x.scatter(axis, index, updates)
    return x.scatter_reduce(axis, index, updates, {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[mode])


def _recurrent(attrs: Attrs, x: Any, state: Any, w: Any) -> Any:
    import torch
    from torch.nn import functional

    acts = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu, "softplus": functional.softplus,
            "softsign": functional.softsign}  # fmt: skip
    wide = torch.float32 if x.element_size() == 2 else x.dtype
    return scan(x.to(wide), state.to(wide), w.to(wide), acts, torch.cat, **attrs).to(x.dtype)


#: Binary op that a reduction folds -> function of attributes and operands.
REDUCTIONS: dict[str, Function] = {
    "add": _reduction("sum"), "maximum": _reduction("amax"), "minimum": _reduction("amin"), "mul": _prod,
}  # fmt: skip
#: Atomic op that is neither elementwise nor a reduction, or cast -> function of attributes and operands.
FUNCTIONS: dict[str, Function] = {
    "cast": _cast,
    "from_float8": _from_float8,
    "to_float16": _rounded_to("float16"), "to_bfloat16": _rounded_to("bfloat16"),
    "argmax": lambda a, x: x.argmax(dim=a["axis"], keepdim=True),
    "argmin": lambda a, x: x.argmin(dim=a["axis"], keepdim=True),
    "cumsum": lambda a, x: _counted(x).cumsum(dim=a["axis"]).to(x.dtype),
    "argsort": _argsort,
    "matmul": _matmul, "conv": _conv, "recurrent": _recurrent,
    "reshape": lambda a, x: x.reshape(a["shape"]),
    "slice": _slice,
    "windows": _windows, "concat": _concat, "pad": _pad, "gather": _gather, "gather_elements": _gather_elements,
    "scatter_elements": _scatter_elements,
}  # fmt: skip
