#!/usr/bin/env bash
# make metal-check: everything about the Metal backend that can be checked without a Mac. Needs a built .venv.
set -euo pipefail
cd "$(dirname "$0")/../.."

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
cp -r python/fastops/. "$out/install"/fastops/{_C*,_activations.py,_build.py} "$out/fastops/"
wait "$kernels"
"$python" tests/metal/kernels.py build "$out/libkernels-sanitized.so" --sanitize

# An environment of its own, as the other one's fastops is found before any in PYTHONPATH.
if [[ ! -e $out/venv ]]; then
  "$python" -m venv --without-pip "$out/venv"
  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  printf '%s\n' "$PWD/$out" "$packages" > "$(echo "$out"/venv/lib/python*/site-packages)/fastops.pth"
fi
export FASTOPS_TEST_DEVICE=mps FASTOPS_TEST_PROFILE=quick FASTOPS_METAL_KERNELS=$PWD/$out/libkernels.so
pytest() { "$out/venv/bin/python" -m pytest -n 2 -q "$@"; }

step "undefined behavior, and other orders of the threads"
FASTOPS_METAL_KERNELS=$PWD/$out/libkernels-sanitized.so FASTOPS_METAL_SCHEDULE=1 pytest \
  tests/test_activation.py tests/test_bias_act.py tests/test_gated_act.py
step "the matrix product of linear_act, in another order"
FASTOPS_METAL_LINEAR=1 FASTOPS_METAL_SCHEDULE=2 pytest tests/test_mlp.py
step "mutations"
"$out/venv/bin/python" tests/metal/mutations.py
step "the backend's own tests, and the suite"
# Those that reach the backend: not those of the package, the benchmark or the CPU's instruction sets.
pytest tests/metal tests/test_{activation,bias_act,gated_act,mlp,gated_mlp,fallback}.py tests/test_errors*.py \
  tests/test_nn*.py tests/test_autograd{,_in_place}.py tests/test_functorch.py tests/test_from_sequential.py
