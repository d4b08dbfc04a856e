"""Makes one C function for a whole call of a bound GPU program (one with its weights in place): no code of the emitted
program runs between the caller and the driver.

Once a program's launch mode is final (`Calls` in gpu_calls.py), every call checks the same conditions, allocates
results, writes addresses and launches: some forty Python operations, most of a small program's time on the host. The
function that `direct_call` returns (direct_calls.c, CPython's API) does the same in C. It returns None if a condition
does not hold; then the emitted program's own code makes the call.

The C code is compiled on first use, and kept beside compiled C kernels; for a program that a user calls
(`c_function_without_waiting`) in a thread of its own. Without a compiler or Python's headers there is no such function.

Imports: the standard library, `backends.runtime`, `private`, `processes`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from shlex import split
from struct import pack
from subprocess import SubprocessError
from sys import implementation, modules
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, NamedTuple
from weakref import ref

from ....private import code_folder, read_sealed, sealed
from ....processes.commands import command_output, descendants
from ....processes.ending import at_end
from ....processes.forks import Lock, in_forked_child
from ...runtime.compile_clock import compiler_seconds, is_bounded
from ...runtime.cpu_tensors import tensor_guard
from .device_programs import Direct

NEEDED = ("executable", "fits", "fresh", "handed", "kernels", "places", "ready", "settled", "stream", "launch_mode")
MOST_TENSORS = 2048  # inputs and results of a call: MOST in direct_calls.c
SOURCE = Path(__file__).with_name("direct_calls.c")
CFunction = Callable[[tuple[Any, ...]], Any]

_compiling: dict[tuple[str, Path, str], Thread] = {}  # threads of `c_function_without_waiting`
_starting = Lock()


class CText(NamedTuple):
    """A C file as it is compiled: where the library is kept, the source, and the compiler's command without files."""

    path: Path
    source: str
    command: list[str]


