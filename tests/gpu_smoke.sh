#!/usr/bin/env bash
# What only a GPU can show, unattended: every part has a log and a time limit of its own, and none stops the others.
#   tests/gpu_smoke.sh [FOLDER]        PYTHON=python3 LIMIT=180 select the interpreter and the seconds of each part
#   PARTS="graph sanitizer" runs only these. FOLDER/summary.txt has a line for each part, FOLDER/sanitizer.md a table.
# Parts of a lane follow each other, lanes run side by side; what asks for all of the memory runs alone, at the end.
# Parts marked * need egglog and a solver; the others need PyTorch, Triton, NumPy, safetensors and pytest.
# On one H200 with 16 cores all of it takes about four minutes.
set -u
cd "$(dirname "$0")/.." || exit 2
out="${1:-gpu-smoke}"
python="${PYTHON:-python3}"
mkdir -p "$out"
out="$(cd "$out" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" TENSOR_GRAPHS_HOME="${TENSOR_GRAPHS_HOME:-$work/home}"
: >"$out/summary.txt"
began=$(date +%s)
xdist=""
"$python" -c "import xdist" 2>/dev/null && xdist="-n 3"

part() { # name, command...
    local name="$1" start code
    shift
    [[ -z "${PARTS:-}" || " $PARTS " == *" $name "* ]] || return 0
    start=$(date +%s)
    timeout -k 10 "${LIMIT:-180}" "$@" >"$out/$name.log" 2>&1
    code=$?
    echo "$name: exit $code after $(($(date +%s) - start)) s; $(grep -v '^$' "$out/$name.log" | tail -n 1 | cut -c1-300)" | tee -a "$out/summary.txt"
}

tests() { # name, files and options...
    local name="$1"
    shift
    part "$name" "$python" -m pytest -m gpu -q --tb=short -rf -p no:cacheprovider "$@"
}

bench() { # name, target, options
    part "$1" env BENCH_MODES=default BENCH_HALVES=0 make "$2" GPU_PYTHON="$python" BENCH_ARGS="$3 --work $work/$1 --results $out/$1"
}

lane_programs() {
    tests graph tests/backends/program/test_cuda_graph.py tests/gpu/test_generated_programs.py tests/gpu/test_calls.py
    tests programs tests/backends/program/test_emit_cuda.py
    tests kernels $xdist tests/backends/test_torch_cuda.py
}

lane_measuring() {
    tests measure -vvv --durations=4 tests/backends/tuning/test_measure_gpu.py tests/gpu/test_measure_command.py -k "not planned" # *
}

lane_planning() {
    tests planned -vvv tests/gpu/test_measure_command.py -k planned # *
}

lane_searches() {
    part doctor "$python" -c "from tensor_graphs.cli.app import main; main(['doctor'])" # *
    tests pipeline $xdist tests/pipeline/test_gpu_pipeline.py # *
}

lane_benches() {
    bench bench-gpu bench-gpu "--only softmax_131072x128 --budget 12 --seconds 150" # *
}

lane_tools() {
    part sanitizer "$python" tests/gpu/sanitizer.py "$out"
    bench bench-gpu-models bench-gpu-models "--only bert_base_fp16_b8_t128 --budget 15 --case-seconds 110 --seconds 120" # *
}

part facts "$python" -c "from tensor_graphs.backends.gpu import facts; [print(k, v, sep=': ') for k, v in facts().items()]"
for lane in programs measuring planning searches benches tools; do "lane_$lane" & done
wait
tests bad-input -vvv --durations=4 tests/gpu/test_bad_input.py # *

echo "all parts: $(($(date +%s) - began)) s" | tee -a "$out/summary.txt"
! grep -q "exit [1-9]" "$out/summary.txt"
