"""Faults planted in the library, each of which a test must notice: `python -m tests.fuzz.planted [NAME...]`.

Each fault replaces one function by one that does less: a check that does not look, a limit that is none. The test named
beside it runs in a process of its own with the fault (by way of a pytest plugin) and must fail; without the fault it
must pass. Faults of worker processes are planted in the processes that the test starts, where they import the module.
The exit code is 1 if a test fails without its fault, or passes with it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

TIME = 150.0  # seconds for a test
HERE, CHILDREN = "TENSOR_GRAPHS_PLANTED", "TENSOR_GRAPHS_PLANTED_IN_CHILDREN"  # variables: names of the faults to plant


@dataclass(frozen=True)
class Fault:
    """A function `module.name` that becomes `instead` (a Python expression), and the test that notices."""

    row: int  # of docs/reliability/faults.md; 0: of docs/reliability/files.md
    module: str
    name: str
    instead: str
    test: str
    children: bool = False  # in the processes that the test starts, not in its own


FAULTS = {
    "external data may be anywhere": Fault(
        2, "tensor_graphs.models.files.inside", "inside", 'lambda folder, name, *, trust=False: Path(folder) / name',
        "tests/models/test_onnx_faults.py::test_external_data_that_escapes",
    ),
    "the structure of ONNX graphs is not checked": Fault(
        3, "tensor_graphs.models.onnx.load", "check_structure", 'lambda *a: None',
        "tests/models/test_onnx_faults.py::test_broken_structure",
    ),
    "initializers are not measured against their data": Fault(
        4, "tensor_graphs.models.onnx.read_file", "check_tensor", 'lambda *a: None',
        "tests/models/test_onnx_faults.py::test_initializer_dims",
    ),
    "unsupported operators are not listed": Fault(
        6, "tensor_graphs.models.onnx.load", "unsupported", 'lambda model: {}',
        "tests/models/test_onnx_faults.py::test_everything_unsupported_is_listed_at_once",
    ),
    "overlaps and gaps of safetensors pass": Fault(
        7, "tensor_graphs.models.files.safetensors", "_check_cover", 'lambda *a: None',
        "tests/models/test_safetensors.py::test_malformed_files_are_refused",
    ),
    "unread tensors of a checkpoint pass": Fault(
        7, "tensor_graphs.models.huggingface.checkpoint", "Weights.finish", 'lambda self: None',
        "tests/models/test_hf.py",
    ),
    "broken caches are not set aside": Fault(
        21, "tensor_graphs.costdb.store.cache", "set_aside", 'lambda file: file',
        "tests/costdb/test_faults.py::test_a_broken_cache_is_set_aside_and_rebuilt",
    ),
    "shards are read without their hash": Fault(
        22, "tensor_graphs.costdb.store.shards", "read", 'lambda path: decode(path.read_bytes())',
        "tests/costdb/test_faults.py::test_every_single_flipped_byte_is_noticed",
    ),
    "bad shards stay where they are": Fault(
        22, "tensor_graphs.costdb.store.shards", "quarantine", 'lambda *a: False',
        "tests/costdb/test_faults.py::test_a_bad_shard_is_set_aside_and_the_others_are_used",
    ),
    "foreign folders are safe": Fault(
        25, "tensor_graphs.private", "unsafe_folder", "lambda folder: ''",
        "tests/costdb/test_faults.py::test_a_foreign_cache_folder_is_refused",
    ),
    "links are safe": Fault(
        25, "tensor_graphs.private", "unsafe_folder", "lambda folder: ''",
        "tests/costdb/test_faults.py::test_a_link_in_place_of_the_cache_folder_is_refused",
    ),
    "checksums are not compared": Fault(
        0, "tensor_graphs.private", "read_sealed", "lambda path, most=0, name='': path.read_bytes()[:-72]",
        "tests/reliability/test_private.py::test_a_damaged_library_is_compiled_again",
    ),
    "checksums do not know the file's name": Fault(
        0, "tensor_graphs.private", "sealed", "lambda content, name='': plain(content)",
        "tests/reliability/test_private.py::test_a_library_in_another_s_place_is_compiled_again",
    ),
    "the parser's errors of ONNX files have no name": Fault(
        1, "tensor_graphs.models.onnx.load", "parse_model", "lambda file: __import__('onnx').load(str(file), load_external_data=False)",
        "tests/models/test_onnx_faults.py::test_not_a_model",
    ),
    "values of an ONNX model may have any size": Fault(
        5, "tensor_graphs.models.onnx.context", "Context.check", "lambda self, tensor: tensor",
        "tests/models/test_onnx_faults.py::test_ten_terabytes",
    ),
    "pickles are opened": Fault(
        8, "tensor_graphs.models.load", "_load_file",
        "lambda path, dims, trust: __import__('pickle').loads(path.read_bytes()) if path.suffix == '.pt' else plain(path, dims, trust)",
        "tests/models/test_load.py::test_pickles_are_refused_unopened",
    ),
    "the archive of a trusted .pt2 is not looked at": Fault(
        8, "tensor_graphs.models.torch_export.pt2", "_inspect_archive", "lambda path: None",
        "tests/models/test_export.py::test_pickled_content_of_a_trusted_pt2_is_refused",
    ),
    "code beside a checkpoint is run": Fault(
        9, "tensor_graphs.models.huggingface.load", "opened",
        "lambda path, trust=False: ([exec(f.read_text()) for f in Path(path).glob('modeling_*.py')], plain(path, trust=trust))[1]",
        "tests/models/test_hf.py::test_code_beside_the_weights_is_never_run",
    ),
    "names are not escaped in pages": Fault(
        10, "tensor_graphs.report.page", "escape", "lambda text, quote=True: text",
        "tests/reliability/test_faults.py::test_hostile_names_are_only_names",
    ),
    "negative strides of inputs are lost": Fault(
        11, "tensor_graphs.backends.runtime.marshalling", "NumpyMarshalling.accept",
        "lambda self, x, spec: plain(self, x[::-1] if x.ndim and x.strides[0] < 0 else x, spec)",
        "tests/reliability/test_faults.py::test_layouts_and_aliased_inputs",
    ),
    "kernels drop NaN": Fault(
        12, "tensor_graphs.backends.program.launch.emission", "executed", "lambda source, *more: plain(source.replace('np.maximum', 'np.fmax'), *more)",
        "tests/reliability/test_faults.py::test_special_inputs_pass_through",
    ),
    "no rule is refuted": Fault(
        13, "tensor_graphs.rules.check.check", "_judge", "lambda rule, *more, **named: ({'tested': 24}, None)",
        "tests/reliability/test_faults.py::test_an_unsound_rule_is_refuted_before_use",
    ),
    "every program passes verification": Fault(
        13, "tensor_graphs.verification.comparison", "Verification.passed", "property(lambda self: True)",
        "tests/verification/test_verify.py::test_an_unsound_rule_is_found_out_and_blamed",
    ),
    "saturation has no limit of e-nodes": Fault(
        14, "tensor_graphs.egraph.saturate.saturate", "_Saturation.__init__",
        "lambda self, graph, program, limits, *more: plain(self, graph, program, replace(limits, nodes=10**7, iterations=4), *more)",
        "tests/reliability/test_faults.py::test_exploding_rules_stop_at_a_limit",
    ),
    "saturation has no limit of memory": Fault(
        14, "tensor_graphs.egraph.saturate.saturate", "_Saturation.__init__",
        "lambda self, graph, program, limits, *more: plain(self, graph, program, replace(limits, bytes=0, iterations=4), *more)",
        "tests/reliability/test_faults.py::test_memory_limits_are_kept",
    ),
    "kernels that failed are in plans": Fault(
        15, "tensor_graphs.extract.search.encoding", "EncodedHypergraph.__init__",
        "lambda self, graph, cost, *more, **named: plain(self, graph, [min(c, 1e9) for c in cost], *more, **named)",
        "tests/reliability/test_faults.py::test_no_kernel_at_all_is_no_plan",
    ),
    "cyclic choices count as solutions": Fault(
        15, "tensor_graphs.extract.solve.frontier_pieces", "_acyclic", "lambda reads: True",
        "tests/extract/test_frontier_dp.py",
    ),
    "Ctrl-C does not end a stage": Fault(
        16, "tensor_graphs.pipeline.context.session", "Session._past",
        "lambda self, share: self.left <= -share * self.options.budget and not self.options.deterministic",
        "tests/pipeline/test_budget.py::test_ctrl_c_uses_up_the_time",
    ),
    "how a measuring process ended is not looked at": Fault(
        17, "tensor_graphs.backends.tuning.worker_process", "CpuWorkerProcess._parsed",
        "lambda self, line, process: json.loads(line) if line else {'ok': False, 'status': 'error', 'message': ''}",
        "tests/backends/tuning/test_measure.py::test_one_bad_kernel_costs_one_candidate",
    ),
    "kernels on a CPU are not compared before they count": Fault(
        18, "tensor_graphs.backends.tuning.cpu_worker", "check", "lambda *given: {'rel_fro': 0.0, 'max_abs': 0.0, 'max_rel': 0.0, 'max_ulp': 0.0}",
        "tests/backends/tuning/test_measure.py::test_one_bad_kernel_costs_one_candidate", children=True,
    ),
    "memory around operands is not looked at": Fault(
        18, "tensor_graphs.backends.tuning.gpu_operands", "ZONE", "0",
        "tests/backends/tuning/test_measure_gpu.py::test_wrong_answers_are_failures", children=True,
    ),
    "a backend that is absent is left out without a word": Fault(
        19, "tensor_graphs.backends.registry", "select", "lambda choice='': [backend('numpy')]",
        "tests/reliability/test_faults.py::test_an_absent_backend_is_named",
    ),
    "a store in use elsewhere is not read around": Fault(
        20, "tensor_graphs.costdb.store.cache", "load_memory", "lambda root, file=None: plain(Path('/nonexistent'), None)",
        "tests/costdb/test_faults.py::test_a_cache_open_elsewhere_is_read_around",
    ),
    "any latency is believed": Fault(
        23, "tensor_graphs.costdb.store.schema", "_bad_latency", "lambda table: plain(table) & False",
        "tests/costdb/test_faults.py::test_a_nanosecond_timing_is_refused_and_a_fast_lie_not_believed",
    ),
    "the claims of others outvote measurements": Fault(
        23, "tensor_graphs.costdb.store.snapshot", "Snapshot._believed", "staticmethod(lambda rows, runs, medians: rows)",
        "tests/costdb/test_faults.py::test_a_claim_that_is_not_reproduced_is_dropped",
    ),
    "rows are acknowledged before they are written": Fault(
        24, "tensor_graphs.costdb.store.store", "Store._write", "lambda self, table: ('0' * 64,)",
        "tests/costdb/test_faults.py::test_no_acknowledged_row_is_lost_by_a_kill", children=True,
    ),
    "shards are deleted before the one in their place is written": Fault(
        24, "tensor_graphs.costdb.store.maintenance", "deduplicated",
        "lambda tables: ([f.unlink() for f in __import__('inspect').currentframe().f_back.f_locals['root'].rglob('*.parquet')], plain(tables))[1]",
        "tests/costdb/test_faults.py::test_compacting_that_dies_before_its_shard_is_durable_loses_nothing",
    ),
}  # fmt: skip


def plant(fault: Fault) -> None:
    """Replace the function of a fault (a method: `Class.name`) in every module that has imported it."""
    module: Any = importlib.import_module(fault.module)
    *outer, name = fault.name.split(".")
    owner = module
    for one in outer:
        owner = getattr(owner, one)
    plain = getattr(owner, name)
    wrong = eval(fault.instead, {"Path": Path, "replace": replace, **vars(module), "plain": plain})
    setattr(owner, name, wrong)
    for other in list(sys.modules.values()):
        if (
            not outer
            and getattr(other, name, None) is plain
            and str(getattr(other, "__name__", "")).startswith("tensor_graphs")
        ):
            setattr(other, name, wrong)


class _OnImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Plants a fault right after its module was executed."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:  # fmt: skip
        if name != self.fault.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            plant(self.fault)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def plant_in_child() -> None:
    """Plant the fault that CHILDREN names when its module is imported: called by each Python process that a test
    starts."""
    if named := os.environ.get(CHILDREN):
        sys.meta_path.insert(0, _OnImport(FAULTS[named]))


def pytest_collection_finish() -> None:
    """As a plugin of pytest: plant the fault that HERE names, after tests have imported the library."""
    if named := os.environ.get(HERE):
        if FAULTS[named].children:
            os.environ[CHILDREN] = named
        else:
            plant(FAULTS[named])


def passes(fault: str, test: str) -> tuple[bool, str]:
    """(whether a test passes with a fault planted, pytest's line for its failure, or its last line); `fault`: "" for
    none.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.fuzz.planted", "-p", "no:cacheprovider", test]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text("from tests.fuzz.planted import plant_in_child\nplant_in_child()\n")
        path = os.pathsep.join([folder, str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIME, env={**os.environ, HERE: fault, "PYTHONPATH": path}
        )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest did not run: {done.stdout[-500:]}{done.stderr[-500:]}")
    lines = done.stdout.strip().splitlines()
    return done.returncode == 0, next((line for line in lines if line.startswith(("FAILED", "ERROR"))), lines[-1])


def main() -> int:
    """Run the command line described above."""
    bad = 0
    for name in sys.argv[1:] or FAULTS:
        fault = FAULTS[name]
        try:
            fine, _ = passes("", fault.test)
            unnoticed, message = passes(name, fault.test)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            fine, unnoticed, message = False, True, str(error)[-800:]
        state = "noticed" if fine and not unnoticed else "NOT NOTICED" if fine else "FAILS WITHOUT THE FAULT"
        bad += state != "noticed"
        print(f"row {fault.row:2d}: {name}: {state} ({message})", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
