#!/usr/bin/env bash
# Runs tests on a library that is compiled with sanitizers:
#   address   reads and writes of memory, and what C++ leaves undefined: the ops, autograd and the kernels;
#   thread    races: inference, training, results and graphs of several threads at once, and the threads of one op.
# Then breaks the code once, which the sanitizer must notice. torch itself is not instrumented. With "quick" as the first
# argument, no kernels for AVX-512 and fewer tests; which of the two to run may be named, too.
# Needs .venv as `make build` leaves it, and g++. What it makes is in build/sanitize.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
avx512=ON
if [[ ${1:-} == quick ]]; then
  avx512=OFF
  shift
fi
kinds=("${@:-address thread}")
export PATH=$root/.venv/bin:$PATH
step() { echo "=== sanitize: $1 (after $SECONDS s)"; }

# From a copy of the sources, so that they can be broken.
build() {
  out=$root/build/sanitize/$1
  mkdir -p "$out/source" "$out/fastops"
  cp -ru CMakeLists.txt cmake src tools "$out/source/"
  cmake -S "$out/source" -B "$out/build" -G Ninja -D FASTOPS_SANITIZE="$1" -D FASTOPS_AVX512=$avx512 \
    -D FASTOPS_ASSERTIONS=ON -D FASTOPS_GPU=none -D Python_EXECUTABLE="$root/.venv/bin/python" \
    -D SKBUILD_PROJECT_VERSION="$version" -D SKBUILD_PROJECT_VERSION_FULL="$version" > /dev/null
  cp -r python/fastops/. "$out/fastops/"
  compile
  # An environment of its own, as the other one's fastops is found before any in PYTHONPATH.
  if [[ ! -e $out/venv ]]; then
    python -m venv --without-pip "$out/venv"
    printf '%s\n' "$out" "$packages" > "$(echo "$out"/venv/lib/python*/site-packages)/fastops.pth"
  fi
}
compile() {
  cmake --build "$out/build" > "$out/build.log" || { tail -50 "$out/build.log"; return 1; }
  cmake --install "$out/build" --prefix "$out/install" > /dev/null
  cp -r "$out"/install/fastops/{_C*,libfastops*,_activations.py,_build.py} "$out/fastops/"
}

# pytest with the library and a sanitizer's runtime.
sanitized() {
  LD_PRELOAD="$(g++ -print-file-name="$1") $(g++ -print-file-name=libstdc++.so.6)" \
    "$out/venv/bin/python" -m pytest -p no:cacheprovider -q "${@:2}"
}
address() { sanitized libasan.so -x "$@"; }
thread() { sanitized libtsan.so -s "$@"; }

# breaks KIND FILE BEFORE AFTER TESTS...: whether the tests fail when BEFORE, in FILE, is AFTER.
breaks() {
  local file=$out/source/$2
  step "$1: '$3' becomes '$4'"
  python - "$file" "$3" "$4" << 'END'
import pathlib, sys
path, before, after = pathlib.Path(sys.argv[1]), *sys.argv[2:]
text = path.read_text()
assert before in text, f"{path} has no {before!r}"
path.write_text(text.replace(before, after, 1))
END
  compile
  local status=0
  "$1" "${@:5}" > "$out/broken.log" 2>&1 || status=$?
  cp "$2" "$file"
  compile
  grep -q "ERROR: AddressSanitizer\|runtime error:\|WARNING: ThreadSanitizer: data race" "$out/broken.log" && ((status)) && return
  echo "the sanitizer did not notice:"
  tail "$out/broken.log"
  return 1
}

version=$(python -c 'from importlib.metadata import version; print(version("fastops"))')
packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
export CI=true FASTOPS_TEST_PROFILE=quick PYTEST_PLUGINS=few_activations PYTHONPATH=$root/tools/gpu
export FASTOPS_FEW_ACTIVATIONS=$root/tools/sanitize/few_activations.h
# CPython and torch keep memory until the end; results' ends are noticed where each result has memory of its own.
export ASAN_OPTIONS=detect_leaks=0
export TSAN_OPTIONS="suppressions=$root/tools/sanitize/thread.supp history_size=4"

for kind in ${kinds[*]}; do
  step "$kind: build"
  build "$kind"
  step "$kind: tests"
  case $kind in
    address)
      FASTOPS_CPU_KEPT_MIB=0 address tests/test_{activation,bias_act,gated_act,mlp,gated_mlp}.py -k "not is_glu"
      address tests/test_{memory,threads,autograd_threads}.py
      breaks address src/backends/cpu/activation.cpp "end - begin, spec" "end - begin + 1, spec" \
        tests/test_activation.py -k test_forward
      ;;
    thread)
      thread tests/test_{threads,autograd_threads}.py tests/test_memory.py -k "threads"
      breaks thread src/autograd/shared_node.cpp "lock_(node.turn_)" "lock_(*new std::recursive_mutex)" \
        tests/test_autograd_threads.py -k accumulated
      ;;
  esac
done
step passed
