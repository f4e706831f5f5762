#!/usr/bin/env bash
# Checks the GPU kernels on a machine without a GPU:
#   1. compiles them for AMD's GPUs, and for NVIDIA's where there is nvcc, and looks at the machine code;
#   2. loads the libraries that the wheel has, of few activations for a few GPUs, on stand-ins for runtime and driver, and
#      runs the code that launches kernels on a runtime that writes launches down and runs nothing;
#   3. runs the tests of the ops on the kernels in the emulator (docs/gpu.md);
#   4. runs those of the kernels once more, of few activations, with sanitizers, with the threads in either order, and
#      products of 16-bit types with every kind of matrix core.
# With "quick": 1 for one GPU, and of few activations for one of each other family; 3 with the threads in reverse order,
# of two dtypes where the tests take longest, of few activations for what depends on where an element is, and few of the
# tests that come to the kernels through the rest of the library; 4 with the threads in order, float32, float16, one kind
# of matrix cores and without the tests that take longest; those of products with the other kinds, in
# reverse order and without sanitizers.
# Needs .venv as `make build` leaves it. What it makes is in build/gpu-check.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/checks.sh
no_more_arguments "$@"
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
few=()
if [[ $quick ]]; then
  gpus=(gfx90a)
  few=(sm_90 gfx1100)
fi
languages=(hip)
skipped=
if command -v nvcc > /dev/null; then
  languages+=(cuda)
else
  skipped=", SKIPPED: sm_90 and launches by CUDA, for which there is no nvcc"
fi
step "machine code for ${gpus[*]} ${few[*]}"
.venv/bin/python tools/gpu/check_kernels.py "${gpus[@]}" ${few:+--few "${few[@]}"} --out "$out"

step "build"
build_targets "$out" fastops_emulated gpu_kernels_sanitized gpu_bindings "${languages[@]/#/fastops_launching_}" \
  "${languages[@]/#/gpu_library_}"
for place in "$out" "${languages[@]/#/$out/launching/}" "$out/libraries"; do package "$out" "$place"; done
(cd "$out/install/fastops" && cp --parents torch-*/libfastops.so "$OLDPWD/$out/libraries/fastops/")
environment "$out"

# What the launches need besides, which keeps one core busy.
bash examples/backend/build.sh &
backend=$!
step "libraries for ${languages[*]} that torch loads"
PYTHONPATH=$PWD/$out/libraries "$out/venv/bin/python" -m pytest -q tests/test_gpu_libraries.py

step "launches by ${languages[*]}"
wait "$backend"
for language in "${languages[@]}"; do
  PYTHONPATH=$PWD/$out/launching/$language:$PWD/build/backend/site FASTOPS_BACKEND_AUTOLOAD=0 FASTOPS_TEST_DEVICE=hostmem \
    FASTOPS_GPU_RUNTIME=$out/launching/libgpu_runtime.so "$out/venv/bin/python" -m pytest -q tests/test_gpu_launch.py
done

# Without the CPU kernels' products, the tests do not expect what only these promise.
export FASTOPS_CPU_CAPABILITY=default PYTHONPATH=tools/gpu
tests() { "$out/venv/bin/python" -m pytest -n auto -q "$@"; }
kernels=(tests/test_{activation,bias_act,gated_act,operands,mlp,gated_mlp,far_apart,gpu_products}.py)
rows=(tests/test_sequential.py)
# Left out: what does not come to the kernels (packaging, benchmarks, conversion, the composite path, tools for PyTorch's
# graphs), several processes, and tensors that are too large for the emulator.
callers=(tests/test_{autograd,autograd_in_place,dropout,errors,errors_writing,functorch,mixed_precision,nn,nn_layers}.py)
callers+=(tests/test_gpu_epilogue.py)
step "tests in the emulator"
if [[ $quick ]]; then
  without="threads or blocks or 20000-67 or every_mask or sixteen_bit_value and not gelu or small_networks and float16"
  without+=" or many_rows and (float64 or bfloat16) or every_lane and not (softplus or selu or mish)"
  FASTOPS_EMULATOR_ORDER=reverse tests "${kernels[@]}" "${rows[@]}" -k "not ($without)"
  callers=(tests/test_{autograd,autograd_in_place,functorch,gpu_epilogue,mixed_precision,nn_layers}.py)
  PYTEST_PLUGINS=few_activations tests "${callers[@]}" -k "not compile"
else
  callers+=(tests/test_{autograd_tools,compile,from_sequential,introspection,nn_modes,opcheck,opinfo}.py)
  tests "${kernels[@]}" "${rows[@]}" "${callers[@]}"
fi

# Several in processes of their own, beside each other: with more threads, each would wait for the others'.
step "ends of large tensors"
FASTOPS_EMULATOR_BLOCKS=ends OMP_NUM_THREADS=1 tests -n 0 tests/test_far_apart.py -k test_ends &
small=(tests/test_{mlp,gpu_products}.py -k "float16 and small")
if [[ $quick ]]; then
  step "products with matrix cores, threads reverse"
  for gpu in gfx942 gfx1100 gfx1201 sm_90; do
    PYTEST_PLUGINS=few_activations FASTOPS_EMULATOR_GPU=$gpu FASTOPS_EMULATOR_ORDER=reverse OMP_NUM_THREADS=1 \
      tests -n 0 "${small[@]}" &
  done
fi
for job in $(jobs -p); do wait "$job"; done

# Without the tests of the CPU's threads, those of the largest tensors, and those of other activations; in the part,
# without others that take long, too.
without="threads or 20000-67 or test_blocks or is_glu or sum_backward or functions_are_the_ops"
if [[ $quick ]]; then
  without+=" or float64 or bfloat16 or every_mask or sixteen_bit_value or 513-600"
  without+=" or (test_activation or test_bias_act) and (identity or silu or softplus) or many_rows and identity"
fi
export PYTEST_ADDOPTS="-k 'not ($without)'"
export ASAN_OPTIONS=detect_leaks=0 PYTEST_PLUGINS=few_activations
preload="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so.6)"
preload+=" $PWD/$out/fastops/libgpu_kernels_sanitized.so"
sanitized() {
  step "tests with sanitizers, matrix cores $1, threads $2"
  FASTOPS_EMULATOR_GPU=$1 FASTOPS_EMULATOR_ORDER=$2 LD_PRELOAD=$preload tests "${@:3}"
}
sanitized gfx90a forward "${kernels[@]}"
sanitized none reverse "${rows[@]}" -k "test_blocks and float32"
if [[ ! $quick ]]; then
  sanitized none forward "${rows[@]}" -k "test_blocks or test_special_values and not relu"
  sanitized gfx1100 reverse tests/test_{bias_act,mlp,gated_mlp}.py # whose kernels have barriers
  for gpu in gfx942 gfx1201 sm_90 none; do sanitized "$gpu" forward "${small[@]}"; done
fi
step "GPU check passed$skipped"
