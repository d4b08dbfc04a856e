"""Writes the Python source of a function that calls a GPU program at sizes at which it has not been called yet, from
the recorded operations of one call (size_trace.py)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import addressof, string_at
from dataclasses import dataclass
from struct import pack
from sys import modules
from typing import Any

from ..helpers.any_size_launches import LaunchTemplate
from .direct_calls import MOST_TENSORS, c_function, driver_address
from .size_trace import Launched, Line, TracedSize, TracedTensor, Tracer, Untraceable, known_value

MOST_INTEGERS = 4 * MOST_TENSORS  # sizes that launches read, as in direct_calls.c
PACKED = {4: 1, 8: 2}  # bytes of an integer parameter -> kind of `Field` in direct_calls.c
POINTER = 0  # kind of `Field` of an address
DRIVER = ("cuLaunchKernelEx", "cuCtxSetCurrent", "cuTensorMapEncodeTiled")  # functions that direct_calls.c calls


@dataclass(frozen=True)
class TensorMap:
    """A tensor map (TMA descriptor) among the parameters of a recorded launch. `start`: its offset in the parameter
    memory; `base`, `where`: variable of the tensor that its address is relative to, and bytes from there; numbers of
    rows, of columns and of elements from row to row (`apart`); shape of the box (`block`); how it is encoded (`tile`:
    swizzle, bytes of an element, type of the elements, promotion in the L2 cache, as the driver numbers them)."""

    start: int
    base: str
    where: Any
    rows: Any
    columns: Any
    apart: Any
    block: Sequence[int]
    tile: tuple[int, int, int, int]

    @property
    def sizes(self) -> tuple[Any, ...]:
        """The address, numbers of rows and columns and row stride: all that may depend on sizes."""
        return self.where, self.rows, self.columns, self.apart


TRITON_PROMOTION = 2  # to 128 bytes (`write_tensor_map`)
OWN_TILE = 3, 2, 1, 3  # of `CudaKernel.described`: 128-byte swizzle, 16-bit integers, promotion to 256 bytes


def encoded(
    library: Any, where: int, rows: int, columns: int, apart: int, block: Sequence[int], tile: tuple[int, int, int, int] = OWN_TILE,
) -> bytes:  # fmt: skip
    """The tensor map (TMA descriptor, 128 bytes) of a matrix of `rows` by `columns` elements at the address `where`, in
    boxes of the shape `block`, encoded as `tile` says (`TensorMap`).

    `library`: the CUDA driver. `apart`: elements from a row to the next. Raises LookupError if the driver makes none.
    """
    swizzle, itemsize, kind, promotion = tile
    memory = ctypes.create_string_buffer(192)
    start = -(-addressof(memory) // 64) * 64
    encode = getattr(library, "cuTensorMapEncodeTiled", None)
    sizes, steps = (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(itemsize * apart)
    given = start, where, sizes, steps, (ctypes.c_uint32 * 2)(*block[::-1]), (ctypes.c_uint32 * 2)(1, 1)
    pointers = [ctypes.cast(x, ctypes.c_void_p) if isinstance(x, ctypes.Array) else ctypes.c_void_p(x) for x in given]
    more = [ctypes.c_int(x) for x in (0, swizzle, promotion, 0)]
    if encode is None or encode(pointers[0], ctypes.c_int(kind), ctypes.c_uint32(2), *pointers[1:], *more):
        raise LookupError("a tensor map cannot be encoded")
    return string_at(start, 128)


def mapped(like: LaunchTemplate) -> Sequence[Any]:
    """The tensor descriptors of Triton in a template whose maps can be encoded anew (`LaunchTemplate.mapped`); none in
    a program saved by an older version."""
    found: Sequence[Any] = getattr(like, "mapped", ())
    return found


class Differs(Untraceable):
    """Raised when launches computed from the recorded operations of a call differ from those that the emitted code made
    at the same sizes."""


class SizeCallWriter:
    """Writes the source of a Python function that calls a program at other sizes, from the recorded operations of one
    call; collects the values that the source refers to (`space`)."""

    def __init__(self, tracer: Tracer, results: Sequence[Line], known: Any, count: int) -> None:
        self.tracer, self.results, self.known, self.count = tracer, results, known, count
        self.space: dict[str, Any] = {}
        self.checks: list[tuple[LaunchTemplate, Any, Any]] = []  # (template, parameter, value at the recorded sizes)
        self.position = 0

    def text(self) -> str:
        """Python source of the function `call(given)`: it returns the results of a call, or None if a condition that
        was recorded does not hold for the inputs."""
        tracer, names = self.tracer, [f"x{i}" for i in range(self.count)]
        made = [(f"r{i}", self.spec(*spec)) for i, spec in enumerate(tracer.made.results)]
        launches = [x for x in tracer.lines if isinstance(x, Launched)]
        needed, takes = tracer.needed if isinstance(tracer.needed, TracedSize) else None, tracer.needed is not None
        templates = [self.template(one) for one in launches]
        body = self.body(dict(zip(map(id, launches), templates)))
        tests = list(tracer.conditions.values())
        first = self.reached(
            [*tests, *([needed.line] if needed is not None else []), *(x for _, spec in made for x in spec[1])]
        )
        effects = any(x.effect and not isinstance(x, Launched) for x in tracer.lines)
        lines = [
            "if not own_guard(*given): return None",
            f"{', '.join(names)}, = given",
            f"if not ({' and '.join(f'{x}.is_contiguous()' for x in names)}): return None",
            *(["if own_mode(): return None"] if effects else []),
            *(
                f"{''.join(f's{i}_{k}, ' for k in range(rank))} = {x}.shape"
                for i, (x, rank) in enumerate(zip(names, self.ranks))
                if rank
            ),
            *self.lines(first),
            *([f"if not ({' and '.join(x.text for x in tests)}): return None"] if tests else []),
            "if not own_acquire(False): return None",
            "try:",
            f"    if own_device() != own_index or own_capturing(){f' or own_workspace.size < {tracer.needed if needed is None else needed.line}' if takes else ''}: return None",
            "    stream = own_stream(own_index)",
            "    if stream != own_calls.last.stream: return None",
            *(["    spaces = own_workspace.views", "    memory = spaces[own_bytes]"] if takes else []),
            *(f"    {name} = own_empty({text})" for name, (text, _) in made),
        ]
        inner = [x for x in body if x not in set(self.lines(first))]
        handed = f"return ({''.join(f'{r}, ' for r in self.results)})"
        if effects:
            lines += ["    def body():", *(f"        {x}" for x in [*inner, handed]), "    return own_launched(body)"]
        else:
            lines += [f"    {x}" for x in [*inner, handed]]
        return "\n    ".join(["def call(given):", *lines, "finally:", "    own_release()"]) + "\n"

    @property
    def ranks(self) -> list[int]:
        """Number of axes of each input of the recorded call."""
        return [len(shape) for shape, *_ in self.tracer.made.inputs]

    def spec(self, shape: Any, dtype: Any, strides: Any) -> tuple[str, list[Line]]:
        """Python text of the arguments with which a result of this shape, dtype and strides (None: row-major) is
        allocated, and the lines that the text reads."""
        needs: list[Line] = []
        if strides is None:
            strides, step = [], 1
            for n in reversed(shape):
                strides, step = [step, *strides], step * n
        return ", ".join(self.tracer.spelled(x, needs) for x in (tuple(shape), tuple(strides), dtype)), needs

    def template(self, one: Launched) -> LaunchTemplate:
        """The template of the recorded launch `one`, from which launches at other sizes are made. Call it for the
        launches in the order in which they were recorded. Raises Untraceable if no template of the launch is known, or
        if the launch takes tensor descriptors of Triton of more than two axes."""
        found: LaunchTemplate | None = self.known.templates.get(self.known.key(self.position, one.kernel, one.options))
        self.position += 1
        if found is None or found.described or any(len(tile[3]) != 2 for *_, tile, _ in mapped(found)):
            raise Untraceable("a launch like no recorded one" if found is None else "a tensor descriptor of more axes")
        return found

    # ------------------------------------------------------------ lines
    @staticmethod
    def reached(roots: Sequence[Line]) -> set[int]:
        """Ids of the recorded lines `roots` and of all lines that they read, directly or indirectly."""
        found: set[int] = set()
        stack = list(roots)
        while stack:
            line = stack.pop()
            if id(line) not in found:
                found.add(id(line))
                stack += line.needs
        return found

    def lines(self, wanted: set[int]) -> list[str]:
        """Python statements of the recorded lines whose ids are in `wanted`, in order."""
        return [f"{x.name} = {x.text}" if x.name else x.text for x in self.tracer.lines if id(x) in wanted]

    def body(self, templates: Mapping[int, LaunchTemplate]) -> list[str]:
        """Python statements with side effects (launches, writes) and the lines that they read; consecutive launches
        become one statement. `templates`: id of a recorded launch -> its template."""
        effects = [x for x in self.tracer.lines if x.effect]
        for x in effects:
            if isinstance(x, Launched):
                self.reads(x, templates[id(x)])
        wanted, found, together = self.reached([*effects, *self.results]), [], []
        for x in self.tracer.lines:
            if isinstance(x, Launched):
                together.append(x)
            elif id(x) in wanted:
                if x.effect and together:
                    found.append(self.launches(together, templates))
                    together = []
                found.append(f"{x.name} = {x.text}" if x.name else x.text)
        return [*found, self.launches(together, templates)] if together else found

    def parameters(self, one: Launched, like: LaunchTemplate) -> list[tuple[int, int, Any]]:
        """Those parameters of the recorded launch `one` that are arguments of the call, as (kind of the C structure
        `Field`, offset in the parameter memory, value). `like`: the launch's template."""
        values = [*one.given, *one.options.get("sizes", ())]
        return [
            *((POINTER, start, values[k]) for start, k, _ in like.pointers),
            *((PACKED[size], start, values[k]) for start, size, k in like.numbers),
            *(
                (PACKED[size], start, n)
                for k, *_, sizes in mapped(like)
                for (start, size), n in zip(sizes, (*values[k].shape, *values[k].strides))
            ),
        ]

    @staticmethod
    def place(x: Any) -> tuple[Line | None, Any]:
        """Address of the operand `x` as (line of the tensor that it is relative to, bytes from there); (None, address)
        for a weight."""
        if isinstance(x, TracedTensor):
            return x._base, x._offset
        return None, x.data_ptr() if hasattr(x, "data_ptr") else x  # a weight

    def maps(self, one: Launched, like: LaunchTemplate) -> list[tuple[Line | None, TensorMap]]:
        """Tensor maps of the recorded launch `one`, each with the line of the tensor that its address is relative to
        (None: a weight). `like`: the launch's template. Raises Untraceable if their number differs from the template's.
        """
        boxes = one.options.get("boxes", ())
        if len(boxes) != len(like.boxes):
            raise Untraceable("tensor maps")
        found = []
        for (start, _), (x, (rows, columns), block, *apart) in zip(like.boxes, boxes):
            base, where = self.place(x)
            step = apart[0] if apart and apart[0] != 0 else columns
            name = "" if base is None else base.name
            found.append((base, TensorMap(start, name, where, rows, columns, step, tuple(block), OWN_TILE)))
        for k, start, _, (swizzle, itemsize, kind, block), _ in mapped(like):
            x = one.given[k]
            base, where = self.place(x.base)
            (rows, columns), (step, _) = x.shape, x.strides
            tile = swizzle, itemsize, kind, TRITON_PROMOTION
            name = "" if base is None else base.name
            found.append((base, TensorMap(start, name, where, rows, columns, step, tuple(block), tile)))
        return found

    def reads(self, one: Launched, like: LaunchTemplate) -> None:
        """Set the lines that the recorded launch `one` reads (`Line.needs`): tensors of its arguments, and sizes in its
        grid, arguments and tensor maps. `like`: the launch's template."""
        found: list[Line] = []
        integers: list[Any] = list(like.blocks(one.grid))
        for kind, _, x in self.parameters(one, like):
            base, offset = self.place(x) if kind == POINTER else (None, x)
            found += [] if base is None else [base]
            integers.append(offset)
        for base, box in self.maps(one, like):
            found += [] if base is None else [base]
            integers += box.sizes
        one.needs = (*found, *(x.line for x in integers if isinstance(x, TracedSize)))

    def launches(self, together: Sequence[Launched], templates: Mapping[int, LaunchTemplate]) -> str:
        """The Python statement that makes the consecutive launches `together` by one C function of their integers and
        tensors. `templates`: id of a launch -> its template."""
        integers: dict[str, int] = {}
        bases: dict[str, int] = {}
        texts = []

        def number(x: Any) -> int:
            """Index of an integer that depends on sizes, else the negative integer."""
            if not isinstance(x, TracedSize) and (type(x) is not int or x < 1):
                raise Untraceable("an integer of a launch")
            return integers.setdefault(x.line.name, len(integers)) if isinstance(x, TracedSize) else -x

        def address(base: str, offset: Any) -> tuple[int, int, int]:
            """(index of the tensor that an address is relative to or -1, index of an integer to add or -1, further
            bytes)."""
            if not isinstance(offset, TracedSize | int):
                raise Untraceable("an argument")
            tensor = bases.setdefault(base, len(bases)) if base else -1
            return (tensor, number(offset), 0) if isinstance(offset, TracedSize) else (tensor, -1, offset)

        for one in together:
            like, fields, boxes = templates[id(one)], [], []
            for kind, start, x in self.parameters(one, like):
                line, offset = self.place(x) if kind == POINTER else (None, x)
                base = "" if line is None else line.name
                fields.append(pack("=5q", kind, start, *address(base, offset)))
                self.checks.append((like, (kind, start, base), known_value(offset)))
            for _, box in self.maps(one, like):
                sizes = map(number, (box.rows, box.columns, box.apart))
                boxes.append(pack("=13q", box.start, *address(box.base, box.where), *sizes, *box.block, *box.tile))
                self.checks.append((like, box, [known_value(x) for x in box.sizes]))
            blocks: Sequence[Any] = like.blocks(one.grid)
            self.checks.append((like, None, [known_value(b) for b in blocks]))
            shape = pack("=10q", like.function.value, addressof(like.attribute), *like.block, like.shared, int(like.early),
                         *map(number, blocks))  # fmt: skip
            starts = pack(f"={len(like.starts)}q", *like.starts)
            texts.append((shape, string_at(like.base, like.size), starts, b"".join(fields), b"".join(boxes)))
        if len(integers) > MOST_INTEGERS or len(bases) > MOST_TENSORS - 2:
            raise Untraceable("too many arguments")
        driver = templates[id(together[0])].driver
        made = c_function("sized_launches")
        if made is None:
            raise Untraceable("there is no C compiler")
        name = f"own_run{len(self.space)}"
        held = [templates[id(one)] for one in together]
        functions = [driver_address(driver.library, n) for n in DRIVER]
        self.space[name] = made(
            (modules["torch"]._C.TensorBase.data_ptr, held, tuple(texts), *functions, driver.context.value or 0)
        )
        given = ", ".join(["stream", f"({''.join(f'{i}, ' for i in integers)})", *bases])
        return f"if not {name}({given}): return None"

    def check(self, memory: int, given: Sequence[Any]) -> None:
        """Check that the function written from the recorded call makes the launches that the emitted code has just made
        at the same sizes: integers, grids, and addresses and tensor maps in the workspace (at the address `memory`) and
        in the inputs `given` must equal those in the templates' parameter memory. Raises Differs if one does not."""
        starts = {"memory": memory, "": 0, **{f"x{i}": x.data_ptr() for i, x in enumerate(given)}}
        for like, parameter, value in self.checks:
            if parameter is None:
                same = list(like.config.grid) == value
            elif isinstance(parameter, TensorMap):
                if parameter.base not in starts:
                    continue
                there = string_at(like.parameters[like.starts.index(parameter.start)] or 0, 128)
                where, rows, columns, apart = value
                where += starts[parameter.base]
                same = there == encoded(
                    like.driver.library, where, rows, columns, apart, parameter.block, parameter.tile
                )
            else:
                kind, start, base = parameter
                if base not in starts:
                    continue
                size = 4 if kind == 1 else 8
                there = string_at(like.parameters[like.starts.index(start)] or 0, size)
                same = int.from_bytes(there, "little", signed=kind != POINTER) == value + starts[base]
            if not same:
                raise Differs("a launch differs from the emitted code's")
