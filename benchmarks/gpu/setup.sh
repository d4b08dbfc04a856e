# Make the working tree importable on a machine where nothing can be installed into Python: source it before `make bench-gpu`.
#
#   . benchmarks/gpu/setup.sh [WHEELS]
#
# WHEELS is a folder of wheels of what Python lacks there (egglog, duckdb, ortools, ...); they are unpacked into a temporary folder.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for folder in egraph rules extract backends costdb models; do
  [ -e "$root/src/tensor_graphs/$folder" ] || ln -s "../../$folder" "$root/src/tensor_graphs/$folder"
done
export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}"
if [ -n "${1:-}" ]; then
  site=$(mktemp -d)
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$1"/*.whl
  export PYTHONPATH="$PYTHONPATH:$site"
fi
export TENSOR_GRAPHS_HOME="${TENSOR_GRAPHS_HOME:-$root/out/home}"
# As an installation does: modules are compiled once. Here the first process does it, so that no measured one does.
export PYTHONPYCACHEPREFIX="${PYTHONPYCACHEPREFIX:-$root/out/bytecode}"
unset PYTHONDONTWRITEBYTECODE
python3 -c 'import tensor_graphs, torch, torch._dynamo, torch.export._trace; tensor_graphs.optimize; print(torch.__version__, torch.cuda.is_available() and torch.cuda.get_device_name())'
