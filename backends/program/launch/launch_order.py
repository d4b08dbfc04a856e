"""Checks an emitted GPU program, on its source text, for kernels that read memory before it is written (happens-before
check).

All launches of a program go to one stream. A kernel with programmatic dependent launch starts while its predecessor
runs, and may read before it waits for it (`await_previous`, `begin_early`). The check simulates memory: it follows
which value each byte range of the workspace holds while the launches run in order, and what each kernel accesses before
its wait. It is independent of the memory plan and of the emitters, whose output it reads.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

WORKSPACE, WEIGHT, STATE, CALLER = "workspace", "weight", "state", "caller"
EXTERNAL = frozenset((WEIGHT, STATE, CALLER))  # memory that work before the program writes
VIEWS = frozenset(
    ("as_strided", "expand", "flatten", "permute", "reshape", "squeeze", "t", "transpose", "unsqueeze", "view")
)
BYTES = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "float32": 4, "int64": 8,
         "float64": 8}  # fmt: skip
_SIGNATURE = re.compile(r"(\w+)\(([^()]*)\)\s*\{(.*)", re.DOTALL)
_STORES = frozenset(("store", "atomic_add", "async_copy_shared_to_global"))


@dataclass(frozen=True)
class ByteRange:
    """The bytes from `start` up to `end` (exclusive) of the memory called `name`. `kind`: "workspace", "weight",
    "state" or "caller" (the caller's tensors)."""

    kind: str
    name: str
    start: float = 0
    end: float = math.inf

    def overlaps(self, other: ByteRange) -> bool:
        """Whether two ranges have a byte in common."""
        return self.name == other.name and self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class KernelAccesses:
    """Memory accesses of a generated kernel, found in its text: names of its parameters and of its TMA descriptors
    (`boxes`), of those that it writes, and of those that it reads before it waits for the kernel launched before
    (`ahead`; None if it never waits). `early`: it may start before that kernel has ended (programmatic dependent
    launch)."""

    parameters: tuple[str, ...]
    boxes: tuple[str, ...]
    written: frozenset[str]
    ahead: frozenset[str] | None
    early: bool = False


@dataclass
class LaunchAccesses:
    """Memory accesses of one statement of a program: the ranges of bytes that it reads, writes, and reads before it
    waits for its predecessor (`ahead`).

    `early`: it starts while its predecessor runs. `waits`: no later than when it ends, its predecessor has ended.
    """

    text: str
    reads: list[ByteRange] = field(default_factory=list)
    writes: list[ByteRange] = field(default_factory=list)
    scratch: list[ByteRange] = field(default_factory=list)  # ranges of `writes` that must not overlap an operand
    ahead: list[ByteRange] = field(default_factory=list)
    early: bool = False
    waits: bool = True


def order_problems(source: str) -> list[str]:
    """Accesses of an emitted program of fixed sizes that nothing orders, as texts; empty if there are none."""
    launches, results = _Reader(ast.parse(source)).launches()
    return [*_memory_problems(launches, results), *_order_problems(launches)]


# ---------------------------------------------------------------- order of launches
def _order_problems(launches: Sequence[LaunchAccesses]) -> Iterator[str]:
    """Reads before a wait of what an unfinished launch may write; kernels that never wait.

    Calls may follow each other directly, and other work may come before a call, so two calls are simulated with work of
    the caller before each, which writes all external memory.
    """
    ended, problems = 0, set[str]()  # of all launches, the first ones, known to have ended when the next one starts
    caller, started = -1, dict[str, list[tuple[int, str, ByteRange]]]()  # writes so far, by name of the memory
    for k, one in enumerate([None, *launches, None, *launches]):
        if one is None:
            caller, ended = k, k
            continue
        if not one.early:
            ended = k
        elif not one.waits:
            problems.add(f"{one.text}: starts early and never waits")
        for memory in one.ahead if one.early else ():
            open_ = [text for at, text, x in started.get(memory.name, ()) if at >= ended and memory.overlaps(x)]
            if memory.kind in EXTERNAL and caller >= ended:
                open_.append("the caller's work")
            problems |= {
                f"{one.text}: reads {memory.name} before its wait, which {text} may still write" for text in open_
            }
        for x in one.writes:
            started.setdefault(x.name, []).append((k, one.text, x))
    yield from sorted(problems)


# ---------------------------------------------------------------- what memory holds
def _memory_problems(launches: Sequence[LaunchAccesses], results: Sequence[ByteRange]) -> Iterator[str]:
    """Reads of workspace whose value was overwritten or never written, and kernels whose results overlap operands."""
    held: list[ByteRange] = []  # ranges of the workspace with a value
    for one in launches:
        for x in one.reads:
            if x.kind == WORKSPACE and not _is_held(x, held):
                yield f"{one.text}: reads bytes {x.start} to {x.end} of the workspace, which hold no value or another one"
        for w in one.writes:
            for x in (*one.reads, *(o for o in one.writes if o is not w)):
                if w.overlaps(x) and (w != x or w in one.scratch):
                    yield f"{one.text}: writes bytes {w.start} to {w.end} of {w.name}, of which it uses {x.start} to {x.end}"
        for w in one.writes:
            if w.kind == WORKSPACE:
                held = [*(h for h in held if not h.overlaps(w)), w]
    for x in results:
        if x.kind == WORKSPACE and not _is_held(x, held):
            yield f"a result at bytes {x.start} to {x.end} of the workspace was overwritten"


def _is_held(x: ByteRange, held: Sequence[ByteRange]) -> bool:
    return any(h.start <= x.start and x.end <= h.end for h in held)


# ---------------------------------------------------------------- reading the source
class _Reader:
    """Reader of an emitted program's syntax tree."""

    def __init__(self, tree: ast.Module) -> None:
        bind = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "bind")
        self.launch = next(n for n in bind.body if isinstance(n, ast.FunctionDef) and n.name == "launch")
        self.kernels = dict(_kernels(tree))
        self.own = {a.arg for a in self.launch.args.kwonlyargs}
        self.memory: dict[str, ByteRange] = {a.arg: ByteRange(CALLER, a.arg) for a in self.launch.args.args}
        for statement in bind.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self._define(statement.targets[0].id, statement.value, WEIGHT)

    def launches(self) -> tuple[list[LaunchAccesses], list[ByteRange]]:
        """(launches of a call in order, memory of its results)."""
        found: list[LaunchAccesses] = []
        results: list[ByteRange] = []
        for statement in self.launch.body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                results = self._read(statement.value)
            elif isinstance(statement, ast.Assign):
                (target,) = statement.targets
                names = [ast.unparse(t) for t in (target.elts if isinstance(target, ast.Tuple) else [target])]
                read = self._read(statement.value)
                if self._view(statement.value) is None:
                    found.append(LaunchAccesses(ast.unparse(statement)[:120], read))
                for name in names:
                    self._define(name, statement.value, "returned by a library")
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                found.append(self._launch(statement.value))
        return found, results

    def _define(self, name: str, value: ast.expr, kind: str) -> None:
        """Note which memory a variable is."""
        view = self._view(value)
        function = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
        if view is not None:
            self.memory[name] = view
        elif function == "tensor_at" and isinstance(value, ast.Call):
            self.memory[name] = _placed(value)
        else:
            self.memory[name] = ByteRange(STATE if function == "kept" else kind, name)

    def _view(self, value: ast.expr) -> ByteRange | None:
        """The memory of an expression that is a variable, or a view of one; None for other expressions."""
        if isinstance(value, ast.Name):
            return self.memory.get(value.id)
        if isinstance(value, ast.Subscript):
            base = self._view(value.value)
            cut = value.slice
            if base is not None and isinstance(cut, ast.Slice) and base.name == WORKSPACE and _whole(cut):
                low, high = (ast.literal_eval(x) for x in (cut.lower, cut.upper) if x is not None)
                return ByteRange(WORKSPACE, WORKSPACE, base.start + low, base.start + high)  # bytes: scratch memory
            return base
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in VIEWS:
            return self._view(value.func.value)
        return None

    def _read(self, value: ast.AST) -> list[ByteRange]:
        """Memory that an expression mentions, parts of scratch memory as such."""
        if isinstance(value, ast.expr) and (view := self._view(value)) is not None:
            return [view]
        return [x for child in ast.iter_child_nodes(value) for x in self._read(child)]

    def _launch(self, call: ast.Call) -> LaunchAccesses:
        """A statement that launches kernels: a generated one, or those of a library."""
        name = call.func.value if isinstance(call.func, ast.Subscript) else call.func
        text = ast.unparse(call)[:120]
        if isinstance(name, ast.Name) and name.id in self.own and name.id in self.kernels:
            return self._own(text, call, self.kernels[name.id])
        reads, writes = ([x for e in part for x in self._read(e)] for part in self._library(call))
        return LaunchAccesses(text, reads, writes)

    def _library(self, call: ast.Call) -> tuple[list[ast.expr], list[ast.expr]]:
        """(operands, results) of a call of library kernels: `f(x, out=y)`, `f(x, out0=y, out1=z)`,
        `f(x, grad_input=y)`, `y.copy_(x)`, or a helper function, whose last operand is its result."""
        given = [*call.args, *(k.value for k in call.keywords if not _OUT.fullmatch(k.arg or ""))]
        if out := [k.value for k in call.keywords if _OUT.fullmatch(k.arg or "")]:
            return given, out
        if isinstance(call.func, ast.Attribute) and self._view(call.func.value) is not None:
            target = call.func.value
            return (given, [target]) if call.func.attr.endswith("_") else ([*given, target], [])
        last = [a for a in call.args if self._view(a) is not None][-1:]
        return [a for a in given if a not in last], last

    def _own(self, text: str, call: ast.Call, kernel: KernelAccesses) -> LaunchAccesses:
        options = {k.arg: k.value for k in call.keywords}
        boxed = options.get("boxes")
        tensors = [b.elts[0] for b in boxed.elts if isinstance(b, ast.Tuple)] if isinstance(boxed, ast.List) else []
        made = LaunchAccesses(text, early=kernel.early or "launch_pdl" in options, waits=kernel.ahead is not None)
        for name, given in (*zip(kernel.parameters, call.args), *zip(kernel.boxes, tensors)):
            described = (
                isinstance(given, ast.Call) and isinstance(given.func, ast.Name) and given.func.id == "described"
            )
            memory = self._read(given.args[0] if described and isinstance(given, ast.Call) else given)
            (made.writes if name in kernel.written else made.reads).extend(memory if name != "counters" else [])
            made.scratch += memory if name.startswith("part") else []
            made.ahead += memory if kernel.ahead is None or name in kernel.ahead else []
        return made


