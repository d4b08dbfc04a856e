"""The hostile environments of `environments.py`: code, interpreter options and environment variables of each case."""

from __future__ import annotations

from dataclasses import dataclass, field

#: What a child does; `before` and `after` are set up by the case. `folder`: its scratch folder; `draw`: a random number
#: in [0, 1); `place`: folder of the home and of results.
CHILD = """
import os, resource, signal, sys, threading, time
EARLY
import numpy as np
import tensor_graphs as tg
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.models.files.native import save_graph
folder, draw, place = sys.argv[1], float(sys.argv[2]), sys.argv[3]
n, budget = 600, float(os.environ.get("BUDGET", 2))
weights = {k: np.random.default_rng(i).standard_normal((n, n)).astype(np.float32) for i, k in enumerate("wv")}
x, w, v = tg.input("x", (8, n)), tg.param("w", (n, n)), tg.param("v", (n, n))
save_graph(Graph.of(tg.relu(x @ w) @ v, params=weights, name="g"), folder + "/m.safetensors")
given = np.ones((8, n), np.float32)
wanted = np.maximum(given.astype(float) @ weights["w"], 0) @ weights["v"]
def check(y):
    if not np.allclose(y, wanted, rtol=1e-3, atol=1e-1): os._exit(4)
def search():
    global program
    program = tg.optimize(folder + "/m.safetensors", backend=os.environ["BACKEND"], budget=budget)
    check(program(given))
print("begin", flush=True)
try:
    BEFORE
    search()
    program.save(place + "/saved")
    AFTER
    check(tg.load_program(place + "/saved")(given))
except tg.errors.TensorGraphsError as error:
    print(type(error).__name__, ascii(str(error)).splitlines()[0][:150], flush=True)
    sys.exit(3)
"""
FORKED = """
child = os.fork()
if not child: check(program(given)); os._exit(0)
if os.waitpid(child, 0)[1]: os._exit(4)
def calls():
    for _ in range(50): check(program(given))
threads = [threading.Thread(target=calls) for _ in range(3)]
for t in threads: t.start()
for i in range(3): program.save(f"{folder}/saved{i}"); tg.load_program(f"{folder}/saved{i}")
del calls
for t in threads: t.join()
"""
CUT = """
def cut(): time.sleep(4 * draw); os.truncate(folder + "/m.safetensors", 9000)
threading.Thread(target=cut, daemon=True).start()
"""
USER = """
tg.optimize(folder + "/m.safetensors", backend=os.environ["BACKEND"], budget=1)
os.chmod(folder, 0o755); os.setegid(65534); os.seteuid(65534)
"""
EVERYWHERE = """
import asyncio, atexit, multiprocessing
def child():
    search(); os._exit(0)
class Dropped:
    def __del__(self): search()
def handler(*given): search()
async def awaited(): await asyncio.gather(asyncio.to_thread(search), asyncio.to_thread(search)); search()
signal.signal(signal.SIGUSR1, handler)
kind = int(draw * 5)
if kind == 0: Dropped()
elif kind == 1: os.kill(os.getpid(), signal.SIGUSR1)
elif kind == 2: asyncio.run(awaited())
elif kind == 3: atexit.register(search)
else:
    process = multiprocessing.get_context("fork").Process(target=child); process.start(); process.join()
    if process.exitcode: os._exit(4)
"""


@dataclass(frozen=True)
class Case:
    """One kind of environment. `early`: code before anything is imported, `before` and `after`: code around the
    search, `options`: of the interpreter, `variables`: of the environment ("" removes one), `beside`: name of an empty
    package in the current folder, which is the first place where modules are looked for."""

    before: str = ""
    after: str = ""
    early: str = ""
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    beside: str = ""


def _limit(name: str, value: str) -> str:
    return f"resource.setrlimit(resource.RLIMIT_{name}, (int({value}),) * 2)"


TIMER = """
import atexit
atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, lambda *a: None); signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
"""
TRACED = "sys.settrace(lambda *a: None); threading.settrace(lambda *a: None); sys.setprofile(lambda *a: None)"
CLOCK = "past = time.time; time.time = lambda: past() + 1e7 * (draw - 0.5) * (int(past() * 3) % 2)"
#: Other interpreters, limits and variables, of which a run of the case draws one.
KINDS: dict[str, list[Case]] = {
    "interpreter": [
        *(Case(options=given) for given in (("-O",), ("-OO",), ("-W", "error"), ("-X", "dev"), ("-bb",), ("-B",))),
        *(Case(options=given) for given in (("-X", "utf8=0"), ("-X", "importtime"), ("-X", "tracemalloc=5"))),
    ],
    "variables": [
        Case(variables={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
        Case(variables={"OMP_NUM_THREADS": "0", "MKL_NUM_THREADS": "abc", "OPENBLAS_NUM_THREADS": "-3"}),
        Case(variables={"OMP_NUM_THREADS": "10000"}),
        Case(variables={"PATH": "/nowhere"}),
        Case(variables={"TMPDIR": "/nowhere"}),
        Case(variables={"TENSOR_GRAPHS_HOME": "", "HOME": "/proc/1/nothing", "XDG_CACHE_HOME": "relative"}),
        Case(variables={"TENSOR_GRAPHS_HOME": "/dev/null"}),
        Case(variables={"CC": "false"}),
        Case(variables={"PYTHONMALLOC": "debug", "PYTHONHASHSEED": "1"}),
    ],
    "limits": [
        *(Case(before=_limit("AS", value)) for value in ("3e9", "1.5e9", "8e8")),
        *(Case(early=_limit(name, value)) for name, value in (("STACK", "3e5"), ("CORE", "0"), ("MEMLOCK", "0"))),
        *(Case(before=_limit(name, value)) for name, value in (("NPROC", "0"), ("CPU", "15"), ("DATA", "1e9"))),
    ],
    "process": [
        Case(before=TIMER), Case(before=TRACED),
        Case(before="sys.setrecursionlimit(150)"),
        Case(before="signal.signal(signal.SIGCHLD, signal.SIG_IGN)"),
        Case(before="signal.signal(signal.SIGPIPE, signal.SIG_DFL)"),
        Case(before="signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))"),
        Case(before="os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})"),
        Case(before="np.seterr(all='raise'); np.set_printoptions(precision=1, legacy='1.13')"),
        Case(before="import gc; gc.set_threshold(1)"),
        Case(before="os.umask(0o777)"), Case(before="os.umask(0)"),
    ],
    "beside": [Case(beside=name) for name in ("torch", "triton", "duckdb", "pyarrow", "egglog", "scipy")],
}  # fmt: skip
#: Name -> the cases of which a run draws one.
CASES: dict[str, list[Case]] = {
    "cut": [Case(before=CUT)],
    "large": [Case(before=_limit("FSIZE", "10 ** (3 + 4 * draw)"))],
    "files": [Case(before=_limit("NOFILE", "5 + 30 * draw"))],
    "user": [Case(before=USER, after="os.seteuid(0)")],
    "clock": [Case(before=CLOCK)],
    "signal": [Case()],
    "hang": [Case()],
    "shared": [Case(after=FORKED)],
    "full": [Case()],
    "moments": [Case(before=EVERYWHERE)],
    **KINDS,
}

__all__ = ["CASES", "CHILD", "Case"]
