#!/usr/bin/env bash
# Cross-compiles the wheel for Linux on aarch64, and runs tests of the ops with it in an emulator, beside torch's wheel
# for aarch64. Other tests: ARGS="tests/test_math.py -k erf". BUILD_OPTIONS are pip's. What it makes is in
# build/aarch64.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/checks.sh
missing=()
for program in aarch64-linux-gnu-g++ qemu-aarch64-static apt-get dpkg; do
  command -v "$program" > /dev/null || missing+=("$program")
done
if ((${#missing[@]})); then
  echo "missing: ${missing[*]}. It takes Debian, and there apt-get install g++-aarch64-linux-gnu qemu-user-static" >&2
  exit 1
fi
folder=$PWD/build/aarch64

step "aarch64: Python and torch"
tools/aarch64/prepare.sh "$folder"

step "aarch64: build"
# Of the Python that is asked, this is what differs on another machine.
data=_sysconfigdata__aarch64-linux-gnu
mkdir -p "$folder/sysconfig"
cp "$folder"/root/usr/lib/python3.*/$data.py "$folder/sysconfig/"
rm -rf "$folder"/{wheel,package}
# shellcheck disable=SC2086 # they are several
_PYTHON_HOST_PLATFORM=linux-aarch64 _PYTHON_SYSCONFIGDATA_NAME=$data PYTHONPATH=$folder/sysconfig \
  FASTOPS_TORCH_ROOT=$folder/site/torch .venv/bin/python -m pip wheel --disable-pip-version-check --no-build-isolation \
  --no-deps ${BUILD_OPTIONS:-} --config-settings=build-dir="$folder/build" --wheel-dir "$folder/wheel" \
  --config-settings=cmake.define.FASTOPS_GPU=none \
  --config-settings=cmake.define.CMAKE_TOOLCHAIN_FILE="$PWD/tools/aarch64/toolchain.cmake" .
.venv/bin/python -m zipfile -e "$folder"/wheel/*-linux_aarch64.whl "$folder/package"

step "aarch64: tests"
export CI=true FASTOPS_TEST_PROFILE=brief
python=$folder/root/usr/bin/python
"$python" -m fastops
tests=("$@")
if ((!$#)); then
  tests=(tests/test_{activation,bias_act,gated_act,mlp,gated_mlp,memory}.py
    tests/test_autograd.py::test_{first_derivatives,any_subset_of_inputs,accumulation_over_calls}
    # Those take three quarters of an hour of emulation, and try nothing that depends on the instructions.
    --deselect=tests/test_memory.py::test_threads --deselect=tests/test_gated_mlp.py::test_blocks)
fi
"$python" -m pytest -p no:cacheprovider -n auto --dist worksteal -q "${tests[@]}"
(($#)) && exit

# The functions are compiled here.
export CXX=aarch64-linux-gnu-g++
for bits in 256 128; do
  step "aarch64: tests with SVE of $bits bits"
  export QEMU_CPU=max,sve-default-vector-length=$((bits / 8))
  "$python" -m pytest -p no:cacheprovider -q tests/test_math.py \
    tests/test_capability.py::test_{default_is_the_best,pytorch_choice_is_honoured}
  FASTOPS_CPU_CAPABILITY=default "$python" -m pytest -p no:cacheprovider -q \
    "tests/test_capability.py::test_results[sve$bits]"
done
