#!/usr/bin/env bash
# Kernels of decode steps on a GPU, then whole steps: tests/gpu_decode_kernels.sh FOLDER [SECONDS]. Within SECONDS (200): kernels alone for up to half of
# them (attention of few rows, quantized products, in Triton and CUDA C++), the decode step of Gemma-3-270M for the rest. PYTHON, BUDGET (40) of the step.
set -u
cd "$(dirname "$0")/.." || exit 2
out="${1:-gpu-decode-kernels}"
seconds="${2:-200}"
python="${PYTHON:-python3}"
mkdir -p "$out"
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" TENSOR_GRAPHS_HOME="${TENSOR_GRAPHS_HOME:-$(mktemp -d)}"
begun=$SECONDS
part() { # name, seconds, command...
    local name="$1" limit="$2"
    shift 2
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
    echo "$name: exit $? after $((SECONDS - begun)) s"
}
part kernels $((seconds / 2)) "$python" -m benchmarks.decoding.kernels --seconds $((seconds / 2 - 25)) --out "$out/kernels.json"
left=$((seconds - (SECONDS - begun) - 5))
if ((left > 60)); then
    BENCH_WORK="$out/gemma" part gemma "$left" "$python" -m benchmarks.decoding.llm gemma-270m --budget "${BUDGET:-40}" --limit $((left - 8)) --parts step
fi
for log in "$out"/*.log; do tail -n 60 "$log" | cut -c1-1500; done
