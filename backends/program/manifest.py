"""Reads and writes the manifest of a program: names, shapes, structure and sizes, without weights and code.

`manifest.json` in a saved folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from math import prod
from typing import Annotated, Any, Literal

from ...egraph.ir.structure import pack, unpack
from ...egraph.ir.weight_data import Data
from ...egraph.ops.ops import Type
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, Shape, concrete, dim, parse
from ...errors import BadModelError, BadWeightsError, ShapeError, UsageError
from ...extract.model.plan import Plan
from ...plain import Malformed, Natural, Within, decode, strict_json
from ..device import HOST
from ..runtime.computed_indices import ComputedIndices
from ..runtime.fixed_arguments import FixedArgument
from ..runtime.index_limits import MOST_STEPS, IndexLimit, is_step
from ..user.templates import executed_file
from .buckets import Buckets
from .emit.emit_any_size import atoms_of
from .launch.emission import device_of, programs_of

Spec = tuple[str, tuple[int, ...], str]  # name, shape, dtype
SizedSpec = tuple[str, Shape, str]  # name, shape (may contain expressions in free sizes), dtype
SCHEMA = 1
MAX_VALUE_BYTES = 1 << 40  # maximum bytes of one value
STATE = "state:"  # key prefix of initial states; weight keys are identifiers, so no clash


@dataclass(frozen=True)
class Manifest:
    """Metadata of a program: everything except weights and code.

    `inputs`, `outputs`, `weights`, `states`: (name, shape, dtype) of each; sizes of inputs and outputs are expressions
    in free sizes. `structure`: nesting of the outputs. `workspace`: bytes of intermediate values. `fresh`: peak of
    further bytes that binding or a call allocates. `kernels`: number of kernel calls. `cost`, `lower_bound`: estimated
    µs of a call and the proven bound, 0 without prices. `device`: name of the device that runs the program.
    """

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
    initial: tuple[Spec, ...] = ()  # states with initial data; stored among the weights under `STATE` + name
    device: str = HOST.name
    hardware: str = ""  # name of the GPU the program was made for
    # free size -> (minimum, maximum, size the plan was chosen for)
    sizes: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    launch_mode: str = ""  # "flat", "graph" or "copying" (see gpu_calls.py); "": chosen by timing the first calls
    # of a GPU program with free sizes: calls at some sizes after which recording their launches pays; 0: not measured
    break_even: int = 0

    binaries: Mapping[str, str] = field(default_factory=dict)  # file of a compiled kernel -> its checksum
    compared: str = ""  # report text with both times, if the caller's own function was faster than the program
    # file of user kernels in Python that the program executes -> SHA-256 of its content
    kernel_files: Mapping[str, str] = field(default_factory=dict)
    buckets: Buckets | None = None  # ranges of a free size in which other plans run
    fixed: tuple[FixedArgument, ...] = ()  # arguments of the traced function that are constants of the program
    index_limits: tuple[IndexLimit, ...] = ()  # inputs that are indices, with the axes that they index
    computed_indices: ComputedIndices = field(
        default_factory=ComputedIndices
    )  # indices that are computed from inputs in other ways
    # weight -> the weight of the program around this plan that has the same value, and is not saved again
    borrowed: Mapping[str, str] = field(default_factory=dict)

    @property
    def chosen(self) -> dict[str, int]:
        """The free sizes, by name, with the values for which the plan was chosen."""
        return {name: size for name, (_, _, size) in self.sizes.items()}

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON data, in which size expressions are text."""
        spelled = {
            part: [(n, [d if isinstance(d, int) else str(d) for d in shape], dtype) for n, shape, dtype in specs]
            for part, specs in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        fields = {f: getattr(self, f) for f in self.__dataclass_fields__}
        divided = {} if self.buckets is None else self.buckets.to_json()
        return fields | spelled | {"structure": pack(self.structure), "buckets": divided}


def _spec(name: str, kind: Type) -> Spec:
    return name, concrete(kind.shape), kind.dtype


def _sized_spec(name: str, kind: Type) -> SizedSpec:
    return name, kind.shape, kind.dtype


def initial_states(plan: Plan, states: Iterable[tuple[str, Type]], params: Mapping[str, Data]) -> tuple[Spec, ...]:
    """(name, shape, dtype) of those of `states` (memory kept between calls) that `params` gives initial values. Raises
    BadWeightsError if a shape or dtype differs."""
    found = []
    taken = {n.attr("name") for n in plan.graph.leaves("param")}
    for name, kind in states:
        data = params.get(name) if name not in taken else None
        if data is not None:
            if tuple(data.shape) != concrete(kind.shape) or dtypes.name_of(data.dtype) != kind.dtype:
                raise BadWeightsError(f"state {name!r} is {kind}, its initial value {data.dtype}{list(data.shape)}")
            found.append(_spec(STATE + name, kind))
    return tuple(found)


def manifest_of(plan: Plan, emitted: Any, initial: tuple[Spec, ...]) -> Manifest:
    """The manifest of a plan and its emitted program; `initial`: states whose initial values are saved with the
    program, as (name, shape, dtype)."""
    graph = plan.graph
    return Manifest(
        graph.name,
        tuple(_sized_spec(leaf.attr("name"), leaf.type) for leaf in graph.inputs),
        tuple(_sized_spec(n, plan.values[v].type) for n, v in zip(graph.names, plan.outputs)),
        graph.structure,
        tuple(_spec(n, term.type) for n, term in emitted.weights.items()),
        tuple(_spec(n, kind) for n, kind in emitted.states.items()),
        emitted.layout.size, emitted.fresh_bytes, plan.kernels, plan.cost, plan.lower_bound, initial,
        device_of(plan), programs_of(device_of(plan)).hardware(),
        {name: (atom.min, atom.max, plan.sizes[name]) for name, atom in atoms_of(plan).items()},
        kernel_files={str(f.path): f.digest for s in plan.steps if (f := executed_file(s.template)) is not None},
    )  # fmt: skip


def manifest_json(manifest: Manifest, source: str) -> str:
    """Content of manifest.json, with the checksum of `source`, the program's source."""
    record = manifest.to_json()
    whole = {"schema": SCHEMA, "source_sha256": sha256(source.encode()).hexdigest(), **record}
    return json.dumps(whole, indent=1)


_Sizes = list[Annotated[int, Within(0, 1 << 62)] | str]  # text: an expression in the free sizes
_Row = tuple[str, list[Natural], list[Any]]  # an operation of `ComputedIndices`
_IndexLimit = tuple[str, int, int, list[list[int | str]], tuple[str, Natural] | None]  # three fields in older versions


@dataclass(frozen=True)
class _File:
    """Content of manifest.json, field by field."""

    schema: int
    source_sha256: str
    name: str
    inputs: list[tuple[str, _Sizes, str]]
    outputs: list[tuple[str, _Sizes, str]]
    structure: Any
    weights: list[tuple[str, list[Natural], str]]
    states: list[tuple[str, list[Natural], str]]
    initial: list[tuple[str, list[Natural], str]]
    workspace: Natural
    fresh: Natural
    kernels: Natural
    cost: float
    lower_bound: float
    device: str = HOST.name
    hardware: str = ""
    compared: str = ""
    launch_mode: Literal["", "flat", "graph", "copying"] = ""
    way: Literal["", "flat", "graph", "copying"] = ""  # `launch_mode` in files of older versions
    break_even: Natural = 0
    sizes: dict[str, tuple[Natural, Natural, Natural]] = field(default_factory=dict)
    binaries: dict[str, str] = field(default_factory=dict)
    kernel_files: dict[str, str] = field(default_factory=dict)
    buckets: dict[str, list[tuple[Natural, Natural, str]]] = field(default_factory=dict)
    borrowed: dict[str, str] = field(default_factory=dict)
    fixed: list[tuple[str, int, list[int | str], str]] = field(default_factory=list)
    index_limits: list[_IndexLimit | tuple[str, int, int]] = field(default_factory=list)
    computed_indices: tuple[list[_Row], list[tuple[Natural, int | str, int | str]]] = field(
        default_factory=lambda: ([], [])
    )


def read_manifest(text: str, source: str) -> Manifest:
    """The manifest with the content `text` of manifest.json. Raises BadModelError if it is malformed or `source` does
    not match its checksum."""
    try:
        record: _File = decode(_File, strict_json(text))
        if record.schema != SCHEMA:
            raise Malformed(f"schema {record.schema}, this version reads {SCHEMA}")
        if sha256(source.encode("utf-8", "surrogatepass")).hexdigest() != record.source_sha256:
            raise BadModelError("program.py is not the file that was saved", hint="save the program again")
        return _manifest(record)
    except (ValueError, ShapeError, UsageError) as error:
        reason = error.message if isinstance(error, UsageError) else str(error)
        raise BadModelError(f"manifest.json is malformed: {reason}", hint="save the program again") from None


def _manifest(record: _File) -> Manifest:
    """The manifest of a parsed file, with sizes as dimensions.

    Raises Malformed, ShapeError or UsageError if the file is inconsistent.
    """
    for name, (low, high, size) in record.sizes.items():
        if not low <= size <= high:
            raise Malformed(f"sizes.{name[:80]}: {size} is not within {low}..{high}")
    names = {n: dim(n, min=low, max=high) for n, (low, high, _) in record.sizes.items()}
    specs: dict[str, Any] = {}
    for part in ("inputs", "outputs", "weights", "states", "initial"):
        rows = getattr(record, part)
        specs[part] = tuple((n, tuple(_dim(d, names) for d in shape), dtypes.check(t)) for n, shape, t in rows)
        for n, shape, t in specs[part]:
            if prod(d for d in shape if isinstance(d, int)) * dtypes.itemsize(t) > MAX_VALUE_BYTES:
                raise Malformed(f"{part} {n[:80]!r}: it would have more than {MAX_VALUE_BYTES} bytes")
        if len({n for n, _, _ in rows}) != len(rows) and part != "outputs":
            raise Malformed(f"{part}: a name occurs twice")
    if not {n for n, _, _ in record.initial} <= {STATE + n for n, _, _ in record.states}:
        raise Malformed("initial: a name is not that of a state")
    programs_of(record.device)  # UsageError for an unknown device
    structure = unpack(record.structure, len(record.outputs))
    if structure is None and len(record.outputs) != 1:
        raise Malformed(f"structure: there are {len(record.outputs)} outputs and no structure for them")
    return Manifest(
        record.name, structure=structure, sizes=record.sizes, workspace=record.workspace, fresh=record.fresh,
        kernels=record.kernels, cost=record.cost, lower_bound=record.lower_bound, device=record.device,
        hardware=record.hardware, compared=record.compared, launch_mode=record.launch_mode or record.way, break_even=record.break_even,
        binaries=record.binaries, kernel_files=record.kernel_files, buckets=Buckets.of_json(record.buckets, record.sizes),
        borrowed=_borrowed(record), fixed=tuple(FixedArgument(n, i, tuple(p), v) for n, i, p, v in record.fixed),
        index_limits=tuple(map(_index_limit, record.index_limits)),
        computed_indices=_computed_indices(record), **specs,
    )  # fmt: skip


def _borrowed(record: _File) -> dict[str, str]:
    if not record.borrowed.keys() <= {n for n, _, _ in record.weights}:
        raise Malformed("borrowed: a name is not that of a weight")
    return record.borrowed


def _computed_indices(record: _File) -> ComputedIndices:
    """The computation of indices, whose operations are checked before the first call."""
    rows, targets = record.computed_indices
    return ComputedIndices(tuple((op, tuple(places), tuple(values)) for op, places, values in rows), tuple(targets))


def _index_limit(row: _IndexLimit | tuple[str, int, int]) -> IndexLimit:
    if len(row) == 3:
        return IndexLimit(*row)
    name, low, high, steps, axis_of = row
    if len(steps) > MOST_STEPS or not all(map(is_step, steps)):
        raise Malformed(f"index_limits: {name[:80]!r} has malformed steps")
    return IndexLimit(name, low, high, tuple(tuple(step) for step in steps), axis_of)


def _dim(value: int | str, names: Mapping[str, Dim]) -> Dim:
    return value if isinstance(value, int) else parse(value, names)
