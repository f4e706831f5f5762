#!/usr/bin/env bash
# tools/build_wheel.sh FOLDER NAME VERSION...: builds one wheel, of this name, for several releases of torch: for that in
# .venv, with the kernels, and for the others by their headers alone, with the kernels of the first. Further arguments of
# `pip wheel` come from BUILD_OPTIONS. Needs .venv as `make build` leaves it.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 name=$2
python=$PWD/.venv/bin/python
read -ra options <<< "${BUILD_OPTIONS:-}"
build() {
  "$python" -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps "${options[@]}" "$@" .
}

rm -rf build/wheel
build --wheel-dir build/wheel/first
"$python" -m wheel unpack --dest build/wheel/unpacked build/wheel/first/*.whl
kernels=$(echo "$PWD"/build/wheel/unpacked/*/fastops)
for version in "${@:3}"; do
  echo "=== for torch $version (after $SECONDS s)"
  FASTOPS_TORCH_ROOT=$("$python" tools/torch_headers.py "$version")
  export FASTOPS_TORCH_ROOT
  build --wheel-dir "build/wheel/$version" --config-settings=build-dir="build/torch/$version/build" \
    --config-settings=cmake.define.FASTOPS_KERNELS="$kernels"
done
"$python" tools/merge_wheels.py --name "$name" --out build/wheel/merged build/wheel/{first,[0-9]*}/*.whl

rm -rf "$folder"
PATH="$(dirname "$python"):$PATH" auditwheel repair --exclude 'libtorch*.so*' --exclude 'libc10*.so*' \
  --exclude 'libgomp*.so*' --wheel-dir "$folder" build/wheel/merged/*.whl
PATH="$(dirname "$python"):$PATH" python tools/check_distributions.py "$folder"/*.whl
