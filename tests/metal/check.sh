#!/usr/bin/env bash
# make metal-check: everything about the Metal backend that can be checked without a Mac. Needs a built .venv.
# With "quick": no mutations; of few activations the other orders of the threads, and the tests that come to the kernels
# through the rest of the library.
set -euo pipefail
cd "$(dirname "$0")/../.."
case $* in
  "") quick= ;;
  quick) quick=yes ;;
  *) echo "what may be asked for is quick, not $*" && exit 2 ;;
esac

if ! command -v clang-19 > /dev/null; then
  if [[ $(id -u) = 0 ]] && command -v apt-get > /dev/null; then
    apt-get update
    apt-get install --yes --no-install-recommends clang-19
  else
    echo "clang-19 is missing: on Debian and Ubuntu, apt-get install clang-19" >&2
    exit 1
  fi
fi

step() { echo "=== metal: $1 (after $SECONDS s)"; }
out=build/metal
python=.venv/bin/python
version=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("py_version_nodot"))')
build=$(echo build/cp"$version"-*-linux_*)

step "legal Metal"
"$python" tests/metal/kernels.py check

step "build"
mkdir -p "$out/fastops"
"$python" tests/metal/kernels.py build "$out/libkernels.so" &
kernels=$!
.venv/bin/cmake -S . -B "$build" > /dev/null
.venv/bin/cmake --build "$build" --target fastops_on_fake_mps
.venv/bin/cmake --install "$build" --prefix "$out/install" > /dev/null
cp -r python/fastops/. "$out/install"/fastops/{libfastops_*.so,_activations.py} "$out/fastops/"
(cd "$out/install/fastops" && cp --parents torch-*/{_C*,_build.py} ../../fastops/)
wait "$kernels"

# An environment of its own, as the other one's fastops is found before any in PYTHONPATH.
if [[ ! -e $out/venv ]]; then
  "$python" -m venv --without-pip "$out/venv"
  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  printf '%s\n' "$PWD/$out" "$packages" > "$(echo "$out"/venv/lib/python*/site-packages)/fastops.pth"
fi
export FASTOPS_TEST_DEVICE=mps FASTOPS_TEST_PROFILE=quick FASTOPS_METAL_KERNELS=$PWD/$out/libkernels.so
pytest() { "$out/venv/bin/python" -m pytest -n 2 -q "$@"; }

few() { PYTEST_PLUGINS=few_activations PYTHONPATH=tools/gpu "$@"; }

if [[ ! $quick ]]; then
  step "mutations"
  "$out/venv/bin/python" tests/metal/mutations.py
fi

# The seeds of the threads' order differ, and with 0 they are in step.
step "the kernels whose threads work together, in several orders of the threads"
FASTOPS_METAL_SCHEDULE=0 ${quick:+few} pytest tests/test_bias_act.py -k "backward or gradient"
# Without the large products: small ones take several tiles, too.
FASTOPS_METAL_LINEAR=1 FASTOPS_METAL_SCHEDULE=2 ${quick:+few} pytest tests/test_mlp.py \
  -k "forward or autograd or linear_act or exact"

step "the suite"
export FASTOPS_METAL_SCHEDULE=1
# README.md says why not these.
without="decompos or onnx or documentation or on_threads or negative_bit"
kernels=(tests/metal tests/test_{activation,bias_act,gated_act,mlp,gated_mlp,far_apart}.py)
if [[ $quick ]]; then
  pytest "${kernels[@]}" -k "not ($without)"
  few pytest tests/test_{autograd{,_in_place},mixed_precision,functorch,errors,errors_writing,storages,nn,nn_layers}.py \
    -k "not ($without)"
else
  pytest tests -k "not ($without)" --ignore-glob=tests/test_{compile_,fuse}\*.py \
    --ignore=tests/test_{backends,bench,capability,composability,convert_models,cpp,distributed,dtensor,examples,gpu,large}.py
fi