_OUT = re.compile(r"out\d*|grad_input")  # keywords of results


def _whole(cut: ast.Slice) -> bool:
    """Whether a slice has two numbers as its ends."""
    return isinstance(cut.lower, ast.Constant) and isinstance(cut.upper, ast.Constant)


def _placed(call: ast.Call) -> ByteRange:
    """The byte range of `tensor_at(memory, offset, shape, dtype, strides)`."""
    offset, shape = (ast.literal_eval(a) for a in call.args[1:3])
    strides = ast.literal_eval(call.args[4]) if len(call.args) > 4 else None
    count = math.prod(shape)
    if strides is not None and count:
        count = 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True))
    size = count * BYTES[ast.unparse(call.args[3]).rpartition(".")[2]]
    return ByteRange(WORKSPACE, WORKSPACE, offset, offset + size)


def _kernels(tree: ast.Module) -> Iterator[tuple[str, KernelAccesses]]:
    """The generated kernels of a program by name."""
    functions = {
        n.name: n for n in tree.body
        if isinstance(n, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in n.decorator_list)
    }  # fmt: skip
    for name, function in functions.items():
        yield name, _triton(function, functions)
    for n in tree.body:
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and isinstance(n.targets[0], ast.Name):
            options = {k.arg: k.value for k in n.value.keywords}
            if "text" in options and ast.unparse(n.value.func).endswith("CudaKernel"):
                yield n.targets[0].id, _cuda(ast.literal_eval(options["text"]), "early" in options)


