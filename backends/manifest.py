"""What is known of a program without its weights and code: names, shapes, structure, sizes; as `manifest.json` in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from ..egraph import dtypes
from ..egraph.dims import Shape, concrete, dim, parse
from ..egraph.graph import Data
from ..egraph.ops import Type
from ..errors import BadModelError, BadWeightsError
from ..extract.kernel import Plan
from . import gpu
from .emission import device_of
from .emit_sizes import atoms_of

Spec = tuple[str, tuple[int, ...], str]  # name, shape, dtype
SizedSpec = tuple[str, Shape, str]  # the same, sizes may be expressions
SCHEMA = 1
STATE = "state:"  # no weight's key starts so: keys are identifiers


@dataclass(frozen=True)
class Manifest:
    """What is known of a program without its weights and code."""

    name: str
    inputs: tuple[SizedSpec, ...]
    outputs: tuple[SizedSpec, ...]
    structure: Any
    weights: tuple[Spec, ...]
    states: tuple[Spec, ...]
    workspace: int
    fresh: int
    kernels: int
    cost: float
    lower_bound: float
    initial: tuple[Spec, ...] = ()  # the states that do not start as zeros, under their keys among the weights
    device: str = "cpu"
    hardware: str = ""  # the GPU that it was made for
    sizes: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)  # free sizes: least, largest, chosen for

    compared: str = ""  # where its calls were the caller's own function: both times

    @property
    def chosen(self) -> dict[str, int]:
        """The free sizes, with what each was when the program was chosen."""
        return {name: size for name, (_, _, size) in self.sizes.items()}

    def to_json(self) -> dict[str, Any]:
        """All fields; sizes that are expressions as texts."""
        spelled = {
            part: [(n, [d if isinstance(d, int) else str(d) for d in shape], dtype) for n, shape, dtype in specs]
            for part, specs in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        fields = {f: getattr(self, f) for f in self.__dataclass_fields__}
        return fields | spelled | {"structure": _pack(self.structure)}


def _spec(name: str, kind: Type) -> Spec:
    return name, concrete(kind.shape), kind.dtype


def _sized_spec(name: str, kind: Type) -> SizedSpec:
    return name, kind.shape, kind.dtype


def initial_states(plan: Plan, states: Iterable[tuple[str, Type]], params: Mapping[str, Data]) -> tuple[Spec, ...]:
    """Keys, shapes and dtypes of the states that params give a start. BadWeightsError where they do not fit."""
    found = []
    taken = {n.attr("name") for n in plan.graph.leaves("param")}
    for name, kind in states:
        data = params.get(name) if name not in taken else None
        if data is not None:
            if tuple(data.shape) != concrete(kind.shape) or dtypes.name_of(data.dtype) != kind.dtype:
                raise BadWeightsError(f"state {name!r} is {kind}, its start {data.dtype}{list(data.shape)}")
            found.append(_spec(STATE + name, kind))
    return tuple(found)


def manifest_of(plan: Plan, emitted: Any, initial: tuple[Spec, ...]) -> Manifest:
    """That of a plan and what was emitted for it."""
    graph = plan.graph
    return Manifest(
        graph.name,
        tuple(_sized_spec(leaf.attr("name"), leaf.type) for leaf in graph.inputs),
        tuple(_sized_spec(n, plan.values[v].type) for n, v in zip(graph.names, plan.outputs)),
        graph.structure,
        tuple(_spec(n, term.type) for n, term in emitted.weights.items()),
        tuple(_spec(n, kind) for n, kind in emitted.states.items()),
        emitted.layout.size, emitted.fresh_bytes, plan.kernels, plan.cost, plan.lower_bound, initial,
        device_of(plan), gpu.planned_for() if device_of(plan) == "cuda" else "",
        {name: (atom.min, atom.max, plan.sizes[name]) for name, atom in atoms_of(plan).items()},
    )  # fmt: skip


def _pack(structure: Any) -> Any:
    if isinstance(structure, Mapping):
        return {"dict": [[k, _pack(v)] for k, v in structure.items()]}
    if isinstance(structure, list | tuple):
        return {type(structure).__name__ if isinstance(structure, list) else "tuple": [_pack(v) for v in structure]}
    return structure


def _unpack(packed: Any) -> Any:
    if not isinstance(packed, dict):
        return packed
    ((kind, items),) = packed.items()
    if kind == "dict":
        return {k: _unpack(v) for k, v in items}
    return {"list": list, "tuple": tuple}[kind](_unpack(v) for v in items)


def manifest_json(manifest: Manifest, source: str) -> str:
    """The file's text, which knows the program's source."""
    record = manifest.to_json()
    whole = {"schema": SCHEMA, "source_sha256": sha256(source.encode()).hexdigest(), **record}
    return json.dumps(whole, indent=1)


def read_manifest(record: Mapping[str, Any], source: str) -> Manifest:
    """The manifest in a file. BadModelError where the source is another one; KeyError, TypeError or ValueError where it is malformed."""
    if record["schema"] != SCHEMA:
        raise ValueError(f"schema {record['schema']}, this version reads {SCHEMA}")
    if sha256(source.encode()).hexdigest() != record["source_sha256"]:
        raise BadModelError("program.py is not the file that was saved", hint="save the program again")
    sizes = {str(n): (int(low), int(high), int(size)) for n, (low, high, size) in record.get("sizes", {}).items()}
    names = {n: dim(n, min=low, max=high) for n, (low, high, _) in sizes.items()}
    specs: dict[str, Any] = {
        part: tuple(
            (str(n), tuple(parse(str(s), names) for s in shape), dtypes.check(d)) for n, shape, d in record[part]
        )
        for part in ("inputs", "outputs", "weights", "states", "initial")
    }
    numbers = {k: record[k] for k in ("workspace", "fresh", "kernels", "cost", "lower_bound")}
    numbers |= {"compared": str(record["compared"])} if "compared" in record else {}
    numbers |= {"device": str(record["device"]), "hardware": str(record["hardware"])} if "device" in record else {}
    return Manifest(str(record["name"]), structure=_unpack(record["structure"]), sizes=sizes, **specs, **numbers)
