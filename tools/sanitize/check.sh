#!/usr/bin/env bash
# Runs tests on a library that is compiled with sanitizers:
#   address   reads and writes of memory, and what C++ leaves undefined: the kernels, workspaces, ops and autograd;
#   thread    races: inference, training, memory and graphs of several threads at once, and the threads of one op.
# Then breaks the code, which the sanitizer must notice. torch itself is not instrumented. With "quick" as the first
# argument: no kernels for AVX-512, fewer tests, and of the ops and the graph's nodes only what locks the latter. Which
# of the two to run may be named, too. Needs .venv as `make build` leaves it, and GCC. What it makes is in
# build/sanitize.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/checks.sh
root=$PWD
kinds=("${@:-address thread}")
export PATH=$root/.venv/bin:$PATH
library() { "${CXX:-c++}" -print-file-name="lib$1.so"; } # its path; its name where the compiler has none

# The sources are copied, so that they can be broken; what was broken before is mended.
copy_sources() {
  find CMakeLists.txt cmake src tools -type f -not -name '*.pyc' | while read -r file; do
    cmp -s "$file" "$out/source/$file" || install -D "$file" "$out/source/$file"
  done
}
build() {
  out=$root/build/sanitize/$1
  local options=(-D FASTOPS_AVX512=ON -D FASTOPS_SANITIZE_BESIDE=)
  [[ $quick ]] && options=(-D FASTOPS_AVX512=OFF -D FASTOPS_SANITIZE_BESIDE="$(echo "$root/build/$tag"-*)")
  copy_sources
  cmake -S "$out/source" -B "$out/build" -G Ninja -D FASTOPS_SANITIZE="$1" "${options[@]}" \
    -D FASTOPS_ASSERTIONS=ON -D FASTOPS_GPU=none -D Python_EXECUTABLE="$root/.venv/bin/python" \
    -D SKBUILD_PROJECT_VERSION="$version" -D SKBUILD_PROJECT_VERSION_FULL="$version" > /dev/null
  mkdir -p "$out/fastops"
  cp -r python/fastops/. "$packages"/fastops/{torch-*,_activations.py} "$out/fastops/"
  compile
  environment "$out"
}
compile() {
  cmake --build "$out/build" --target libfastops > "$out/build.log" || { tail -50 "$out/build.log"; return 1; }
  cp "$out/build/src/backends/cpu/libfastops_cpu.so" "$out/fastops/"
  for folder in "$out"/fastops/torch-*; do cp "$out/build/libfastops.so" "$folder"; done
}

# pytest with the library and a sanitizer's runtime, whose reports it must not capture.
sanitized() {
  LD_PRELOAD="$(library "$1") $(library stdc++)" "$out/venv/bin/python" -m pytest -p no:cacheprovider -q -s "${@:2}"
}
address() { sanitized asan -n auto -x "$@"; }
# Reports without code of ours in them are of torch, whose locks and atomic operations the sanitizer does not see; so are
# those of libgomp's threads, which ours are not (openmp.cpp). The products are ours on every CPU, as torch's have such.
thread() {
  local status=0
  local -x FASTOPS_CPU_PRODUCTS=own TSAN_OPTIONS="$TSAN_OPTIONS exitcode=0"
  sanitized tsan "$@" 2>&1 | tee "$out/thread.log" || status=$?
  python - "$out/thread.log" << 'END' || status=$?
import pathlib, re, sys
blocks = pathlib.Path(sys.argv[1]).read_text(errors="replace").split("==================")
reports = [block for block in blocks if "WARNING: ThreadSanitizer" in block]
ours = [block for block in reports if re.search("libfastops|fastops/torch-", block) and "gomp_team_start" not in block]
print(f"{len(reports)} reports, {len(ours)} of them with code of ours")
sys.exit(66 if ours else 0)
END
  return "$status"
}

# breaks KIND FILE BEFORE AFTER TESTS...: whether the tests fail when BEFORE, in FILE, is AFTER.
breaks() {
  step "sanitize: $1: '$3' becomes '$4'"
  copy_sources
  python - "$out/source/$2" "$3" "$4" << 'END'
import pathlib, sys
path, before, after = pathlib.Path(sys.argv[1]), *sys.argv[2:]
text = path.read_text()
assert before in text, f"{path} has no {before!r}"
path.write_text(text.replace(before, after, 1))
END
  compile
  local status=0 reports="ERROR: AddressSanitizer\|runtime error:\|WARNING: ThreadSanitizer: data race"
  TSAN_OPTIONS="$TSAN_OPTIONS halt_on_error=1" "$1" "${@:5}" > "$out/broken.log" 2>&1 || status=$?
  ((status)) && grep -q "$reports" "$out/broken.log" && return
  echo "the sanitizer did not notice:"
  tail "$out/broken.log"
  return 1
}

version=$(python -c "import fastops; print(fastops.__version__)")
packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
tag=$(python -c 'import sys; print("cp{}{}".format(*sys.version_info))')
export CI=true PYTEST_PLUGINS=few_activations PYTHONPATH=$root/tools/gpu
export FASTOPS_FEW_ACTIVATIONS=$root/tools/sanitize/few_activations.h
# CPython and torch keep memory until the end.
export ASAN_OPTIONS=detect_leaks=0
export TSAN_OPTIONS="suppressions=$root/tools/sanitize/thread.supp history_size=4"

passed=passed
for kind in ${kinds[*]}; do
  case $kind in
    address) runtime=asan ;;
    thread) runtime=tsan ;;
    *) echo "what to run is address or thread, not $kind" && exit 2 ;;
  esac
  if [[ $(library $runtime) != /* ]]; then
    passed="passed, but $kind was SKIPPED: the compiler has no lib$runtime"
    continue
  fi
  step "sanitize: $kind: build"
  build "$kind"
  step "sanitize: $kind: tests"
  case $kind in
    address)
      address tests/test_{activation,bias_act,gated_act,mlp,gated_mlp,sequential,memory,threads}.py
      [[ $quick ]] || address tests/test_{autograd{,_in_place,_threads},mixed_precision,storages,far_apart}.py
      breaks address src/backends/cpu/launchers/elementwise.cpp "end - begin, call" "end - begin + 1, call" \
        tests/test_activation.py -k test_forward
      breaks address src/backends/cpu/launchers/products.cpp "take(rows * stride * size)" "take(rows * stride * size / 2)" \
        tests/test_mlp.py -k test_mlp_forward
      ;;
    thread)
      thread tests/test_{threads,autograd_threads,memory}.py -k "threads${quick:+ and not come_back}"
      breaks thread src/torch_internal/shared_node.cpp "lock_(node.turn_)" "lock_(*new std::recursive_mutex)" \
        tests/test_autograd_threads.py -k accumulated
      breaks thread src/backends/cpu/room.cpp memory_order_release memory_order_relaxed \
        tests/test_memory.py -k test_many_threads
      ;;
  esac
done
step "sanitize: $passed"