def _triton(function: ast.FunctionDef, functions: Mapping[str, ast.FunctionDef]) -> KernelAccesses:
    """A Triton or Gluon kernel: it waits at its start, if at all. `functions`: those of the program, by name."""
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    waits = bool(body) and ast.unparse(body[0]) == "begin_early()"
    names = tuple(a.arg for a in function.args.args)
    return KernelAccesses(names, (), frozenset(_stored(function, functions)), frozenset() if waits else None)


def _stored(function: ast.FunctionDef, functions: Mapping[str, ast.FunctionDef]) -> set[str]:
    """The parameters of a Triton or Gluon function that it writes to, itself or in functions that it calls or gives to
    warps of their own (`gl.warp_specialize([(f, (x, y)), ...])`)."""
    names, found = {a.arg for a in function.args.args}, set[str]()
    for n in ast.walk(function):
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in _STORES and n.args:
            found |= _names(n.args[0])
        callee, given = _called(n)
        if callee in functions and callee != function.name:
            inner = _stored(functions[callee], functions)
            for parameter, argument in zip(functions[callee].args.args, given):
                found |= _names(argument) if parameter.arg in inner else set()
    return found & names


def _called(node: ast.AST) -> tuple[str, Sequence[ast.expr]]:
    """(name, arguments) of a call `f(x)` or of a pair `(f, (x,))`; no name for other nodes."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id, node.args
    if isinstance(node, ast.Tuple) and len(node.elts) == 2:
        first, second = node.elts
        if isinstance(first, ast.Name) and isinstance(second, ast.Tuple):
            return first.id, second.elts
    return "", ()


def _names(node: ast.expr) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _cuda(text: str, early: bool) -> KernelAccesses:
    """A CUDA C++ kernel: pointers to what it only reads are const."""
    found = _SIGNATURE.search(
        text.partition("__global__")[2].partition(")")[2] if "__launch_bounds__" in text else text
    )
    assert found is not None
    pairs = [
        (p.rpartition("*")[2].replace("__restrict__", "").strip() or p.split()[-1], p) for p in found[2].split(",")
    ]
    boxes = tuple(p.split()[-1] for _, p in pairs if "*" not in p)
    names = tuple(n for n, p in pairs if "*" in p)
    written = {n for n, p in pairs if "*" in p and "const" not in p} | {b for b in boxes if b.startswith("out")}
    ahead: frozenset[str] | None = None
    if "await_previous();" in found[3]:
        head = found[3].partition("await_previous();")[0]
        lines = [line for line in head.splitlines() if "warm<" not in line]
        ahead = frozenset(n for n in (*names, *boxes) if any(re.search(rf"(?<![.\w]){n}\b", line) for line in lines))
    return KernelAccesses(names, boxes, frozenset(written), ahead, early)


__all__ = ["order_problems"]
