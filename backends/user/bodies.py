"""Writes the source text of user kernels in emitted programs: definitions and call statements, by language."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from ...errors import KernelError
from ...extract.model.kernel import Call, contiguous, output_names
from .declare import PYTHON, Kernel, Launch
from .files import KernelFile

#: Helpers of emitted programs (keys of backends' `helpers`) that kernels of a language need.
SETUP = {
    "c": ("address", "c_function", "c_library"), "cuda": ("CudaKernel",), "triton": (), "numpy": ("user_kernel",),
    "torch": ("user_kernel",),
}  # fmt: skip


def launch_of(kernel: Kernel, known: Mapping[str, Any]) -> Launch:
    """Call a kernel's function for its source text and launch parameters; a text alone becomes a `Launch` with the
    defaults.

    `known`: values of the function's parameters by name. Raises KernelError if the function fails, or for any other
    result.
    """
    try:
        found = kernel.body(**{n: known[n] for n in kernel.parameters})
    except Exception as error:
        raise KernelError(f"the function of {kernel.name!r} fails: {type(error).__name__}: {error}",
                          where=f"{kernel.file}, {_shown(known)}") from None  # fmt: skip
    if isinstance(found, str):
        found = Launch(source=found)
    if not isinstance(found, Launch) or kernel.name not in getattr(found, "source", ""):
        raise KernelError(f"the function of {kernel.name!r} returns no source text with a function of that name",
                          where=str(kernel.file), hint="return the text, or tg.Launch(source=..., grid=...)")  # fmt: skip
    grid = found.grid if isinstance(found.grid, tuple) else (found.grid,)
    if not 1 <= len(grid) <= 3 or any(type(g) is not int or g < 1 for g in grid):
        raise KernelError(
            f"the grid of {kernel.name!r} is {found.grid!r}, not one to three positive integers",
            where=f"{kernel.file}, {_shown(known)}",
        )
    return found


def _shown(known: Mapping[str, Any]) -> str:
    return ", ".join(f"{n}={v!r}" for n, v in known.items())


class Body:
    """Source text of a user kernel with fixed `choices` (values of its schedule parameters), or with the choices in a
    call's schedule if `choices` is None: definitions and call statements."""

    def __init__(self, kernel: Kernel, file: KernelFile, choices: Mapping[str, int] | None) -> None:
        self.kernel, self.file, self.choices = kernel, file, choices
        self._launches: dict[str, Launch] = {}

    @property
    def identity(self) -> str:
        """Declared identity of the code in keys of stored measurements: the file's content and the kernel's name."""
        fixed = "" if self.choices is None else repr(sorted(self.choices.items()))
        return f"user:{self.file.digest}:{self.kernel.name}:{fixed}"

    def known(self, call: Call) -> dict[str, Any]:
        """Sizes, types, constants and choices of a call by name: arguments for the kernel's function.

        Raises KernelError at free sizes, unless the kernel is in Python and has no sizes in its parameters and
        conditions.
        """
        chosen = {n: v for n, v in call.schedule.items() if n in self.kernel.choices}
        fixed = self.choices if self.choices is not None else (chosen or self.kernel.variants()[0])
        found = self.kernel.known(call)
        if found is None:
            found = {n: call.attrs[n] for n in self.kernel.constants if n in call.attrs}
            asked = {*self.kernel.parameters} & {*self.kernel.axes, *self.kernel.types}
            if asked or self.kernel.where or self.kernel.sizes:
                raise KernelError(f"the kernel {self.kernel.name!r} works at fixed sizes only")
        return {**found, **fixed}

    def name(self, call: Call) -> str:
        """Name of the kernel in emitted source: unique for its content, the call and the choices."""
        key = repr((self.identity, sorted(self.known(call).items(), key=str), _strides(call)))
        return f"{self.kernel.name}_{blake2b(key.encode(), digest_size=5).hexdigest()}"

    def launch(self, call: Call) -> Launch:
        """Source text for a call and how it is launched, from the kernel's function (`launch_of`); cached. Raises
        KernelError as `launch_of` does."""
        name = self.name(call)
        if name not in self._launches:
            self._launches[name] = launch_of(self.kernel, self.known(call))
        return self._launches[name]

    def definitions(self, call: Call) -> dict[str, str]:
        """Python definitions that the call statement needs: name -> text."""
        name = self.name(call)
        return {name: _DEFINITIONS[self.kernel.language](self.kernel, name, self.launch(call))}

    def statement(self, call: Call) -> str:
        """The statement that runs a call."""
        outputs = output_names(len(call.outputs))
        if self.kernel.language in PYTHON:
            known = self.known(call)
            given = [f"{n}={call.names.get(n) or _literal(known[n])}" for n in self.kernel.parameters]
            found = f"user_kernel({str(self.file.path)!r}, {self.file.digest!r}, {self.kernel.name!r})"
            return f"{found}({', '.join(given)})"
        operands = ", ".join(call.names[n] for n in (*self.kernel.inputs, *outputs))
        name = self.name(call)
        if self.kernel.language != "triton":
            return f"{name}({operands})"
        launch = self.launch(call)
        options = {**launch.constants, "num_warps": launch.warps, "num_stages": launch.stages}
        return (
            f"{name}[{_tuple(launch.grid)}]({operands}, {', '.join(f'{n}={_literal(v)}' for n, v in options.items())})"
        )


