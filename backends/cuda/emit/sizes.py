"""Makes CUDA C++ kernels for free sizes: sizes become integer parameters of kernels, and the grid an expression at the
launch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ....egraph.types.dims import DimExpr
from ...generate.size_fit import Fitted, LimitedFit

_WORD = re.compile(r"[A-Za-z_]\w*")


def sized_launch(launch: Any, statement: str, definitions: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Change the launch `statement` and the `definitions` (name -> source) of a kernel for fixed sizes so that they
    serve free sizes; returns both.

    The grid becomes an argument of the statement; `SIZES_<kernel name>` in it is a placeholder for the size arguments.
    """
    head = f'CudaKernel("{launch.name}", {launch.grid}, '
    own = definitions[launch.name].replace(head, f'SizedCudaKernel("{launch.name}", ', 1)
    statement = re.sub(
        rf"^({launch.name}\(.*)\)$",
        lambda m: f"{m[1]}SIZES_{launch.name}, grid={launch.grid})",  # a number ends where no letter follows
        statement,
        flags=re.MULTILINE,
    )
    return statement, {**definitions, launch.name: own}


def with_sizes(text: Any, name: str, sizes: Sequence[str], prefix: str) -> tuple[str, list[str]] | None:
    """Add an integer parameter, called `prefix` + size, to the kernel function `name` for each of `sizes` that occurs
    in `text`. Returns (kernel text, the sizes that occur).

    None if a size is used where the compiler needs a constant, such as a template argument, an array length or an
    assembler operand.
    """
    found = _spot_at_call(str(text.spelled(lambda value: _spelled(value, prefix))), prefix)
    used = [n for n in sizes if re.search(rf"\b{prefix}{n}\b", found)]
    if not used:
        return found, []
    if any(_constant(line, prefix) for line in found.splitlines() if prefix in line):
        return None
    head = re.search(rf"\n{name}\(([^)]*)\) \{{\n", found)
    if head is None:
        return None
    given = head[1].split(", ") if head[1] else []
    maps = [p for p in given if p.startswith("DESCRIBED ")]  # tensor maps come last in a launch
    addresses = [p for p in given if p not in maps]
    parameters = ", ".join([*addresses, *(f"const int {prefix}{n}" for n in used), *maps])
    return f"{found[: head.start()]}\n{name}({parameters}) {{\n{found[head.end() :]}", used


#: `Roles::spot` of warp_specialized/kernel.cuh where numbers of tiles are known at the call only.
SPOT = r"""#ifndef SPOT_AT
#define SPOT_AT  // kernels are compiled together
// The tile of a number: see Roles::spot.
template <class T, int ROWS, int COLUMNS, int RIGHTS, bool TURNS, int DOWN, int ACROSS, int PARTS, int STAGES, bool LEFT_ALONG, bool RIGHT_ALONG, int WAITING>
DEVICE Spot spot_at(
    const Roles<T, ROWS, COLUMNS, RIGHTS, TURNS, DOWN, ACROSS, PARTS, STAGES, LEFT_ALONG, RIGHT_ALONG, WAITING>& roles, int number,
    int rows, int columns, int most, int last_m, int last_n) {
    const int downwards = rows / DOWN, sidewards = columns / ACROSS, tile = number % (downwards * sidewards);
    const int above = tile / (most * sidewards) * most, high = downwards - above < most ? downwards - above : most, inside = tile % (most * sidewards);
    const int m = ((above + inside % high) * DOWN + (DOWN > 1 ? roles.block : 0)) * ROWS;
    const int n = (inside / high * ACROSS + (ACROSS > 1 ? roles.block : 0)) * COLUMNS;
    return {m < last_m ? m : last_m, n < last_n ? n : last_n, number / (downwards * sidewards)};
}
#endif
"""
_SPOT = re.compile(r"\broles\.spot<(.*)>\(tile\);")


def _spot_at_call(text: str, prefix: str) -> str:
    """The text with calls of `Roles::spot` replaced by `spot_at` where one of their template arguments depends on a
    size."""
    made = _SPOT.sub(lambda m: f"spot_at(roles, tile, {m[1]});" if re.search(rf"\b{prefix}\w", m[1]) else m[0], text)
    return made if made == text else made.replace('extern "C" __global__', f'{SPOT}extern "C" __global__', 1)


def _spelled(value: Fitted, prefix: str) -> str:
    if isinstance(value, LimitedFit):
        return f"{value.op}({_spelled(value.value, prefix)}, {value.limit})"
    if not isinstance(value, DimExpr):
        return str(value)
    return f"({_WORD.sub(lambda m: prefix + m[0], str(value)).replace('//', '/')})"


def _constant(line: str, prefix: str) -> bool:
    """Whether a line uses a size where the compiler needs a constant."""
    if re.search(r"\b(constexpr|template|static|asm|__launch_bounds__|case|__shared__|CudaKernel)\b", line):
        return True
    if any(re.search(rf"\b{prefix}\w", given) for given in _template_arguments(line)):
        return True
    return re.search(rf"^\s*(const )?\w[\w<>, ]* \w+\[[^\]]*\b{prefix}\w+[^\]]*\](\[[^\]]*\])*;", line) is not None


def _template_arguments(line: str) -> Iterator[str]:
    """The text of each list of template arguments: behind a `<` that follows a name without a space, up to its `>`."""
    for opened in re.finditer(r"\w<(?![<=])", line):
        depth, angles, end = 0, 1, opened.end()
        while end < len(line) and angles:
            c = line[end]
            depth += (c == "(") - (c == ")")
            angles += (not depth) * ((c == "<") - (c == ">"))
            end += 1
        yield line[opened.end() : end]


__all__ = ["sized_launch", "with_sizes"]
