#!/usr/bin/env bash
# Generation on a GPU, about ten minutes: tests of small decoders, then decode steps of Gemma-3-270M and Llama-3.2-1B at random weights
# beside PyTorch in CUDA graphs. Run from the repository's root: PYTHON=... bash tests/gpu_generate.sh [PART ...]. LIMIT: seconds of the whole
# run; each part has its own time limit and the rest goes on after a failure. Results: out/generate/ (OUT) and standard output.
set -u
PYTHON=${PYTHON:-python}
OUT=${OUT:-out/generate}
BUDGET=${BUDGET:-60}
LIMIT=${LIMIT:-900}
mkdir -p "$OUT"
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"

part() { # name, seconds, command ...
    local name=$1 seconds=$2 begun=$SECONDS
    shift 2
    if ((seconds > LIMIT - SECONDS)); then seconds=$((LIMIT - SECONDS)); fi
    if ((seconds < 10)); then
        echo "== $name: no time is left"
        return
    fi
    BENCH_WORK="$OUT/$name" timeout "$seconds" "$@" >"$OUT/$name.out" 2>&1
    local code=$?
    echo "== $name: exit code $code after $((SECONDS - begun)) s"
    tail -n 40 "$OUT/$name.out" | cut -c1-2500
}

run() { # a part by name
    case $1 in
    tests) part tests 200 "$PYTHON" -m pytest -q -p no:cacheprovider tests/gpu/test_generate.py ;;
    gemma | llama | llama8) # step alone
        local model
        model=$(echo "$1" | sed 's/^gemma$/gemma-270m/; s/^llama$/llama-1b/; s/^llama8$/llama-8b/')
        part "$1" 300 "$PYTHON" -m benchmarks.decoding.llm "$model" --budget "$BUDGET" --limit 290 --parts step ;;
    gemma-all | llama-all) # peers, step and generated text
        local model
        model=$(echo "$1" | sed 's/^gemma-all$/gemma-270m/; s/^llama-all$/llama-1b/')
        part "$1" 400 "$PYTHON" -m benchmarks.decoding.llm "$model" --budget "$BUDGET" --limit 390 ;;
    peers-gemma) part "$1" 120 "$PYTHON" -m benchmarks.decoding.llm gemma-270m --limit 110 --parts peers ;;
    peers-llama) part "$1" 120 "$PYTHON" -m benchmarks.decoding.llm llama-1b --limit 110 --parts peers ;;
    text) part "$1" 300 "$PYTHON" -m benchmarks.decoding.llm gemma-270m --budget "$BUDGET" --limit 290 --parts generate ;;
    *) echo "unknown part $1" ;;
    esac
}

if (($# == 0)); then set -- tests gemma-all llama-all; fi
for name in "$@"; do run "$name"; done
