"""The GPU benchmark's workloads and its table, without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the workloads are PyTorch's")

LIMITS = {"rmsnorm_linear_b1": 7.9, "gated_mlp_up_b16": 15.9, "rmsnorm_qkv_b1": 11.9, "lora_b16": 8.1, "gqa_decode_b16": 63,
          "decode_step_b1": 15.9, "decode_step_b16": 75.6, "gemma_mlp_b1": 1.9, "qknorm_attention_t2048": 44, "layernorm_mlp_t4096": 49.7, "normalised_update_4096": 24,
          "softmax_131072x128": 15.9, "pointwise_64mi": 127, "matmul_chain_16": 16, "shared_factor_4096": 177,
          "nasrnn_b16": 8.1, "gated_mlp_t2048": 927, "dit_block_b8": 86, "bottleneck_b32": 24, "unet_resblock_b2": 38}  # fmt: skip
"""µs at 4.23 TB/s and 778 TFLOP/s, worked out by hand."""


@pytest.fixture(scope="module")
def bench(benchmark_module: Callable[[str], Any]) -> Any:
    return benchmark_module("gpu.workloads"), benchmark_module("models.workloads")


@pytest.fixture(scope="module")
def case(benchmark_module: Callable[[str], Any]) -> Any:
    return benchmark_module("gpu.case")


@pytest.fixture(scope="module")
def table(benchmark_module: Callable[[str], Any]) -> Any:
    return benchmark_module("gpu.table")


def test_limits_are_what_the_workloads_need(bench: Any, case: Any) -> None:
    _, workloads = bench
    rates = {"copy_bytes_per_us": 4.23e6, "read_bytes_per_us": 4.08e6, "flops_per_us": 778e6}
    for name, limit in LIMITS.items():
        assert case.limit_us(workloads.WORKLOADS[name], rates) == pytest.approx(limit, rel=0.03), name


def test_small_workloads_run_and_halves_are_near_float64(bench: Any, case: Any) -> None:
    _, workloads = bench
    for work in map(workloads.small, workloads.WORKLOADS.values()):
        inputs, weights = work.arguments("cpu")
        assert all(float(x.double().abs().min(-1).values.max()) > 0 for x in (*inputs, *weights)), work.name  # no zeros
        got = workloads.flat(work.call(*inputs, *weights))
        again = workloads.flat(work.module(weights)(*inputs))
        exact = workloads.flat(work.call(*(x.double() for x in (*inputs, *weights))))
        assert all(g.equal(a) and w.dtype == torch.float64 for g, a, w in zip(got, again, exact, strict=True)), (
            work.name
        )
        assert max(case.error(g, w) for g, w in zip(got, exact)) < 3e-2, work.name


def record(**variants: Any) -> dict[str, Any]:
    return {"name": "rmsnorm_linear_b1", "machine": "gpu", "small": False, "toolchain": "torch=1", "date": "2026-01-01",
            "limit_us": 8.0, "variants": variants}  # fmt: skip


def test_the_table_compares_with_the_best_peer(table: Any) -> None:
    ours = {"us": 10.0, "cold_s": 30.0, "warm_s": 0.5, "error": 1e-3, "kernels": [{"kernel": "a"}, {"kernel": "a"}]}
    found = record(eager={"us": 30.0, "error": 2e-3}, default={"us": 16.0}, ours=ours)
    row = table.line(found)
    assert "| 80 % | 1.60 |" in row and "12 yes" in row and "30 / 0.5" in row and "a x2" in row
    assert "**no**" in table.line(record(ours={**ours, "us": 13.0}))
    assert "failed" in table.line(record(ours={"failed": "no plan"}))
    rested = {
        "eager": {"rested_us": 15.0, "kept_from": "elsewhere"},
        "default": {"rested_us": 16.0},
        "ours": {"rested_us": 9.0},
    }
    assert table.rested(rested) == "16.0 / 9.0" and table.rested({"ours": {"rested_us": 9.0}}) == ""


def test_what_was_wanted_is_judged_in_both_states_where_power_holds_the_clock_down(table: Any) -> None:
    ours = {"us": 13.0, "rested_us": 11.0, "capped": 0.9, "rested_capped": 0.0}
    assert table.reached(ours, 12.0) == " yes rested, **no** at the power limit"
    assert table.reached({**ours, "us": 12.0}, 12.0) == " yes"
    for other in ({"capped": 0.2}, {"rested_us": 12.5}, {"rested_capped": 0.9}):
        assert table.reached({**ours, **other}, 12.0) == " **no**"
    assert table.reached({"us": 13.0, "rested_us": 11.0}, 12.0) == " **no**", (
        "a record that does not know is not excused"
    )


def test_the_table_says_how_a_plan_was_found(table: Any) -> None:
    kernels = [
        {"kernel": "triton.attention", "generated": True, "transformations": ["DEFER", "ROLL"], "named": []},
        {"kernel": "cuda.mm", "generated": False, "transformations": [], "named": []},
    ]
    found = record(ours={"us": 1.0, "kernels": kernels, "rules": ["merge-matmuls"]})
    assert table.how_found(found) == (
        "- rmsnorm_linear_b1: rules merge-matmuls; `triton.attention`: generated, of single operations, DEFER, ROLL; `cuda.mm`: library"
    )
    assert table.how_found(record(ours={"us": 1.0, "kernels": [{"kernel": "a"}]})) == ""


def test_peers_of_an_earlier_run_are_kept_and_marked(bench: Any, table: Any) -> None:
    gpu, _ = bench
    old = record(eager={"us": 30.0}, default={"us": 16.0}, ours={"us": 20.0})
    new = gpu.merged(old, record(ours={"us": 10.0}, eager={"us": 29.0}, default={"failed": "no"}))
    assert new["variants"]["ours"] == {"us": 10.0} and new["variants"]["eager"] == {"us": 29.0}
    assert new["variants"]["default"]["us"] == 16.0 and "torch=1" in new["variants"]["default"]["kept_from"]
    assert "16.0†" in table.line(new)
    other = gpu.merged({**old, "machine": "another"}, record(ours={"us": 10.0}))
    assert set(other["variants"]) == {"ours"}


def test_a_case_fails_where_ours_did_and_results_may_go_elsewhere(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, _ = bench
    for name in ("RESULTS", "TABLE"):
        monkeypatch.setattr(gpu, name, getattr(gpu, name))
    monkeypatch.setattr(gpu, "started", lambda *given: None)
    monkeypatch.setattr(gpu, "waited", lambda *given: "")
    for ours, failed in (({"us": 2.0}, 0), ({"failed": "no duckdb"}, 1)):
        rates = {"copy_bytes_per_us": 4e6, "read_bytes_per_us": 4e6, "flops_per_us": 7e8, "launch_us": 1.0}
        found = {**record(ours=ours, eager={"us": 3.0}), **rates, "commit": "0", "driver": "none"}
        monkeypatch.setattr(gpu, "run_case", lambda *given, found=found: dict(found))
        folder = tmp_path / str(failed)
        arguments = ["gpu", "--only", found["name"], "--work", str(tmp_path / "work"), "--results", str(folder)]
        monkeypatch.setattr("sys.argv", arguments)
        assert gpu.main() == failed
        assert json.loads((folder / f"gpu/{found['name']}.json").read_text())["variants"]["ours"] == ours
        assert found["name"] in (folder / "gpu.md").read_text()


def test_a_failure_that_ends_a_process_names_the_variant_that_was_running(
    bench: Any, case: Any, tmp_path: Path
) -> None:
    gpu, target = bench[0], tmp_path / "a.json"
    made = SimpleNamespace(
        record={"name": "a", "variants": {}}, target=target, calls={}, work=SimpleNamespace(name="a")
    )
    made.write = lambda: case.Case.write(made)
    with case.Case.variant(made, "ours") as found:
        found["us"] = 1.0
    assert gpu.recorded("a", target, "stopped after 9 s")["failed"] == "stopped after 9 s"
    with case.Case.variant(made, "max-autotune"):
        ended = gpu.recorded("a", target, "stopped after 9 s")
    assert ended["failed"] == "max-autotune: stopped after 9 s" and "running" not in ended
    assert "running" not in gpu.recorded("a", target, "")


def test_how_a_program_was_found_is_explained_from_what_is_kept_of_it(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: Any
) -> None:
    """No GPU and no weights are needed for it, nor the program."""
    import tensor_graphs as tg

    gpu, workloads = bench
    work = workloads.small(workloads.WORKLOADS["lora_b16"])
    inputs, weights = work.arguments("cpu")
    program = tg.optimize(work.module(weights), tuple(inputs), backend="numpy", measure=False, verify=False, budget=20)
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    kernel = {"kernel": "np.matmul", "generated": False, "transformations": [], "named": []}
    found = {**record(ours={"us": 1.0, "kernels": [kernel]}), "name": "lora_b16"}
    (tmp_path / "lora_b16.json").write_text(json.dumps(found))
    monkeypatch.setattr(gpu, "again", lambda *a: False)
    assert gpu.explain_all(["lora_b16", "lora_b1"]) == 0
    gpu.keep_origin(program.attached, program.report.searched, gpu.origin_in(tmp_path, "lora_b16"))
    assert gpu.explain_all(["lora_b16", "lora_b1"]) == 1
    ours = gpu.stored("lora_b16")["variants"]["ours"]
    assert "low-rank-folds" in ours["rules"] and ours["steps"]["verdict"] == "replayed" and ours["steps"]["count"] > 0
    assert "low-rank-folds" in table.how_found(gpu.stored("lora_b16")) and "1 step, replayed" in table.how_found(
        gpu.stored("lora_b16")
    )
    (gpu.origin_in(tmp_path, "lora_b16") / "origin.safetensors").write_bytes(b"nonsense")
    assert gpu.explain_all(["lora_b16"]) == 1 and "not explained" in table.how_found(gpu.stored("lora_b16"))


def test_records_tell_generated_kernels_from_library_kernels(case: Any, tmp_path: Path) -> None:
    import tensor_graphs as tg

    x = tg.input("x", (64, 96))
    graph = tg.softmax(x * 2.0, 1) @ tg.input("w", (96, 64))
    options: dict[str, Any] = {
        "effort": 0,
        "measure": False,
        "verify": False,
        "costdb": tmp_path,
    }  # no rows of other tests
    plan = tg.optimize(graph, backend="auto", budget=20, **options).plan
    found = {row["generated"]: row for row in map(case.found_as, plan.steps)}
    assert found.keys() == {True, False} and "ROLL" in found[True]["transformations"]


def test_a_plan_is_found_again_from_its_kernels(bench: Any) -> None:
    """Without a GPU: the kernels that could be used there are known anywhere."""
    from benchmarks.gpu.again import found_again

    from tensor_graphs.egraph.ir.tensor import topological

    _, workloads = bench
    work = workloads.small(workloads.WORKLOADS["shared_factor_4096"])
    inputs, weights = work.arguments("cpu")
    product = {"kernel": "cuda.mm", "pattern": "matmul(x, w)", "schedule": {}}
    plan = found_again(work.module(weights), inputs, [product])
    assert plan is not None and [s.template.name for s in plan.steps] == ["cuda.mm"]
    assert sum(n.op == "matmul" for n in topological(plan.origin.chosen)) == 1
    assert sum(n.op == "matmul" for n in topological(plan.origin.roots)) == 2
    assert found_again(work.module(weights), inputs, [product] * 2) is None
    assert found_again(work.module(weights), inputs, [{**product, "kernel": "cuda.nothing"}]) is None


def test_variants_run_at_small_sizes_and_are_near_float64(benchmark_module: Callable[[str], Any], case: Any) -> None:
    variants, flat = benchmark_module("models.workload_variants"), benchmark_module("models.workloads").flat
    benchmark_module("models.further")
    ours = [v for n, v in variants.TINY.items() if not n.startswith("hf_")]
    assert len(ours) > 25 and variants.TINY.keys() == variants.VARIANTS.keys()
    for work in ours:
        inputs, weights = work.arguments("cpu")
        got, again = flat(work.call(*inputs, *weights)), flat(work.module(weights)(*inputs))
        exact = flat(work.call(*(x.double() if x.is_floating_point() else x for x in (*inputs, *weights))))
        assert all(g.equal(a) and w.dtype == torch.float64 for g, a, w in zip(got, again, exact, strict=True)), (
            work.name
        )
        assert max(case.error(g, w) for g, w in zip(got, exact)) < 2e-2, work.name
    norm = variants.TINY["norm_linear_fp16_b4"]
    assert norm.flops == 2 * 2 * 24 * 40 and norm.bytes == 2 * (2 * 24 + 24 + 24 * 40 + 2 * 40)


def test_the_table_of_variants_names_what_failed_and_what_is_slower(benchmark_module: Callable[[str], Any]) -> None:
    module = benchmark_module("gpu.variants")
    slow = {**record(eager={"us": 30.0}, default={"us": 9.0}, ours={"us": 10.0}), "name": "lora_fp32_b4"}
    broken = {**record(eager={"us": 30.0}, ours={"failed": "ShapeError: no"}), "name": "experts_top2_t64"}
    for r in (slow, broken):
        r["commit"] = "abc"
    loose = {**slow, "name": "lora_tf32_t512", "dtype": "float32", "tolerance": 1e-3}
    assert "| lora_tf32_t512 | float32, tolerance 0.001 |" in module.render({"lora_tf32_t512": loose})
    text = module.render({r["name"]: r for r in (slow, broken)})
    assert "slower than the best peer by more than 3 %: lora_fp32_b4 (0.90)" in text and "1 timed" in text
    assert "failed: experts_top2_t64: ours: ShapeError: no" in text


@pytest.mark.parametrize("name", ["gemma3_270m_decode", "gpt2_t128", "bert_base_fp16_b8_t128", "unet_fp16_b2"])
def test_whole_models_run_at_small_sizes_and_are_near_float64(
    name: str, benchmark_module: Callable[[str], Any], case: Any
) -> None:
    models, flat = benchmark_module("models.whole_models"), benchmark_module("models.workloads").flat
    assert models.TINY.keys() == models.MODELS.keys()
    work = models.TINY[name]
    inputs, weights = work.arguments("cpu")
    got, again = flat(work.call(*inputs, *weights)), flat(work.module(weights)(*inputs))
    exact = flat(work.call(*(x.double() if x.is_floating_point() else x for x in (*inputs, *weights))))
    assert all(g.equal(a) and w.dtype == torch.float64 for g, a, w in zip(got, again, exact, strict=True))
    assert max(case.error(g, w) for g, w in zip(got, exact)) < 3e-2
    names = [*work._weights(work._made[0])]
    assert {*work.unread} <= {*names}
    read = [x for n, x in zip(names, weights) if n not in work.unread]
    assert work.bytes == sum(x.numel() * x.itemsize for x in (*inputs, *read, *got))


def test_the_table_of_models_names_what_failed(benchmark_module: Callable[[str], Any]) -> None:
    module = benchmark_module("gpu.whole_models")
    ours = {"us": 10.0, "cold_s": 58.0, "warm_s": 1.5, "error": 1e-3, "memory": 3 << 20, "kernels": [{"kernel": "a"}] * 3,
            "host": {"load": 2 << 30, "extract": 5 << 30}}  # fmt: skip
    half = {"us": 12.0, "cold_s": 29.0}
    found = {**record(eager={"us": 30.0, "error": 2e-3, "memory": 5 << 20}, default={"us": 9.0}, ours=ours, **{"ours, half": half}),
             "name": "gpt2_t128", "commit": "abc"}  # fmt: skip
    broken = {**record(eager={"us": 3.0}, ours={"failed": "NoPlanError: none"}), "name": "unet_fp16_b2"}
    row = module.line(found)
    assert "| 9.0 |" in row and "| 12.0 | 10.0 | 3.00 | 0.90 | 29 / 58 / 1.5 | 3 |" in row and "| 3 / 5 | 5.0 |" in row
    text = module.render({r["name"]: r for r in (broken, found)})
    assert "- failed: unet_fp16_b2: ours: NoPlanError: none" in text and "- gpt2_t128: a x3" in text
    ended = [{**r, "failed": "stopped after 300 s"} for r in (found, broken)]
    text = module.render({r["name"]: r for r in ended})
    assert "- failed: gpt2_t128: stopped after 300 s after ours was measured\n" in text
    assert "- failed: unet_fp16_b2: stopped after 300 s\n" in text


def test_products_of_odd_sizes_stand_beside_those_over_padded_weights(benchmark_module: Callable[[str], Any]) -> None:
    odd = benchmark_module("gpu.odd_sizes")
    (name, work), *_ = odd.PRODUCTS.items()
    assert name == "1000x768x50257" and odd.TINY.keys() == odd.PRODUCTS.keys()
    (x,), (w,) = odd.TINY[name].arguments("cpu")
    case = object.__new__(odd.Product)
    case.sets, case.exact, case.calls = [[x, w]], [x.double() @ w.double()], {}
    case.record, case.work, case.write = {"name": name, "variants": {}}, work, lambda: None
    case.padded()
    assert all(found["error"] < 1e-2 for found in case.record["variants"].values())
    case.record["variants"]["padded"]["us"] = 12.0
    assert "| 1000×768×50257 | 0.0 |  | 12.0 |  |" in odd.render({name: case.record})
