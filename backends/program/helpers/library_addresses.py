"""Sets the addresses of library kernels' tensors in a recorded CUDA graph, where results show that this is right: a
helper of emitted GPU programs.

The source of the class is copied into emitted programs: it may use `torch` and the helpers of library_launches.py only.
"""

from __future__ import annotations

import ctypes
import warnings
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...ir.definitions import source_of
from .library_launches import library_launches

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class LibraryAddresses:
    """Finds the inputs and results of a recorded program that its library kernels may have elsewhere in later calls,
    by their addresses among the kernels' parameters and by the results of calls.

    `calls`: the program's `Calls`, whose fields `found`, `copied`, `wide` and `why_copied` are set. Inputs and results
    have the indices that they have there.
    """

    PROVING_S = 1.0  # seconds in which the tensors are found that library kernels may have elsewhere
    ROUNDING = 1e-3  # distance of results (`distance`) that sums in another order explain
    NOISE, MOST_NOISE = 4.0, 0.2  # such a distance relative to that of two equal calls, and the largest one allowed

    def __init__(self, calls: Any) -> None:
        self.calls = calls

    def find(self, given: Sequence[Any], stream: int) -> None:
        """Find the addresses of copied tensors among the parameters of library kernels, by recording the launches once
        more on other memory (library_launches.py): graphs then set them instead of copying. All are copied as before if
        the recordings differ; those tensors are with which the results are not those of a call that copies. Where equal
        calls differ, because kernels add in any order (gradients of weights), so may the results."""
        calls, copied = self.calls, self.calls.copied
        try:
            calls.found, numbers = self.addresses(given)
            proven = self.proven_among(given, stream, sorted(numbers))
            why = "addresses are not among the parameters" if proven == numbers else "results differ"
            calls.why_copied = why if calls.copied else ""
            if proven or not numbers:
                return
        except (LookupError, torch.cuda.OutOfMemoryError) as error:
            calls.why_copied = str(error)
        except RuntimeError as error:
            calls.why_copied = str(error)
            warnings.warn(f"calls of this program copy what library kernels use: {error}", RuntimeWarning, stacklevel=6)
        calls.copied, calls.wide, calls.found = copied, set(), []
        calls.instantiate(ctypes.c_void_p(calls.recorded.raw_cuda_graph()), calls.kernels.driver)

    def addresses(self, given: Sequence[Any]) -> tuple[list[Any], set[int]]:
        """Record the launches on other memory; returns `library_launches` of both recordings."""
        calls, alone = self.calls, vars(torch.cuda).setdefault("_programs_recording", Lock())
        graphs = calls.recorded, torch.cuda.CUDAGraph(keep_graph=True)
        with torch.inference_mode(False), torch.no_grad():
            moved = {i: calls.maker(i)() for i in sorted(calls.copied, reverse=True) if calls.places[i].nbytes}
        tensors = [
            given[i] if i in calls.pinned else moved.get(i, calls.places.get(i)) for i in range(len(calls.types))
        ]
        with alone:
            calls.captured_results(graphs[1], tensors, True)
        spans = [{i: (x[i].data_ptr(), x[i].nbytes) for i in moved} for x in (calls.places, moved)]
        raw = [ctypes.c_void_p(graph.raw_cuda_graph()) for graph in graphs]
        return library_launches(calls.kernels.driver, raw, {one.node.value for one in calls.kernels.table}, *spans)

    def proven_among(self, given: Sequence[Any], stream: int, numbers: list[int]) -> set[int]:
        """Set `copied` and `wide` for the tensors among `numbers` that calls may have elsewhere (`proven`), and return
        these: all of them, or what halving the rest again and again finds within `PROVING_S` seconds."""
        calls = self.calls
        every, copied = calls.places.keys(), calls.copied
        wanted = calls.replay(given, stream, every)
        limits = []
        for x, y in zip(calls.replay(given, stream, every), wanted):
            least = self.ROUNDING if y.is_floating_point() else 0.0
            limits.append(min(max(least, self.NOISE * self.distance(x, y)), self.MOST_NOISE))
        found, groups, until = set[int](), [numbers], perf_counter() + self.PROVING_S
        while groups and groups[-1] and perf_counter() < until:
            group = groups.pop()
            more = found | {*group}
            calls.copied, calls.wide = copied - more, {i for i in more if i < calls.count}
            if self.proven(given, stream, more, wanted, limits):
                found = more
            elif len(group) > 1:
                groups += [group[len(group) // 2 :], group[: len(group) // 2]]
        calls.copied, calls.wide = copied - found, {i for i in found if i < calls.count}
        return found

    def proven(self, given: Sequence[Any], stream: int, numbers: Any, wanted: Sequence[Any], limits: Any) -> bool:
        """Whether a call gives the results `wanted` (those on recorded memory) within `limits` (distance of each) with
        the tensors `numbers` elsewhere, and leaves their recorded memory as it is: all NaN, or zeros of other dtypes
        than floats. So is the memory of results before."""

        def blank(x: Any) -> Any:
            return x.fill_(torch.nan if x.is_floating_point() else 0)

        calls = self.calls
        used = [blank(calls.places[i]) for i in numbers]
        fresh, calls.fresh = calls.fresh, [lambda make=make: blank(make()) for make in calls.fresh]
        try:
            found = calls.replay(given, stream, calls.copied)
        finally:
            calls.fresh = fresh
        left = all(bool((x.isnan() if x.is_floating_point() else x == 0).all()) for x in used)
        return left and all(self.distance(x, y) <= limit for x, y, limit in zip(found, wanted, limits))

    @staticmethod
    def distance(x: Any, y: Any) -> float:
        """Distance of a result from another: relative to the other's norm, infinite if other elements are NaN or
        infinite; of integers the share of unequal elements."""
        if not y.is_floating_point():
            return float((x != y).double().mean()) if y.numel() else 0.0
        same = (x == y) | (x.isnan() & y.isnan()) | (x.isfinite() & y.isfinite())
        if not bool(same.all()):
            return float("inf")
        x, y = (v.double().nan_to_num(0.0, 0.0, 0.0) for v in (x, y))
        return float((x - y).norm() / y.norm().clamp_min(1e-300))


#: helper name -> source
HELPERS: dict[str, str] = {"LibraryAddresses": source_of(LibraryAddresses)}
