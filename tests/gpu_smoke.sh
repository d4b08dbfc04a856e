#!/usr/bin/env bash
# What only a GPU can show, unattended: every part has a log and a time limit of its own, and none stops the others.
#   tests/gpu_smoke.sh [FOLDER]        PYTHON=python3 LIMIT=300 select the interpreter and the seconds of each part
# Parts marked * need egglog and a solver; the others need PyTorch, Triton, NumPy, safetensors and pytest.
set -u
cd "$(dirname "$0")/.." || exit 2
out="${1:-gpu-smoke}"
python="${PYTHON:-python3}"
mkdir -p "$out"
out="$(cd "$out" && pwd)"
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" TENSOR_GRAPHS_HOME="${TENSOR_GRAPHS_HOME:-$out/home}"
: >"$out/summary.txt"

part() {
    local name="$1" start code
    shift
    start=$(date +%s)
    timeout "${LIMIT:-300}" "$@" >"$out/$name.log" 2>&1
    code=$?
    echo "$name: exit $code after $(($(date +%s) - start)) s; $(tail -n 1 "$out/$name.log")" | tee -a "$out/summary.txt"
}

tests() { # name, files...
    local name="$1"
    shift
    part "$name" "$python" -m pytest -m gpu -q --tb=short -p no:cacheprovider "$@"
}

part facts "$python" -c "from tensor_graphs.backends.gpu import facts; [print(k, v, sep=': ') for k, v in facts().items()]"
tests graph tests/backends/test_cuda_graph.py
tests programs tests/backends/test_emit_cuda.py
tests kernels tests/backends/test_torch_cuda.py
part doctor "$python" -c "from tensor_graphs.cli import main; main(['doctor'])" # *
tests pipeline tests/test_gpu_pipeline.py # *

! grep -q "exit [1-9]" "$out/summary.txt"
