"""Makes functions that call a GPU program at sizes at which it has not been called yet.

For each choice of sizes, the emitted function `at(*shapes)` makes views, a function that launches the kernels, and an
object for calls; this takes most of a first call's time on the host. Its operations are therefore recorded with
symbolic sizes (size_trace.py), and the record becomes a Python function whose launches are made by C (direct_calls.c).
At other sizes that satisfy the same conditions, that function evaluates the integer expressions, allocates results and
launches.

Programs with tensor descriptors of more than two axes, with states, or with Python code that cannot be recorded have no
such function: their emitted code makes all calls. `SizeCalls.why` has the reasons.

Imports: the standard library, `backends.runtime`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import modules
from types import SimpleNamespace
from typing import Any

from ...runtime.cpu_tensors import any_size_guard
from .size_call_writer import Differs, SizeCallWriter
from .size_trace import Tracer, Untraceable


@dataclass(frozen=True)
class SizeCallFailure:
    """Why a program's recorded call cannot be turned into a function for calls at other sizes (`why`), and for which
    shapes (`holds`, a predicate). After `attempts` failures, no further attempt is made at these shapes."""

    why: str
    holds: Callable[[Any], bool]
    attempts: int = 1


def holding(tracer: Tracer, ranks: Sequence[int]) -> Callable[[Any], bool]:
    """Function of the inputs' shapes that tells whether they satisfy the conditions that `tracer` has recorded, under
    which the emitted code takes the same branches as at the recorded sizes. `ranks`: number of axes of each input."""
    shapes = ", ".join(f"({''.join(f's{i}_{k}, ' for k in range(rank))})" for i, rank in enumerate(ranks))
    tests = list(tracer.conditions.values())
    reached = SizeCallWriter.reached(tests)
    lines = [f"[{shapes}] = shapes", *(f"{x.name} = {x.text}" for x in tracer.lines if id(x) in reached and x.name)]
    text = "\n        ".join([*lines, f"return {' and '.join(x.text for x in tests) or True}"])
    space: dict[str, Any] = dict(tracer.constants)
    exec(
        f"def holds(shapes):\n    try:\n        {text}\n    except (ValueError, ArithmeticError):\n        return False",
        space,
    )
    found: Callable[[Any], bool] = space["holds"]
    return found


def size_call(
    bound: Any, given: Sequence[Any], lock: Any, mode: Callable[[], bool]
) -> SizeCall | SizeCallFailure | str:  # fmt: skip
    """Make the function that calls the bound program `bound` at other sizes, from the recorded operations of its last
    call, which must be the first one with inputs of the shapes of `given`. Where that fails, returns the reason: a text
    if only this call is to blame, else a SizeCallFailure.

    Calls hold the lock `lock`. `mode()`: whether the caller is in a mode of Torch in which library kernels must not
    run.
    """
    torch, calls = modules["torch"], bound.last
    if calls is None or calls.ready:
        return "the call was not the first one at its sizes"
    if not calls.alike and bound.known.templates:
        return "a launch was not made from a recorded one"
    if any(type(x) is not torch.Tensor or not calls.fits(x) for x in given):
        return "inputs were copied"
    if calls.states or calls.private:
        return SizeCallFailure("states or results in the program's memory", lambda shapes: True)
    guard, tracer = any_size_guard(given), Tracer(bound.at.__globals__)
    if guard is None:
        return "PyTorch has no guard for such inputs"
    ranks = [x.dim() for x in given]
    try:
        results = tracer.run(bound.at, [tuple(x.shape) for x in given])
        writer = SizeCallWriter(tracer, results, bound.known, len(given))
        text = writer.text()
        memory = None if bound.workspace is None else bound.workspace.views.get(torch.uint8)
        writer.check(0 if memory is None else memory.data_ptr(), given)
    except Differs as error:  # once or twice, because another thread has called the program meanwhile
        return SizeCallFailure(str(error), holding(tracer, ranks), attempts=3)
    except Untraceable as error:
        return SizeCallFailure(str(error), holding(tracer, ranks))
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RuntimeError) as error:
        return SizeCallFailure(f"{type(error).__name__}: {error}", holding(tracer, ranks))
    strict, launched = calls.strict, type(calls).launched
    space = {
        **bound.at.__globals__, **tracer.constants, **writer.space, "own_acquire": lock.acquire, "own_release": lock.release, "own_mode": mode,
        "own_device": torch._C._cuda_getDevice, "own_stream": torch._C._cuda_getCurrentRawStream, "own_index": bound.index,
        "own_capturing": torch._C._cuda_isCurrentStreamCapturing, "own_workspace": bound.workspace, "own_calls": bound,
        "own_bytes": torch.uint8, "own_empty": _allocator(torch, calls.device), "own_guard": guard,
        "own_launched": lambda body: launched(SimpleNamespace(kernels=None, strict=strict, launch=body), ()),
    }  # fmt: skip
    exec(compile(text, "<call at any size>", "exec"), space)
    return SizeCall(space, text, holding(tracer, ranks))


def _allocator(torch: Any, device: Any) -> Callable[[Any, Any, Any], Any]:
    """A function of (shape, strides, dtype) that allocates a tensor on a device."""
    if device.type == "cuda" and (quick := getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)) is not None:
        made: Callable[[Any, Any, Any], Any] = quick
        return made
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device)


class SizeCall:
    """Function that calls a program at other sizes, made from the recorded operations of one call. `call(given)`: the
    results for the inputs `given`; None where the emitted code has to make the call. `holds(shapes)`: whether shapes
    satisfy the conditions on sizes that were recorded."""

    def __init__(self, space: dict[str, Any], text: str, holds: Callable[[Any], bool]) -> None:
        self.space, self.text, self.call, self.holds = space, text, space["call"], holds

    def takes(self, given: Sequence[Any]) -> bool:
        """Whether the inputs `given` have the Python types, dtypes, devices and PyTorch dispatch keys of the inputs of
        the recorded call."""
        return bool(self.space["own_guard"](*given))


class SizeCalls:
    """The functions that make calls of a program at sizes that it has not met, each for some ranges of sizes.

    At most `limit` calls at each choice of sizes are made by them. Later calls are made by the emitted code, which
    prepares views and launches for these sizes once, so that further calls take less time. `RECURRING`: the limit if a
    CUDA graph is the fastest launch mode; `PREPARED`: the limit if prepared calls become direct (direct_calls.py).
    """

    MOST, TRIES, RECURRING, PREPARED, KEPT = 8, 32, 8, 64, 1024

    def __init__(self) -> None:
        self.made: list[SizeCall] = []
        self.refused: list[SizeCallFailure] = []
        self.tries, self.limit = 0, self.RECURRING
        self.unmet = ""  # why the last call had no function, if that was due to this call
        self.seen: dict[Any, int] = {}

    def call(self, shapes: Any, *given: Any) -> Sequence[Any] | None:
        """Make a call on the inputs `given`, whose shapes are `shapes`; returns its results, or None where the emitted
        code has to make it."""
        count = self.seen.get(shapes, 0)
        if count >= self.limit:
            return None
        for one in self.made:
            found: Sequence[Any] | None = one.call(given)
            if found is not None:
                if len(self.seen) >= self.KEPT:
                    self.seen.clear()
                self.seen[shapes] = count + 1
                return found
        return None

    def learn(self, make: Callable[[], SizeCall | SizeCallFailure | str], bound: Any, given: Sequence[Any]) -> None:
        """Add the function for other sizes that `make()` returns, or its reason for none. To be called after the
        emitted code of `bound` made the first call at some sizes, with inputs `given`.

        `make` is not called for shapes for which there is a function or a final reason for none, nor after too many
        attempts.
        """
        flat, direct = bound.launch_mode == "flat", bound.known.complete and bool(bound.known.templates)
        self.limit = self.RECURRING if not flat else self.PREPARED if direct else 1 << 60
        if len(self.made) >= self.MOST or self.tries >= self.TRIES:
            return
        shapes = [tuple(x.shape) for x in given]
        failed = [one for one in self.refused if one.holds(shapes)]
        if failed and len(failed) >= failed[0].attempts:
            return
        if any(one.holds(shapes) and one.takes(given) for one in self.made):  # the workspace had to grow, say
            return
        found = make()
        if isinstance(found, str):  # another call may have one
            self.unmet = found
            return
        self.tries += 1
        if isinstance(found, SizeCallFailure):
            self.refused.append(found)
        else:
            self.made.insert(0, found)
            self.unmet = ""

    @property
    def why(self) -> list[str]:
        """Reasons, as sentences, why calls at some sizes are made by the emitted code instead of a function made for
        other sizes."""
        return list(dict.fromkeys([*(one.why for one in self.refused), *([self.unmet] if self.unmet else [])]))


__all__ = ["SizeCall", "SizeCallFailure", "SizeCalls", "size_call"]
