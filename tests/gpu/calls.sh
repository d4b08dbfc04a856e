#!/usr/bin/env bash
# Calls on a GPU: tests of every way to launch, then what a call costs. tests/gpu/calls.sh [FOLDER]; about five minutes.
set -u
cd "$(dirname "$0")/../.." || exit 2
out="${1:-gpu-calls}"
python="${PYTHON:-python3}"
mkdir -p "$out"
pytest() { timeout -k 5 "$1" "$python" -m pytest -m gpu -q --tb=short -rf -p no:cacheprovider "${@:2}"; }
pytest 110 tests/backends/program/test_cuda_graph.py tests/gpu/test_generated_programs.py >"$out/graph.log" 2>&1 &
pytest 110 --durations=6 tests/gpu/test_calls.py >"$out/calls.log" 2>&1
pytest 110 -s tests/gpu/test_saved_binaries.py tests/backends/program/test_emit_cuda.py -k "binaries or compiler or released" >"$out/saved.log" 2>&1
wait
tail -n 40 "$out/graph.log"
tail -n 90 "$out/calls.log"
tail -n 60 "$out/saved.log"
timeout -k 5 175 "$python" -m benchmarks.gpu.call_overhead --budget 5 --out "$out/overhead.json" 2>"$out/overhead.log"
grep -E "Error|error" "$out/overhead.log" | tail -n 20
