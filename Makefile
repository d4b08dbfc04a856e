# Two commands set everything up on a machine with Python 3.11+, make and a C compiler: make demo, make test.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: demo test check site bench bench-gpu bench-gpu-models lint types wheel clean size

# The CPU build of PyTorch is pinned: an open requirement would fetch gigabytes of CUDA libraries. pip compiles modules on
# one core, compileall on all; it fails at files that are no Python, such as templates.
$(READY): pyproject.toml hatch_build.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-compile -e ".[onnx,dev,notebook,docs]"
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	touch $(READY)

demo: $(READY)  ## optimize real model files that the demo writes itself
	$(BIN)/python examples/demo.py

test: export PYTHONDONTWRITEBYTECODE =
test: $(READY)  ## the whole test suite; its hundreds of processes compile each module once
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: lint types wheel  ## everything CI checks beside the tests

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## the package, then its public names as a caller's type checker sees them
	$(BIN)/mypy
	$(BIN)/mypy tests/project/typed_use.py

wheel: $(READY)  ## sdist -> wheel -> clean environment -> command line from another folder
	$(BIN)/python .ci/check_wheel.py

site: export DISABLE_MKDOCS_2_WARNING = true
site: export OPENBLAS_NUM_THREADS = 1
site: $(READY)  ## the documentation with its examples executed: build/site/index.html
	$(BIN)/python -m mkdocs build --quiet

bench: $(READY)  ## measure the figures of benchmarks/ and write benchmarks/results/
	$(BIN)/python -m benchmarks.run

# On a GPU machine, with whatever Python has its PyTorch: GPU_PYTHON=python3. BENCH_ARGS="--only NAME" "--ours-only" ...
GPU_PYTHON ?= python3

bench-gpu:  ## measure workloads on the GPU here for nine minutes, those measured longest ago first
	PYTHONPATH="src$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON) -m benchmarks.gpu.workloads $(BENCH_ARGS)

bench-gpu-models:  ## whole models on the GPU here
	PYTHONPATH="src$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON) -m benchmarks.gpu.whole_models $(BENCH_ARGS)

size: $(READY)  ## lines per folder: growth is a choice
	@$(BIN)/python .ci/size.py

clean:
	rm -rf $(VENV) dist build demo-out
