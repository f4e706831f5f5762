#!/usr/bin/env bash
# make backend-check: builds this package with find_package(fastops) and runs its tests, and those of fastops on its
# device, with its kernels and without. Needs a built .venv. With "quick": those of fastops for few activations.
set -euo pipefail
cd "$(dirname "$0")/../.."
case $* in
  "") quick= ;;
  quick) quick=yes ;;
  *) echo "what may be asked for is quick, not $*" && exit 2 ;;
esac

step() { echo "=== backend: $1 (after $SECONDS s)"; }
out=$PWD/build/backend

step "build"
bash examples/backend/build.sh
export PYTHONPATH=$out/site FASTOPS_TEST_DEVICE=hostmem FASTOPS_TEST_PROFILE=quick
pytest() { .venv/bin/python -m pytest -n auto -q "$@"; }

step "the device"
pytest -c examples/backend/pyproject.toml examples/backend/tests
if [[ $quick ]]; then
  export PYTEST_PLUGINS=few_activations PYTHONPATH=$PYTHONPATH:tools/gpu
fi
# Not the tests of what has no device: the package, the benchmark, the CPU's instruction sets.
values=(tests/test_{activation,autograd,autograd_in_place,bias_act,functorch,gated_act,gated_mlp,mlp,nn,nn_layers}.py)
step "the suite, native kernels"
pytest "${values[@]}" tests/test_{errors,errors_writing}.py
step "the suite, through PyTorch's ops"
FASTOPS_BACKEND_AUTOLOAD=0 pytest "${values[@]}" tests/test_composite.py