def _literal(value: Any) -> str:
    """Python text of a size, type, constant or choice."""
    odd = isinstance(value, float) and not math.isfinite(value)
    return f'float("{float(value)}")' if odd else repr(value)


def _strides(call: Call) -> list[Any]:
    return [None if o.strides == contiguous(o.type.shape) else o.strides for o in call.buffers.values()]  # type: ignore[arg-type]


def _tuple(numbers: tuple[int, ...] | int) -> str:
    parts = numbers if isinstance(numbers, tuple) else (numbers,)
    return f"({', '.join(map(str, parts))}{',' if len(parts) == 1 else ''})"


def _quoted(text: str) -> str:
    """A Python string literal of a text, raw and triple-quoted if the text permits it."""
    if '"""' in text or text.endswith(("\\", '"')) or "\r" in text or "\0" in text:
        return repr(text)
    return f'r"""\n{text.strip(chr(10))}\n"""'


def _in_c(kernel: Kernel, name: str, launch: Launch) -> str:
    """Python definition of a C kernel, compiled as a separate library, so that the text's other functions and macros
    collide with no others."""
    return f'{name} = c_function(c_library({_quoted(launch.source)}), "{kernel.name}")'


def _in_triton(kernel: Kernel, name: str, launch: Launch) -> str:
    """Definition of a Triton kernel: the source with a suffix at all its top-level names, so that several kernels can
    be in one program. Raises KernelError if the source is no Python."""
    try:
        tree = ast.parse(launch.source)
    except SyntaxError as error:
        raise KernelError(f"the source of {kernel.name!r} is no Python: {error}", where=str(kernel.file)) from None
    suffix = name.rpartition("_")[2]
    own = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    own += [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)]
    text = "\n".join(
        line for line in launch.source.strip("\n").splitlines() if not re.match(r"(import|from) .*\btriton\b", line)
    )
    return re.sub(rf"(?<![\w.])({'|'.join(map(re.escape, own))})\b", rf"\1_{suffix}", text) if own else text


def _in_cuda(kernel: Kernel, name: str, launch: Launch) -> str:
    """Python definition of a CUDA C++ kernel in a separate namespace.

    Include directives come before the namespace, and macros are undefined after it.
    """
    text = re.sub(rf"\b{kernel.name}\b", name, launch.source)
    lines = text.strip("\n").splitlines()
    included = [line for line in lines if re.match(r"\s*#\s*include\b", line)]
    rest = [line for line in lines if line not in included]
    macros = [m[1] for line in rest if (m := re.match(r"\s*#\s*define\s+(\w+)", line))]
    whole = [*included, f"namespace user_{name} {{", *rest, "}", *(f"#undef {m}" for m in dict.fromkeys(macros))]
    body = "\n".join(whole).replace('"""', '" ""')
    block = launch.block if isinstance(launch.block, int) else _tuple(launch.block)
    grid = launch.grid[0] if len(launch.grid) == 1 else _tuple(launch.grid)
    return f'{name} = CudaKernel("{name}", {grid}, {block}, room={launch.shared}, text=r"""\n{body}\n""")'


_DEFINITIONS: dict[str, Callable[[Kernel, str, Launch], str]] = {"c": _in_c, "triton": _in_triton, "cuda": _in_cuda}

__all__ = ["SETUP", "Body", "launch_of"]
