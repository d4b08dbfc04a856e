#!/usr/bin/env bash
# Generation on a GPU, about nine minutes: tests of small decoders, then decode steps of Gemma-3-270M and Llama-3.2-1B at random weights
# beside PyTorch. Run from the repository's root: PYTHON=... bash tests/gpu_generate.sh. Every part has its own time limit and the rest goes
# on after a failure. Results: out/generate/ (OUT) and standard output.
set -u
PYTHON=${PYTHON:-python}
OUT=${OUT:-out/generate}
BUDGET=${BUDGET:-60}
mkdir -p "$OUT"
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" BENCH_WORK="$OUT"

part() { # name, seconds, command ...
    local name=$1 seconds=$2 begun=$SECONDS
    shift 2
    timeout "$seconds" "$@" >"$OUT/$name.out" 2>&1
    local code=$?
    echo "== $name: exit code $code after $((SECONDS - begun)) s"
    tail -n 12 "$OUT/$name.out" | cut -c1-1500
}

part tests 200 "$PYTHON" -m pytest -q -p no:cacheprovider tests/gpu/test_generate.py
part gemma 330 "$PYTHON" -m benchmarks.llm gemma-270m --budget "$BUDGET" --limit 240
cp "$OUT/llm.json" "$OUT/gemma.json" 2>/dev/null
part llama 400 "$PYTHON" -m benchmarks.llm llama-1b --budget "$BUDGET" --limit 290
cp "$OUT/llm.json" "$OUT/llama.json" 2>/dev/null
