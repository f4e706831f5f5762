#!/usr/bin/env bash
# make metal-symbols: compiles the backend's host code for macOS on arm64 with each torch that it supports, and checks
# that torch's libraries for macOS export every symbol of theirs that it uses. What looks right to a compiler on Linux
# need not be: a signature with an Objective-C type has another name there.
#
# Zig's compiler brings the headers and libraries of macOS. VERSIONS="2.13.0 ..." chooses the torch versions.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=.venv/bin/python
command -v llvm-nm-19 > /dev/null || { echo "llvm-nm-19 is missing: on Debian and Ubuntu, apt-get install llvm-19" >&2; exit 1; }
"$python" -m pip install --disable-pip-version-check --quiet ziglang==0.15.2
newest=$("$python" -m pip index versions torch 2> /dev/null | sed -n 's/^Available versions: \([^,+]*\).*/\1/p')
for version in ${VERSIONS:-2.11.0 2.12.1 2.13.0 $newest}; do
  torch=$("$python" tools/torch_headers.py --platform macosx_14_0_arm64 "$version")
  echo "=== torch $version"
  "$python" tests/metal/symbols.py "$torch"
done
