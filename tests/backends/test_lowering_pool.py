"""Lowering by several processes gives the same kernels, also if a process dies."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import BACKEND as CUDA
from tensor_graphs.backends.generate import lowering_pool as lower_pool
from tensor_graphs.backends.generate.emitter import PackedLowered
from tensor_graphs.backends.generate.lowering_jobs import Job, flattened_terms, rebuilt_terms
from tensor_graphs.backends.generate.lowering_pool import LowerPool
from tensor_graphs.backends.generate.lowering_worker import answer
from tensor_graphs.backends.generate.lowerings import Lowerings
from tensor_graphs.backends.generate.template import layout_key
from tensor_graphs.backends.ir.index import Axis, index
from tensor_graphs.backends.library.torch_cuda import BACKEND as LIBRARIES
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.triton.backend import BACKEND as TRITON
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.extract.model.work import call_work

GENERATORS = (TRITON, CUDA)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[LowerPool]:
    """Two processes, used however little there is to do."""
    made = LowerPool(2)
    monkeypatch.setattr(lower_pool, "MIN_BATCH_JOBS", 1)
    yield made
    made.close()


def graph() -> Graph:
    """A block with a norm, two products, a gate and a residual."""
    x = t.input("x", (16, 64), "float16")
    h = c.rms_norm(x, t.param("g", (64,), "float16"), eps=1e-6)
    up, gate = (t.matmul(h, t.param(n, (64, 96), "float16")) for n in ("up", "gate"))
    return Graph.of(x + t.matmul(c.silu(gate) * up, t.param("down", (96, 64), "float16")))


def found(pool: LowerPool | None = None) -> list[Any]:
    lowerings = Lowerings(pool=pool)
    made = candidate_hypergraph(view_of(graph()), [LIBRARIES, *map(lowerings.of, GENERATORS)], view_strides)
    return [
        (k.template.name, k.template.pattern, k.outputs, k.inputs, k.call.output, k.weights, priced_by(k))
        for k in made.candidates
    ]


def priced_by(candidate: Any) -> Any:
    """What the price of a candidate depends on: for this a kernel that a worker has lowered stays packed."""
    template, call = candidate.template, candidate.call
    if template.space is None:
        return None
    found = call_work(template, call), template.space(call)
    ours = template.lowered.get(layout_key(call))
    assert not isinstance(ours, PackedLowered) or ours.opened().space == found[1]
    return found


def test_the_same_candidates_come_out_whoever_reads_them(pool: LowerPool) -> None:
    alone = found()
    pool.begin()
    made: list[int] = []
    take = lower_pool.Batch.take

    def counted(batch: lower_pool.Batch) -> list[Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lower_pool.Batch, "take", take)
            made.append(len(replies := batch.take() if any(made) else taken(batch)))
        return replies

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lower_pool.Batch, "take", counted)
        assert found(pool) == alone
    assert len(made) >= 20 and any(made)


def test_terms_and_kernels_survive_the_pipe() -> None:
    root, lowering = t.max(t.exp(t.input("x0", (8, 32)) * 0.5), axis=1, keepdims=True), TRITON.opened()
    assert rebuilt_terms(flattened_terms([root, root])) == (root, root)
    x, out = (Operand(kind, contiguous(kind.shape)) for kind in (t.input("x0", (8, 32)).type, root.type))
    call = Call({"x0": x}, out, {})
    replies = answer(Job(("triton", "nvrtc"), flattened_terms([root]), (call,)))
    assert [name for name, *_ in replies] == ["triton", "nvrtc"]
    for name, found, told in replies:
        assert told is not None and len(told) == 1
        for (transposed, last, number), key, made in found if name == "triton" else ():
            assert made is not None and not (transposed or last or number)
            template = lowering._template((root,), (), False)
            own = template.lower(call)
            template.lowered[key] = made
            sent = template.lower(call)
            assert own is not None and sent is not None and sent is not own
            assert str(sent.kernel) == str(own.kernel) and sent.space == own.space and sent.shape.kind == own.shape.kind
            assert told == [(((), False, 0), template.effort(call), template.size(call))]
            source = [
                launch.source for one in (own, sent) for launch in TRITON.emitter.launches(one, own.space[0], "k")
            ]
            assert source[0] == source[1], "the text that is written of it is the same"


def test_processes_that_die_leave_their_jobs_to_the_caller(pool: LowerPool) -> None:
    pool.begin()
    batch = pool.batch([lambda: Job(("triton",), flattened_terms([t.input("x0", (4,))]), ())] * 30)
    assert any(batch.numbers[29] in p.busy for p in pool._processes)
    origin = pool._processes[0].origin
    os.kill(origin.pid, signal.SIGKILL)
    origin.wait()
    assert [batch.take() for _ in range(30)] == [[]] * 30
    assert pool.size == 0 and not pool._processes


def test_processes_that_ended_for_want_of_work_start_again(pool: LowerPool) -> None:
    pool.begin()
    first = [*pool._processes]
    first[0].origin.kill()
    first[0].origin.wait()
    pool.begin()
    assert len(pool._processes) == 2 and not {*pool._processes} & {*first}
    assert len({p.origin for p in pool._processes}) == 1, "they are forks of one process"


def test_processes_that_end_idle_between_batches_do_not_make_the_pool_smaller(
    pool: LowerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They all end after a minute without work; small batches notice that first, and a large one starts new ones."""
    monkeypatch.setattr(lower_pool, "MIN_BATCH_JOBS", 8)
    pool.begin()
    for process in (first := [*pool._processes]):
        process.answered, process.messages = True, 0
    first[0].origin.kill()
    first[0].origin.wait()
    batch, job = pool.growing(), lambda: Job(("triton",), flattened_terms([t.input("x0", (4,))]), ())
    for _ in range(4):
        batch.add(job)
    assert not pool._processes and pool.size == 2
    for _ in range(4):
        batch.add(job)
    assert len(pool._processes) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no forks")