def _c_text(file: Path, include: str) -> CText | None:
    """How a C file is compiled on this machine; None if it cannot be."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED") or not header.is_file():
        return None
    source = f'#define PY_SSIZE_T_CLEAN\n#include "{header}"\n{file.read_text(encoding="utf-8")}'
    try:
        compiler = split(os.environ.get("CC") or "cc")
    except ValueError:  # an open quotation
        return None
    command = [*compiler, "-std=gnu11", "-O2", "-shared", "-fPIC",
               f"-I{sysconfig.get_path('platinclude')}", *([f"-I{include}"] if include else [])]  # fmt: skip
    key = repr((source, command, sysconfig.get_config_var("EXT_SUFFIX")))
    folder = code_folder("c")
    if folder is None:
        return None
    return CText(folder / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.so", source, command)


@cache
def c_function(name: str, file: Path = SOURCE, include: str = "") -> CFunction | None:
    """Compile a C file; returns its function `tensor_graphs_<name>` as a Python function of one tuple. None if it
    cannot be compiled on this machine. `include`: a further folder of headers, which is part of what is compiled."""
    text = _c_text(file, include)
    if text is None:
        return None
    try:
        library = ctypes.CDLL(str(text.path)) if _kept(text.path) else _compiled(*text)
    except (OSError, SubprocessError):
        return None
    address = ctypes.cast(getattr(library, f"tensor_graphs_{name}"), ctypes.c_void_p).value or 0
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(address)


def c_function_without_waiting(name: str, file: Path, include: str = "") -> CFunction | None:
    """`c_function` for the call of a program, which waits for no compiler: where one is needed and no budget bounds
    it (`compilers_within`), it runs in a thread, and the function is None until it has ended."""
    key, text = (name, file, include), _c_text(file, include)
    if text is None or is_bounded() or _kept(text.path):
        return c_function(*key)
    with _starting:
        if (thread := _compiling.get(key)) is None:
            thread = Thread(target=c_function, args=key, name="compiling calls", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the process is ending, or may have no thread more now
                return None
            _compiling[key] = thread
            at_end(_end_compiler, thread)
    return None if thread.is_alive() else c_function(*key)


def _end_compiler(thread: Thread) -> None:
    """End the compiler that a thread of this process waits for; on Linux."""
    if not thread.is_alive():  # another thread may have its id
        return
    with suppress(OSError):  # it has ended by itself
        for pid in map(int, Path(f"/proc/self/task/{thread.native_id}/children").read_text().split()):
            for one in (*descendants(pid), pid):
                os.kill(one, 9)


@in_forked_child
def _forget_threads() -> None:
    _compiling.clear()  # the parent's


def _kept(path: Path) -> bool:
    """Whether a compiled library is in a private folder and not damaged."""
    try:
        read_sealed(path, name=path.name)
    except (OSError, ValueError):
        return False
    return True


def _compiled(path: Path, source: str, command: Sequence[str]) -> ctypes.CDLL:
    """The compiled library of a C source, kept at a path in a private folder. Raises OSError or SubprocessError."""
    with TemporaryDirectory(prefix=".compile-", dir=path.parent) as part:
        text, made, whole = (Path(part) / name for name in ("call.c", "call.so", "sealed.so"))
        text.write_text(source, encoding="utf-8")
        environment = {**os.environ, "TMPDIR": part}
        given = [*command, "-o", str(made), str(text)]
        command_output(given, compiler_seconds(len(source)), environment)
        whole.write_bytes(sealed(made.read_bytes(), path.name))
        whole.chmod(0o600)
        whole.replace(path)
    return ctypes.CDLL(str(path))


class DirectCalls:
    """The direct function (a call as one C function) for inputs of one choice of shapes, and when to try to make it.

    `call`: the function; None if there is none (yet). `wait`: number of calls until the next attempt to make one (0: no
    attempt). Attempts become rarer and end after `MOST` functions, because inputs may have other strides, devices or
    dispatch keys at each call.
    """

    __slots__ = ("call", "made", "pause", "wait")
    MOST = 4

    def __init__(self, wait: int) -> None:
        self.call: Direct | None = None
        self.wait, self.pause, self.made = wait, 1, 0

    def learn(self, make: Callable[[], Direct | None]) -> Direct | None:
        """Try to make a direct function, after a call that the emitted program made; `make()` returns it, or None.
        Returns the function to use from now on; None if there is none."""
        found = make()
        if found is None:
            self.wait, self.pause = self.pause, 2 * self.pause
            return self.call
        self.call, self.made = found, self.made + 1
        self.wait = 1 if self.made < self.MOST else 0
        return found


def final(bound: Any) -> Any:
    """The `Calls` object that made the last call of the bound program `bound`, if its launch mode is final and its
    launches run without the emitted program's code; else None."""
    sized = hasattr(bound, "kept")
    calls: Any = getattr(bound, "last", None) if sized else bound
    if not all(hasattr(calls, name) for name in NEEDED):  # none yet, or of a program saved by an older version
        return None
    if not calls.ready or (sized and not calls.settled and calls.launch_mode != bound.launch_mode):
        return None
    mode = calls.launch_mode
    whole = mode == "graph" if calls.executable is not None else mode == "flat" and calls.complete
    return calls if whole else None


def _turned(bound: Any, calls: Any) -> bool:
    """Make `calls` the last calls of a program of every size (`CallsBySize.prepared`); False if the program has dropped
    them."""
    shapes = tuple([shape for shape, _, _ in calls.types[: calls.count]])
    if bound.kept.get(shapes) is not calls:
        return False
    bound.kept[shapes] = bound.kept.pop(shapes)
    calls.stream, calls.stream_object, bound.last = bound.last.stream, bound.last.stream_object, calls
    if hasattr(calls, "used_on"):  # not of a program saved by an older version
        calls.used_on(calls.stream, calls.stream_object)
    return True


