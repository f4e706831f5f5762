#!/usr/bin/env bash
# tools/gpu/nvcc.sh FOLDER: nvcc and the static CUDA runtime, from PyPI, in an environment of their own; prints nvcc's
# path. CUDA 13.0: the oldest of the major version that has every GPU of FASTOPS_CUDA_GPUS, for the sake of drivers.
set -euo pipefail
python3 -m venv "$1"
"$1/bin/python" -m pip install --disable-pip-version-check --quiet --no-compile nvidia-cuda-nvcc==13.0.88 \
  nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 >&2
cuda=$(realpath "$1"/lib/python*/site-packages/nvidia/cu13)
# Where nvcc looks for headers and libraries.
mkdir -p "$cuda/targets/x86_64-linux"
ln -sfn ../../include "$cuda/targets/x86_64-linux/include"
ln -sfn ../../lib "$cuda/targets/x86_64-linux/lib"
echo "$cuda/bin/nvcc"
