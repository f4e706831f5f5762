#!/usr/bin/env bash
# Checks the GPU kernels on a machine without a GPU:
#   1. compiles them for AMD's GPUs, and for NVIDIA's where there is nvcc, and looks at the machine code;
#   2. runs the code that launches them on a runtime that writes launches down and runs nothing;
#   3. runs the tests of the ops on the kernels in the emulator (docs/gpu.md);
#   4. runs those of the kernels once more, of few activations, with sanitizers, with the threads in either order, and
#      products of 16-bit types with every kind of matrix core.
# With "quick": 1 for two GPUs, and few activations for the others; 3 with the threads in reverse order, and few
# activations where the tests come to the kernels through the rest of the library; 4 with the threads in order, one kind
# of matrix cores and without the tests that take longest; the products of small networks with the other kinds, in
# reverse order and without sanitizers.
# Needs .venv as `make build` leaves it. What it makes is in build/gpu-check.
set -euo pipefail
cd "$(dirname "$0")/../.."
case $* in
  "") quick= ;;
  quick) quick=yes ;;
  *) echo "what may be asked for is quick, not $*" && exit 2 ;;
esac
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

gpus=(gfx90a sm_90 gfx942 gfx1100 gfx1201)
languages=(hip)
skipped=
if command -v nvcc > /dev/null; then
  languages+=(cuda)
else
  skipped=", SKIPPED: sm_90 and launches by CUDA, for which there is no nvcc"
fi
echo "=== machine code for ${gpus[*]} (after $SECONDS s)"
.venv/bin/python tools/gpu/check_kernels.py "${gpus[@]:0:2}" ${quick:+--few} "${gpus[@]:2}" --out "$out"

echo "=== build (after $SECONDS s)"
version=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_config_var("py_version_nodot"))')
build=$(echo build/cp"$version"-*-linux_*)
.venv/bin/cmake -S . -B "$build" > /dev/null
.venv/bin/cmake --build "$build" --target fastops_emulated gpu_kernels_sanitized "${languages[@]/#/fastops_launching_}"
.venv/bin/cmake --install "$build" --prefix "$out/install" > /dev/null
for package in "$out" "${languages[@]/#/$out/launching/}"; do
  cp -r python/fastops/. "$out/install"/fastops/{libfastops_*.so,_activations.py} "$package/fastops/"
  (cd "$out/install/fastops" && cp --parents torch-*/{_C*,_build.py} "$OLDPWD/$package/fastops/")
done

# An environment of its own, as the other one's fastops is found before any in PYTHONPATH.
if [[ ! -e $out/venv ]]; then
  .venv/bin/python -m venv --without-pip "$out/venv"
  packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  printf '%s\n' "$PWD/$out" "$packages" > "$(echo "$out"/venv/lib/python*/site-packages)/fastops.pth"
fi

echo "=== launches by ${languages[*]} (after $SECONDS s)"
bash examples/backend/build.sh
for language in "${languages[@]}"; do
  PYTHONPATH=$out/launching/$language:build/backend/site FASTOPS_BACKEND_AUTOLOAD=0 FASTOPS_TEST_DEVICE=hostmem \
    FASTOPS_GPU_RUNTIME=$out/launching/libgpu_runtime.so "$out/venv/bin/python" -m pytest -q tests/test_gpu_launch.py
done

# Without the CPU kernels' products, the tests do not expect what only these promise.
export FASTOPS_CPU_CAPABILITY=default FASTOPS_TEST_PROFILE=quick PYTHONPATH=tools/gpu
tests() { "$out/venv/bin/python" -m pytest -n auto -q "$@"; }
kernels=(tests/test_{activation,bias_act,gated_act,mlp,gated_mlp,far_apart}.py)
# Left out: what does not come to the kernels (packaging, benchmarks, conversion, the composite path, tools for PyTorch's
# graphs), several processes, and tensors that are too large for the emulator.
callers=(tests/test_{autograd,autograd_in_place,errors,errors_writing,functorch,mixed_precision,nn,nn_layers}.py)
echo "=== tests in the emulator (after $SECONDS s)"
if [[ $quick ]]; then
  FASTOPS_EMULATOR_ORDER=reverse tests "${kernels[@]}" -k "not (threads or 20000-67 or sixteen_bit_value and not gelu)"
  PYTEST_PLUGINS=few_activations tests "${callers[@]}"
else
  callers+=(tests/test_{autograd_tools,compile,from_sequential,introspection,nn_modes,opcheck,opinfo}.py)
  tests "${kernels[@]}" "${callers[@]}"
fi
FASTOPS_EMULATOR_BLOCKS=ends "$out/venv/bin/python" -m pytest -q tests/test_far_apart.py -k test_ends

small=(tests/test_mlp.py -k "float16 and small")
if [[ $quick ]]; then
  echo "=== products with matrix cores, threads reverse (after $SECONDS s)"
  for gpu in gfx942 gfx1100 gfx1201 sm_90; do
    FASTOPS_EMULATOR_GPU=$gpu FASTOPS_EMULATOR_ORDER=reverse tests -n 0 "${small[@]}" &
  done
  for job in $(jobs -p); do wait "$job"; done
fi

# Without the tests of the CPU's threads, those of the largest tensors, and those of other activations; in the part,
# without others that take long, too.
without="threads or 20000-67 or test_blocks or is_glu or sum_backward or functions_are_the_ops"
if [[ $quick ]]; then
  without+=" or sixteen_bit_value or 513-600 or (every_lane or many_rows) and (identity or silu or softplus)"
fi
export PYTEST_ADDOPTS="-k 'not ($without)'"
export ASAN_OPTIONS=detect_leaks=0 PYTEST_PLUGINS=few_activations
preload="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so.6)"
preload+=" $PWD/$out/fastops/libgpu_kernels_sanitized.so"
sanitized() {
  echo "=== tests with sanitizers, matrix cores $1, threads $2 (after $SECONDS s)"
  FASTOPS_EMULATOR_GPU=$1 FASTOPS_EMULATOR_ORDER=$2 LD_PRELOAD=$preload tests "${@:3}"
}
sanitized gfx90a forward "${kernels[@]}"
if [[ ! $quick ]]; then
  sanitized gfx1100 reverse tests/test_{bias_act,mlp,gated_mlp}.py # whose kernels have barriers
  for gpu in gfx942 gfx1201 sm_90 none; do sanitized "$gpu" forward "${small[@]}"; done
fi
echo "=== GPU check passed$skipped (after $SECONDS s)"
