#!/usr/bin/env bash
# Checks the GPU kernels on a machine without a GPU:
#   1. compiles them for AMD's GPUs, and for NVIDIA's where there is nvcc, and looks at the machine code;
#   2. runs the tests of the ops on the kernels in the emulator (docs/gpu.md), with its threads in either order where
#      that can matter, and products of 16-bit types with every kind of matrix core.
# Needs .venv as `make build` leaves it. What it makes is in build/gpu-check.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=build/gpu-check
mkdir -p "$out"

packages=(clang-19 clang-tools-19 llvm-19 lld-19 libamdhip64-dev rocm-device-libs)
missing=()
for package in "${packages[@]}"; do
  dpkg-query --show --showformat='${db:Status-Status}\n' "$package" 2> /dev/null | grep -qx installed || missing+=("$package")
done
if ((${#missing[@]})); then
  install=(apt-get install --yes --no-install-recommends "${missing[@]}")
  if [[ $(id -u) != 0 ]] || ! command -v apt-get > /dev/null; then
    echo "The GPU check needs packages of Debian that are not installed. As root: ${install[*]}" >&2
    exit 1
  fi
  echo "=== ${install[*]}"
  apt-get update
  "${install[@]}"
fi

gpus=(gfx90a gfx942 gfx1100 gfx1201)
if command -v nvcc > /dev/null; then gpus+=(sm_90); fi
echo "=== machine code for ${gpus[*]} (after $SECONDS s)"
.venv/bin/python tools/gpu/check_kernels.py "${gpus[@]}" --out "$out"

# An installation of its own, which sees what is installed in .venv but not fastops there.
echo "=== emulator (after $SECONDS s)"
emulated=$out/venv
if [[ ! -e $emulated ]]; then
  .venv/bin/python -m venv --without-pip "$emulated"
  site='import sysconfig; print(sysconfig.get_paths()["purelib"])'
  .venv/bin/python -c "$site" > "$("$emulated/bin/python" -c "$site")/outer.pth"
fi
PATH="$PWD/.venv/bin:$PATH" .venv/bin/python -m pip --python "$emulated/bin/python" install --quiet \
  --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall \
  --config-settings=cmake.define.FASTOPS_GPU=emulate --config-settings=build-dir=build/gpu-emulator \
  --config-settings=cmake.define.FASTOPS_WERROR="${WERROR:+ON}" .

# Without the CPU kernels' products, the tests do not expect what only these promise.
export FASTOPS_CPU_CAPABILITY=default FASTOPS_TEST_PROFILE=quick ASAN_OPTIONS=detect_leaks=0
emulate() {
  echo "=== tests in the emulator, matrix cores $1, threads $2 (after $SECONDS s)"
  FASTOPS_EMULATOR_GPU=$1 FASTOPS_EMULATOR_ORDER=$2 LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so.6)" \
    "$emulated/bin/python" -m pytest -n auto -q "${@:3}"
}
emulate gfx90a forward tests/test_{activation,bias_act,gated_act,mlp,gated_mlp,autograd,autograd_in_place,functorch,opcheck}.py
emulate gfx1100 reverse tests/test_{bias_act,mlp}.py # whose kernels have barriers
for gpu in gfx942 gfx1201 sm_90 none; do emulate "$gpu" forward tests/test_mlp.py -k "float16 and small"; done
echo "=== GPU check passed (after $SECONDS s)"
