#!/usr/bin/env bash
# Products with quantized weights on a GPU: tests/gpu_quantized.sh FOLDER [BUDGET]. Each part has a time limit of its own.
set -u
cd "$(dirname "$0")/.." || exit 2
out="${1:-gpu-quantized}"
budget="${2:-25}"
python="${PYTHON:-python3}"
mkdir -p "$out"
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" TENSOR_GRAPHS_HOME="${TENSOR_GRAPHS_HOME:-$(mktemp -d)}"
part() { # name, seconds, command...
    local name="$1" limit="$2"
    shift 2
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
    echo "$name: exit $?"
}
bench() { # name, seconds, options...
    local name="$1" limit="$2"
    shift 2
    part "$name" "$limit" "$python" -m benchmarks.decoding.quantized_products --backend gpu --budget "$budget" --seconds "$((limit - 20))" --out "$out/$name.json" "$@"
}
bench row 130 --rows 1 --only 8b-gate-up 8b-down --forms int4 int8
bench rows 75 --rows 16 --only 8b-gate-up --forms int4 fp8
for log in "$out"/*.log; do tail -n 30 "$log" | cut -c1-1500; done
