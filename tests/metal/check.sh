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
tag=$("$python" -c 'import sysconfig as s; print(f"{s.get_config_var("py_version_nodot")}-linux")')
build=$(echo build/cp"${tag%-*}"-*-linux_*)

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
"$python" tests/metal/kernels.py build "$out/libkernels-sanitized.so" --sanitize &
sanitized=$!

# An environment of its own, as the other one's fastops is found before any in PYTHONPATH.
if [[ ! -e $out/venv ]]; then
  "$python" -m venv --without-pip "$out/venv"
  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  printf '%s\n' "$PWD/$out" "$packages" > "$(echo "$out"/venv/lib/python*/site-packages)/fastops.pth"
fi
export FASTOPS_TEST_DEVICE=mps FASTOPS_TEST_PROFILE=quick FASTOPS_METAL_KERNELS=$PWD/$out/libkernels.so
pytest() { "$out/venv/bin/python" -m pytest -n 2 -q "$@"; }

wait "$sanitized"
step "the kernels that share memory, in other orders of the threads"
for schedule in 1 2; do
  FASTOPS_METAL_SCHEDULE=$schedule pytest tests/test_bias_act.py
done
step "undefined behavior"
FASTOPS_METAL_KERNELS=$PWD/$out/libkernels-sanitized.so pytest \
  tests/test_activation.py tests/test_bias_act.py tests/test_gated_act.py
step "the product of linear_act"
FASTOPS_METAL_LINEAR=1 pytest tests/test_mlp.py
step "mutations"
"$out/venv/bin/python" tests/metal/mutations.py
step "the tests of the backend's own parts"
pytest tests/metal
step "the suite"
# Not those of what has no device: the package, the benchmark, the CPU's instruction sets.
pytest tests --ignore-glob='tests/test_[!c]*_*' --deselect tests/test_bench.py
