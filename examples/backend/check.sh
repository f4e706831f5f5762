#!/usr/bin/env bash
# make backend-check: builds this package with find_package(fastops) and runs its tests, and those of fastops on its
# device, with its kernels and without. Needs a built .venv. With "quick": those of fastops for few activations, and each
# file where it shows most: the transforms without kernels, which is where they differ from the CPU's, errors and values
# with (test_composite.py has those of PyTorch's ops, on the CPU), but not where in a tensor an element is, as the kernels
# are the CPU's, nor second derivatives, which are those of the transforms.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/checks.sh
no_more_arguments "$@"

step "backend: build"
bash examples/backend/build.sh
export PYTHONPATH=$PWD/build/backend/site FASTOPS_TEST_DEVICE=hostmem
pytest() { .venv/bin/python -m pytest -n auto -q "$@"; }

step "backend: the device"
pytest -c examples/backend/pyproject.toml examples/backend/tests
if [[ $quick ]]; then
  export PYTEST_PLUGINS=few_activations PYTHONPATH=$PYTHONPATH:tools/gpu
fi
# Not the tests of what has no device: the package, the benchmark, the CPU's instruction sets.
values=(tests/test_{activation,bias_act,gated_act,gated_mlp,mlp}.py)
gradients=(tests/test_{autograd,autograd_in_place}.py)
native=("${values[@]}" "${gradients[@]}" tests/test_{errors,errors_writing}.py)
composite=("${gradients[@]}" tests/test_functorch.py)
without="every_lane or tails or many_rows or blocks or small or sixteen_bit_value or second_derivatives"
if [[ ! $quick ]]; then
  native+=(tests/test_{functorch,nn,nn_layers}.py)
  composite+=("${values[@]}" tests/test_{composite,nn,nn_layers}.py)
fi
step "backend: the suite, native kernels"
pytest "${native[@]}" ${quick:+-k "not ($without)"}
step "backend: the suite, through PyTorch's ops"
FASTOPS_BACKEND_AUTOLOAD=0 pytest "${composite[@]}"