def test_a_forked_child_leaves_the_processes_to_its_parent(pool: LowerPool) -> None:
    pool.begin()
    pipes = [x for p in pool._processes for x in (p.jobs, p.replies)]
    assert len(pipes) == 4
    if not (child := os.fork()):
        code = 1
        try:
            for pipe in pipes:
                with pytest.raises(OSError):
                    os.fstat(pipe)
            assert not pool._processes and pool._selector is None
            pool.close()
            assert pool.batch([]).jobs == []
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(pool._processes) == 2 and all(os.fstat(pipe) for pipe in pipes)


def test_nothing_of_one_batch_is_taken_for_the_next(pool: LowerPool) -> None:
    """A batch that was given up may still be under way when the next one begins."""
    x = t.input("x0", (8, 32))
    operand = Operand(x.type, contiguous((8, 32)))
    call = Call({"x0": operand}, operand, {})

    def batch(factor: float) -> lower_pool.Batch:
        return pool.batch([lambda: Job(("triton",), flattened_terms([t.exp(x * factor)]), (call,))] * 20)

    batch(2.0)
    second = batch(3.0)
    replies = [r for _ in range(20) for r in taken(second)]
    assert replies, "processes had a part in it"
    assert all("3.0" in str(made.opened().kernel) for _, found, _ in replies for *_, made in found if made)


def test_two_batches_that_grow_by_turns_get_the_replies_to_their_own_jobs(pool: LowerPool) -> None:
    x = t.input("x0", (8, 32))
    operand = Operand(x.type, contiguous((8, 32)))
    call = Call({"x0": operand}, operand, {})
    batches = {factor: pool.growing() for factor in (2.0, 3.0)}
    for _ in range(20):
        for factor, batch in batches.items():
            batch.add(lambda factor=factor: Job(("triton",), flattened_terms([t.exp(x * factor)]), (call,)))  # type: ignore[misc]
    until = time.monotonic() + 300
    while not all(batch.found for batch in batches.values()) and time.monotonic() < until:
        pool.pump(batches[2.0], wait=True)
        pool.pump(batches[3.0])
    for factor, batch in batches.items():
        batch.close()
        replies = [r for _ in range(20) for r in batch.take()]
        kernels = [str(made.opened().kernel) for _, found, _ in replies for *_, made in found if made]
        assert kernels and all(str(factor) in kernel for kernel in kernels)


def test_pools_have_a_number_of_processes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower_pool, "_worker_slots", threading.BoundedSemaphore(3))
    pools = [LowerPool(2) for _ in range(3)]
    try:
        for pool in pools:
            pool.begin()
        assert [len(pool._processes) for pool in pools] == [2, 1, 0]
        pools[0].close()
        pools[2].begin()
        assert len(pools[2]._processes) == 2
    finally:
        for pool in pools:
            pool.close()


