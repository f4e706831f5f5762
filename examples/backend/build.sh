#!/usr/bin/env bash
# Builds this package with find_package(fastops) into build/backend/site. Needs a built .venv.
set -euo pipefail
cd "$(dirname "$0")/../.."
# Beside the environment and not in it: `import torch` would load the device in every other test.
.venv/bin/python -m pip install --disable-pip-version-check --quiet --no-build-isolation --no-deps --upgrade \
  --target build/backend/site --config-settings=build-dir="$PWD/build/backend/cmake" \
  --config-settings=cmake.define.HOSTMEM_WERROR=ON ./examples/backend
