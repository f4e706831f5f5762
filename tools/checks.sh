# shellcheck shell=bash
# What the scripts of the checks have in common, which source it in the root of the repository: whether a part was asked
# for ("quick" as the first argument) and how many examples the tests try then, where a check is, and an environment of
# its own.

quick=
export FASTOPS_TEST_PROFILE=quick
if [[ ${1:-} == quick ]]; then
  quick=yes
  FASTOPS_TEST_PROFILE=brief
  shift
fi

# For scripts that take nothing else.
no_more_arguments() {
  (($# == 0)) && return
  echo "what may be asked for is quick, not $*" >&2
  exit 2
}

step() { echo "=== $1 (after $SECONDS s)"; }

# environment FOLDER: a virtual environment in FOLDER/venv with the packages of .venv and the fastops in FOLDER. Of its
# own, as the other one's fastops is found before any in PYTHONPATH.
environment() {
  [[ -e $1/venv ]] && return
  .venv/bin/python -m venv --without-pip "$1/venv"
  local packages
  packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  printf '%s\n' "$(realpath "$1")" "$packages" > "$(echo "$1"/venv/lib/python*/site-packages)/fastops.pth"
}

# build_targets FOLDER TARGET...: builds them where `make build` has built, and puts the rest of a package of fastops into
# FOLDER/install.
build_targets() {
  local version build
  version=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_config_var("py_version_nodot"))')
  build=$(echo build/cp"$version"-*-linux_*)
  .venv/bin/cmake -S . -B "$build" > /dev/null
  .venv/bin/cmake --build "$build" --target "${@:2}"
  .venv/bin/cmake --install "$build" --prefix "$1/install" > /dev/null
}

# package FOLDER PLACE: that rest into PLACE/fastops, which has a library of its own.
package() {
  cp -r python/fastops/. "$1"/install/fastops/{libfastops_*.so,_activations.py} "$2/fastops/"
  (cd "$1/install/fastops" && cp --parents torch-*/{_C*,_build.py} "$OLDPWD/$2/fastops/")
}
