#!/usr/bin/env bash
# make backend-check: builds this package with find_package(fastops) and runs its tests, and those of fastops on its
# device, with its kernels and without. Needs a built .venv.
set -euo pipefail
cd "$(dirname "$0")/../.."

step() { echo "=== backend: $1 (after $SECONDS s)"; }
out=$PWD/build/backend

step "build"
# Beside the environment and not in it: `import torch` would load the device in every other test.
.venv/bin/python -m pip install --disable-pip-version-check --quiet --no-build-isolation --no-deps --upgrade \
  --target "$out/site" --config-settings=build-dir="$out/cmake" --config-settings=cmake.define.HOSTMEM_WERROR=ON \
  examples/backend
export PYTHONPATH=$out/site FASTOPS_TEST_DEVICE=hostmem FASTOPS_TEST_PROFILE=quick
pytest() { .venv/bin/python -m pytest -n auto -q "$@"; }

step "the device"
pytest -c examples/backend/pyproject.toml examples/backend/tests
# Not the tests of what has no device, and not those that compile programs.
suite=(tests/test_activation.py tests/test_autograd.py tests/test_autograd_in_place.py tests/test_bias_act.py
  tests/test_composite.py tests/test_errors.py tests/test_errors_writing.py tests/test_functorch.py
  tests/test_gated_act.py tests/test_gated_mlp.py tests/test_mlp.py tests/test_nn.py tests/test_nn_layers.py)
step "the suite, native kernels"
pytest "${suite[@]}"
step "the suite, through PyTorch's ops"
FASTOPS_BACKEND_AUTOLOAD=0 pytest "${suite[@]}"
