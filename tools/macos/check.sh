#!/usr/bin/env bash
# Builds the wheel for macOS on arm64 with Zig's compiler, which brings the headers and libraries of macOS, and looks at
# what is inside (check_wheel.py). Everything is compiled, and linked with torch's libraries, as on a Mac, but for
# Python's headers, which are those of Linux. Apple's SDK is not needed: no source of the wheel uses a framework.
# BUILD_OPTIONS are pip's. What it makes is in build/macos.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/checks.sh
no_more_arguments "$@"
for program in llvm-nm-19 llvm-install-name-tool-19; do
  command -v $program > /dev/null && continue
  echo "$program is missing: on Debian and Ubuntu, apt-get install llvm-19" >&2
  exit 1
done
folder=$PWD/build/macos
torch=$(.venv/bin/python tools/torch_headers.py --platform macosx_14_0_arm64)

step "macos: build"
# Of the Python that is asked, this is what differs on a Mac.
mkdir -p "$folder/sysconfig"
.venv/bin/python - > "$folder/sysconfig/_sysconfigdata__darwin_darwin.py" << 'END'
import sys
import sysconfig

abi = "cpython-{}{}-darwin".format(*sys.version_info)
print("build_time_vars =", {**sysconfig.get_config_vars(), "SOABI": abi, "EXT_SUFFIX": f".{abi}.so"})
END
rm -rf "$folder/wheel"
# shellcheck disable=SC2086 # they are several
_PYTHON_HOST_PLATFORM=macosx-14.0-arm64 _PYTHON_SYSCONFIGDATA_NAME=_sysconfigdata__darwin_darwin \
  PYTHONPATH=$folder/sysconfig .venv/bin/python -m pip wheel --disable-pip-version-check --no-build-isolation \
  --no-deps ${BUILD_OPTIONS:-} --config-settings=build-dir="$folder/build" --wheel-dir "$folder/wheel" \
  --config-settings=cmake.define.FASTOPS_TORCH_ROOT="$torch" \
  --config-settings=cmake.define.CMAKE_TOOLCHAIN_FILE="$PWD/tools/macos/toolchain.cmake" .

step "macos: what is in the wheel"
.venv/bin/python tools/macos/check_wheel.py "$folder"/wheel/*.whl "$torch"