def test_processes_begin_while_there_are_more_jobs_to_come(pool: LowerPool) -> None:
    """With the first ones, a few each until they have answered; the caller waits for none that has not, and at the end
    for none at all."""
    x = t.input("x0", (8, 32))
    operand = Operand(x.type, contiguous((8, 32)))
    job = lambda: Job(("triton",), flattened_terms([t.exp(x * 2.0)]), (Call({"x0": operand}, operand, {}),))
    part, batch = lower_pool.PART, pool.growing()
    for _ in range(4 * part):
        batch.add(job)
    assert sorted(n for p in pool._processes for n in p.busy) == batch.numbers[: 2 * part]
    first = pool._processes[0]
    first.answered, number = False, next(iter(first.busy))
    assert not pool.waits_for(number) and number not in first.busy, "it is the caller's again"
    until = time.monotonic() + 300
    done = lambda: all(p.answered for p in pool._processes) and batch.early == 4 * part and batch.found
    while not done() and time.monotonic() < until:
        pool.pump(batch, wait=True)
    assert done(), "they go on with what comes next"
    assert {"start", "read"} <= pool.clock.seconds.keys(), "they say that they have started"
    batch.add(job)
    batch.close()
    replies = [batch.take() for _ in range(4 * part)]
    assert sum(map(bool, replies)) >= 3 * part
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "pump", lambda *given, **more: pytest.fail("it is waited for"))
        batch.take_arrived()


def test_the_caller_does_no_job_where_many_processes_have_started(
    pool: LowerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = t.input("x0", (8, 32))
    operand = Operand(x.type, contiguous((8, 32)))
    job = lambda: Job(("triton",), flattened_terms([t.exp(x * 2.0)]), (Call({"x0": operand}, operand, {}),))
    first, until = pool.batch([job] * 20), time.monotonic() + 300
    while not all(p.answered for p in pool._processes) and time.monotonic() < until:
        pool.pump(first, wait=True)
    assert not pool.wide, "two are few"
    monkeypatch.setattr(lower_pool, "WIDE", 2)
    for count in (1, 3, 50):
        batch = pool.batch([job] * count)
        assert all(batch.take() for _ in range(count))
    last = pool.batch([job] * 50)
    pool._processes[0].origin.kill()
    began = time.monotonic()
    assert not all(last.take() for _ in range(50)) and time.monotonic() - began < lower_pool.PATIENCE_S


def test_what_there_was_no_time_to_read_is_asked_for_again(pool: LowerPool) -> None:
    """By processes, as if it were new: what counts as asked for was answered."""
    pool.size, lowerings = 0, Lowerings(pool=pool)
    polled: list[int] = []
    enough = lambda bound: len(polled) > 30 or bool(polled.append(1))
    opened = [lowerings.of(g) for g in GENERATORS]
    candidate_hypergraph(view_of(graph()), [LIBRARIES, *opened], view_strides, enough=enough)
    assert pool._count > 0
    for lowering in opened:
        assert lowering.done <= lowering.answered.keys()


def taken(batch: lower_pool.Batch) -> list[Any]:
    """The next job's replies; the first ones are waited for, so that processes have time to start."""
    until = time.monotonic() + 120
    while not batch.found and any(p.messages for p in batch.pool._processes) and time.monotonic() < until:
        batch.pool.pump(batch, wait=True)
    return batch.take()


def test_indices_of_another_process_are_found_among_equal_ones() -> None:
    """Names have other hashes in each process: a kernel that was sent had equal indices twice, and another text than
    one read here."""
    make = (
        "import pickle, sys\nfrom tensor_graphs.backends.ir.index import Axis, index\n"
        "i = (index(Axis('n', 12)) + 3) // 4 + 1\nhash(i)\nsys.stdout.buffer.write(pickle.dumps(i))"
    )
    found = set()
    for seed in ("1", "2"):
        told = {**os.environ, "PYTHONHASHSEED": seed}
        found.add(pickle.loads(subprocess.run([sys.executable, "-c", make], env=told, stdout=-1, check=True).stdout))
    (one,) = found
    assert one == (index(Axis("n", 12)) + 3) // 4 + 1 and one in {(index(Axis("n", 12)) + 3) // 4 + 1}
