#!/usr/bin/env bash
# On a machine with an AMD or NVIDIA GPU: the whole suite of tests on it, then the benchmark.
#
#   tools/gpu/run.sh PYTHON [arguments of the benchmark]
#
# PYTHON has fastops, built for its torch (docs/gpu.md), and what tests and benchmark need.
set -euo pipefail
python=$(realpath --no-symlinks "$1")
shift
cd "$(dirname "$0")/../.."

"$python" - << 'END'
import fastops
import torch

if not torch.cuda.is_available():
    raise SystemExit(f"torch {torch.__version__} finds no GPU")
torch.cuda.init()  # with which a library of kernels is loaded
print(fastops.info())
missing = [op for op, devices in fastops.info().native.items() if not devices["cuda"]]
if missing:
    raise SystemExit(f"fastops was built without GPU kernels for {', '.join(missing)}; docs/gpu.md says how to build them")
END
FASTOPS_TEST_DEVICE=cuda "$python" -m pytest -q tests
"$python" -m fastops.bench --device cuda --out bench "$@"
