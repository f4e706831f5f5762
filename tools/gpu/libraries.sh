#!/usr/bin/env bash
# tools/gpu/libraries.sh FOLDER [CMAKE OPTION...]: libfastops_hip.so and libfastops_cuda.so, which are the same for every
# Python and every torch, for builds with FASTOPS_GPU_LIBRARIES=FOLDER. In the container of cibuildwheel, whose old glibc
# they must run with, it installs the compilers; elsewhere it takes those that are there.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$1
work=build/gpu-libraries-work

# The compiler of ROCm, its headers and its device libraries, as AMD has them for AlmaLinux 8, from which the container
# is made; nothing of it is linked. hip-devel asks for Perl's modules, of EPEL.
if [[ -e /opt/python && -e /etc/almalinux-release ]]; then
  export PATH=/opt/python/cp312-cp312/bin:$PATH
  cat > /etc/yum.repos.d/rocm.repo << 'REPOSITORY'
[rocm]
name=ROCm
baseurl=https://repo.radeon.com/rocm/el8/7.2.1/main
priority=50
gpgcheck=1
gpgkey=https://repo.radeon.com/rocm/rocm.gpg.key
REPOSITORY
  dnf install --assumeyes --setopt=install_weak_deps=False epel-release
  dnf install --assumeyes --setopt=install_weak_deps=False --enablerepo=powertools hip-devel rocm-device-libs rocm-llvm
fi
if ! command -v nvcc > /dev/null; then
  nvcc=$(tools/gpu/nvcc.sh "$work/nvcc")
  PATH=$(dirname "$nvcc"):$PATH
fi

python3 -m venv "$work/venv"
PATH=$PWD/$work/venv/bin:$PATH
python -m pip install --disable-pip-version-check --quiet --upgrade pip
python -m pip install --disable-pip-version-check --quiet --group build --group wheel
python tools/build_wheel.py --headers # CMake wants a torch for the rest of the project

# Clang takes the standard library of the same compiler as nvcc, and not the oldest that there is.
CCC_OVERRIDE_OPTIONS="# +--gcc-install-dir=$(dirname "$(g++ -print-libgcc-file-name)")"
export CCC_OVERRIDE_OPTIONS
rm -rf "$work/build" "$work/install"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
FASTOPS_TORCH_ROOT=build/torch/first/torch cmake -S . -B "$work/build" -G Ninja -DPython_EXECUTABLE="$(command -v python)" \
  -DSKBUILD_PROJECT_VERSION="$version" "-DFASTOPS_GPU_LIBRARIES=hip;cuda" "${@:2}"
cmake --build "$work/build" --target fastops_hip fastops_cuda
cmake --install "$work/build" --prefix "$work/install" --component gpu_libraries --strip
rm -rf "$out"
mkdir -p "$(dirname "$out")"
mv "$work/install/fastops" "$out"
