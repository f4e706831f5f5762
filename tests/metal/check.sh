#!/usr/bin/env bash
# make metal-check: everything about the Metal backend that can be checked without a Mac. Needs a built .venv.
# With "quick": no mutations, and two orders of the threads. Few activations with one of them, for what depends on where
# an element is, and for the tests that come to the kernels through the rest of the library, of which there are fewer.
# Every value of bfloat16 and not of float16, no tests of the largest tensors.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/checks.sh
no_more_arguments "$@"

if ! command -v clang-19 > /dev/null; then
  if [[ $(id -u) = 0 ]] && command -v apt-get > /dev/null; then
    apt-get update
    apt-get install --yes --no-install-recommends clang-19
  else
    echo "clang-19 is missing: on Debian and Ubuntu, apt-get install clang-19" >&2
    exit 1
  fi
fi

out=build/metal

step "metal: is it legal Metal"
.venv/bin/python tests/metal/kernels.py check

step "metal: build"
mkdir -p "$out/fastops"
.venv/bin/python tests/metal/kernels.py build "$out/libkernels.so" &
kernels=$!
build_targets "$out" fastops_on_fake_mps
package "$out" "$out"
environment "$out"
wait "$kernels"
export FASTOPS_TEST_DEVICE=mps FASTOPS_METAL_KERNELS=$PWD/$out/libkernels.so
pytest() { "$out/venv/bin/python" -m pytest -n 2 -q "$@"; }

few() { PYTEST_PLUGINS=few_activations PYTHONPATH=tools/gpu "$@"; }

if [[ ! $quick ]]; then
  step "metal: mutations"
  "$out/venv/bin/python" tests/metal/mutations.py
fi

# README.md says why not these.
without="decompos or onnx or documentation or on_threads or negative_bit"
kernels=(tests/metal tests/test_{activation,bias_act,gated_act,mlp,gated_mlp,far_apart}.py)
together="the kernels whose threads work together, in several orders of the threads"
# Without the large products: small ones take several tiles, too.
linear="forward or autograd or linear_act or exact"
# The seeds of the threads' order differ, and with 0 they are in step.
if [[ $quick ]]; then
  step "metal: $together"
  FASTOPS_METAL_LINEAR=1 FASTOPS_METAL_SCHEDULE=2 few pytest tests/test_{bias_act,mlp}.py \
    -k "not (threads or 20000 or bfloat16 or [16-) and (test_bias_act and (backward or gradient) or test_mlp and ($linear))"
  step "metal: the suite"
  export FASTOPS_METAL_SCHEDULE=0
  without+=" or threads or blocks or every_mask or 20000-67 or sixteen_bit_value and dtype1 or many_rows and bfloat16"
  without+=" or every_lane and not (softplus or selu or mish)"
  pytest "${kernels[@]}" -k "not ($without)"
  few pytest tests/test_{autograd{,_in_place},mixed_precision,storages,nn_layers}.py -k "not ($without)"
else
  step "metal: $together"
  FASTOPS_METAL_SCHEDULE=0 pytest tests/test_bias_act.py -k "backward or gradient"
  FASTOPS_METAL_LINEAR=1 FASTOPS_METAL_SCHEDULE=2 pytest tests/test_mlp.py -k "$linear"
  step "metal: the suite"
  export FASTOPS_METAL_SCHEDULE=1
  pytest tests -k "not ($without)" --ignore-glob=tests/test_{compile_,fuse}\*.py \
    --ignore=tests/test_{backends,bench,capability,composability,convert_models,cpp,distributed,dtensor,examples,gpu,large}.py
fi
