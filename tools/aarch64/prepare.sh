#!/usr/bin/env bash
# prepare.sh FOLDER: what it takes to run Python with torch for aarch64 in an emulator, into FOLDER: root, Debian's
# Python and libraries, of which root/usr/bin/python starts the emulator; site, torch and what the tests need, from
# PyPI; stand_ins, in place of CUDA's libraries. The packages are unpacked and not installed: the system stays as it
# is. What was prepared once is kept.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(realpath -m "$1")
python=.venv/bin/python
minor=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))') # the same that cross-compiles
wanted="Python $minor, $(grep --max-count=1 '^torch = ' pyproject.toml)"
[[ $(cat "$folder/prepared" 2> /dev/null) == "$wanted" ]] && exit
rm -rf "$folder"
mkdir -p "$folder"/{root,site,apt/state/lists/partial,apt/cache/archives/partial}

# apt's state and cache are here, so that it needs no rights, and finds nothing installed.
touch "$folder/apt/status"
cat > "$folder/apt/conf" << END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "$(id -un)";
Dir::State "$folder/apt/state";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt/cache";
END
export APT_CONFIG=$folder/apt/conf
apt-get update -qq
packages=("python$minor-minimal" "libpython$minor-stdlib" "libpython$minor-dev" libgomp1 libstdc++6)
apt-get install -qq --download-only --yes "${packages[@]}" || {
  echo "the Python of .venv is $minor, which Debian here must have, too: make clean, then PYTHON=/usr/bin/python3" >&2
  exit 1
}
for package in "$folder"/apt/cache/archives/*.deb; do dpkg -x "$package" "$folder/root"; done

# torch asks these files of Linux what CPU it is; the emulator shows them in place of this machine's.
register=$folder/root/sys/devices/system/cpu/cpu0/regs/identification/midr_el1
mkdir -p "$folder/root/proc" "$(dirname "$register")"
echo 0x00000000411fd070 > "$register"
for ((processor = 0; processor < $(nproc); processor++)); do
  printf '%s\n' "processor : $processor" \
    "Features : fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm" \
    "CPU implementer : 0x41" "CPU architecture: 8" "CPU variant : 0x1" "CPU part : 0xd07" "CPU revision : 0" ""
done > "$folder/root/proc/cpuinfo"

platforms=()
for tag in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do platforms+=(--platform "${tag}_aarch64"); done
install=("$python" -m pip install --quiet --disable-pip-version-check --no-compile --target "$folder/site"
  --only-binary=:all: --python-version "$minor" "${platforms[@]}")
"${install[@]}" --no-deps --group torch
"${install[@]}" numpy hypothesis pytest pytest-xdist expecttest mpmath \
  sympy networkx jinja2 filelock fsspec typing-extensions # torch's, but for CUDA
rm "$folder"/site/torch/lib/lib{torch,c10}_cuda*.so
libraries=("$folder"/root/{,usr/}lib/aarch64-linux-gnu)
"$python" tools/aarch64/stand_ins.py "$folder/stand_ins" "$folder/site/torch/lib" "${libraries[@]}"

# Linux here need not know how to start programs for aarch64, so a script starts those of the tests, too.
cat > "$folder/root/usr/bin/python" << END
#!/bin/sh
exec qemu-aarch64-static -L "$folder/root" -0 "$folder/root/usr/bin/python" \\
  -E LD_LIBRARY_PATH="$folder/stand_ins:$folder/site/torch/lib" -E PYTHONPATH="$folder/package:$folder/site" \\
  -E PYTHONDONTWRITEBYTECODE=1 "$folder/root/usr/bin/python$minor" "\$@"
END
chmod +x "$folder/root/usr/bin/python"
rm -r "$folder/apt"
echo "$wanted" > "$folder/prepared"