def direct_call(bound: Any, given: Sequence[Any], lock: Any) -> Direct | None:
    """Make the C function for calls of the bound program `bound` with inputs like `given`, the inputs of its last call;
    None if it cannot be made now or ever. Calls hold the lock `lock`."""
    calls, torch = final(bound), modules["torch"]
    if calls is None or len(calls.types) > MOST_TENSORS:
        return None
    graph = calls.executable is not None
    table = [*calls.kernels.table, *getattr(calls, "found", ())] if graph else calls.kernels.table
    if not table:
        return None
    if any(type(x) is not torch.Tensor or not calls.fits(x) for x in given):
        return None
    made, guard = c_function("direct_call"), tensor_guard(given) if given else None
    if made is None or (given and guard is None):
        return None
    owner = None if calls is bound else bound
    wide = getattr(calls, "wide", ()) if graph else ()  # a program saved by an older version has none
    fixed = frozenset(calls.places if graph else ())
    pinned = getattr(calls, "pinned", {}) if graph else {}
    makers = [None if i in fixed else pinned.get(i, i in wide) if i < calls.count else _parts(calls.fresh[i - calls.count])
              for i in range(len(calls.types))]  # fmt: skip
    results = [_result(k, *pair) for k, pair in enumerate(calls.handed)]
    spans = {(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()) for x in _private(calls)}
    names = ("cuLaunchKernelEx", "cuTensorMapReplaceAddress", "cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch")
    capturing = torch._C._cuda_isCurrentStreamCapturing if graph or owner is not None else None
    weak = ref(calls)
    found: Direct = made((
        weak, owner, None if owner is None else lambda: _turned(owner, weak()), lock.acquire, lock.release, guard,
        torch._C.TensorBase.data_ptr, torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream, calls.index, capturing,
        [], tuple(makers), tuple(results), ref(calls.executable) if graph else table,
        b"".join(_slots(table)), b"".join(map(_launch, table)), b"".join(pack("=QQ", a, a + n) for a, n in sorted(spans)),
        calls.count, calls.reuse, *[driver_address(table[0].driver.library, name) for name in names],
        calls.executable.value if graph else 0,
    ))  # fmt: skip
    return found


def _parts(make: Any) -> Any:
    """A function without arguments that allocates a tensor, as (function, arguments …)."""
    return (make.func, *make.args) if isinstance(make, partial) and not make.keywords else (make,)


def _result(position: int, number: int, view: Any) -> Any:
    """A result in the form of `result` in direct_calls.c, from its entry in `Calls.handed`."""
    if number < 0:
        return -1 - position
    return number if view is None else (number, *view)


def _private(calls: Any) -> list[Any]:
    """Tensors over the program's memory that inputs must not share: states, and results that the next call
    overwrites."""
    return [*calls.states.values(), *((view for _, view in calls.handed if view is not None) if calls.reuse else ())]


def driver_address(library: Any, name: str) -> int:
    """Address of the function `name` of the CUDA driver `library`; 0 if the driver lacks it."""
    function = getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def _slots(table: Sequence[Any]) -> list[bytes]:
    """Bytes of the structure `Slot` of direct_calls.c for each address in the launches that depends on a tensor of the
    call, in the order of the launches."""
    return [
        text
        for k, one in enumerate(table)
        for text in (
            *(pack("=5q", k, ctypes.addressof(slot), i, offset, 0) for slot, i, offset in one.slots),
            *(pack("=5q", k, box.value, i, offset, 1) for box, i, offset in one.boxes),
        )
    ]


def _launch(one: Any) -> bytes:
    """Bytes of the structure `Launch` of direct_calls.c for one recorded launch."""
    node, how = (one.node.value, ctypes.addressof(one.how)) if hasattr(one, "node") else (0, 0)
    return pack("=5q", ctypes.addressof(one.config), one.function.value, ctypes.addressof(one.parameters), node, how)


__all__ = ["DirectCalls", "c_function", "c_function_without_waiting", "direct_call", "driver_address", "final"]
