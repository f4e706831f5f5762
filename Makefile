# Development tasks. Needs python3 (with venv), a C++20 compiler and git; everything else is installed into .venv.
#
# TORCH   what pip installs as torch: by default the version in pyproject.toml; for example TORCH=torch==2.11.0
# DIST    the name of what `make sdist` and `make wheel` build: by default that in pyproject.toml, as for PyPI
# WHEEL_TORCH  the releases of torch that it is for beside TORCH: by default the newest of those in pyproject.toml
# RELEASE_TORCH  those beside which `make release-check` installs it: by default that of .venv
# GPU     the kernels for GPUs that `make wheel` puts into the wheel, whichever torch it is for: GPU="hip;cuda",
#         or the folder of an earlier build of theirs (tools/gpu/libraries.sh)
# WERROR  1 to treat compiler warnings as errors and to check the standard library's preconditions, as CI does
# ARGS    further arguments for the program that a target runs: make test ARGS="-k softshrink"
PYTHON ?= python3
TORCH ?= --group torch
own_name := $(shell sed -n 's/^name = "\(.*\)"/\1/p' pyproject.toml)
DIST ?= $(own_name)
WHEEL_TORCH ?= $(lastword $(released_torch))
RELEASE_TORCH ?= $(torch_of_group)
GPU ?=
WERROR ?=
ARGS ?=

torch_of_group := $(shell sed -n 's/^torch = \["torch==\([0-9.]*\)"\]/\1/p' pyproject.toml)
released_torch := $(shell sed -n '/^\[tool.fastops\]/,/^$$/p' pyproject.toml | grep -o '==[0-9.]*' | tr -d =)

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

bin := .venv/bin
# Python compiles what is imported, which is a small part of torch and what the tests need. It must keep that: they start
# hundreds of processes, and images of containers like to set this variable.
unexport PYTHONDONTWRITEBYTECODE
pip := $(bin)/python -m pip install --disable-pip-version-check --no-compile
strict := $(if $(filter-out 0,$(WERROR)),ON,OFF)
gpu_libraries := --config-settings=cmake.define.FASTOPS_GPU_LIBRARIES=
werror := $(foreach option,WERROR ASSERTIONS,--config-settings=cmake.define.FASTOPS_$(option)=$(strict))

# What is installed in .venv is remembered by empty files, so that nothing is installed twice. That of a build has the
# time at which the build began: a source that changes meanwhile is built again.
stamps := .venv/stamps
torch := $(stamps)/torch-$(subst $() ,,$(subst =,,$(TORCH)))
fastops := $(stamps)/fastops$(if $(filter-out 0,$(WERROR)),-werror)

sources := $(shell find CMakeLists.txt pyproject.toml cmake src tools python -type f -not -name '*.pyc')
cxx_sources = $(shell find src examples tools -name '*.cpp' -o -name '*.h' -o -name '*.hpp' -o -name '*.hip')

.PHONY: help build test fuzz strangers demo bench docs explorer explorer-check gpu gpu-check gpu-mutations sanitize format lint mypy public-types sdist wheel wheel-matrix metal-check metal-symbols windows-check aarch64-check aarch64-instructions macos-check backend-check release-check clean

help: ## Show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1 /p' $(MAKEFILE_LIST) | while read -r name text; do printf '%-22s %s\n' "$$name" "$$text"; done

build: $(fastops) ## Build fastops and install it, editable, into .venv

test: build $(stamps)/test ## Run the tests
	$(bin)/pytest -n auto --dist worksteal $(ARGS) tests

fuzz: build $(stamps)/test ## Try random cases for an hour, by ARGS=--quick a quarter of a minute; ARGS="arguments --minutes 5" for a family and a time
	$(bin)/python tests/fuzz $(ARGS)

demo: build $(stamps)/demo ## Train a network on handwritten digits, with fastops and with PyTorch; results in demo/
	$(bin)/python examples/digits.py --out demo $(ARGS)

bench: build $(stamps)/bench ## Time fastops beside its peers; results in bench/. A suite and options: make bench ARGS="digits --quick"
	$(bin)/python -m fastops.bench --out bench $(ARGS)

explorer: $(stamps)/explorer ## Build the benchmark explorer, of the CSV files in docs/benchmarks, into build/explorer/; of others: ARGS="--data bench/results.csv"
	$(bin)/python tools/build_explorer.py $(ARGS)

# Without torch and without what the other tests need.
explorer-check: $(stamps)/explorer-check ## Try the benchmark explorer in headless Chromium, which has to be installed
	$(bin)/python -m pytest --confcutdir=tests/explorer $(ARGS) tests/explorer

# DOCS_REPOSITORY_URL: where links to files that are no pages lead; by default into this clone.
docs: build $(stamps)/docs $(stamps)/explorer ## Build the pages of the documentation into build/docs; it runs the notebooks. Needs Python 3.11
	$(bin)/python -m sphinx -W --keep-going -q -d build/docs-cache -b html $(ARGS) docs build/docs
	test ! -d docs/benchmarks || $(bin)/python tools/build_explorer.py --out build/docs/explorer --documentation ../benchmarks.html

# In an environment of their own, with the torch of .venv and what `build` compiled.
strangers: build ## Run small programs of other people's libraries (tests/strangers/README.md); needs Python 3.11
	test -x .venv-strangers/bin/python || $(PYTHON) -m venv .venv-strangers
	.venv-strangers/bin/python -m pip install --upgrade pip
	.venv-strangers/bin/python -m pip install $(TORCH) --group strangers
	rm -rf build/strangers
	$(bin)/python -m pip wheel --no-build-isolation --no-deps $(werror) --wheel-dir build/strangers .
	.venv-strangers/bin/python -m pip install --no-deps --force-reinstall build/strangers/*.whl
	.venv-strangers/bin/python -m pytest --confcutdir=tests/strangers $(ARGS) tests/strangers

gpu: build $(stamps)/test $(stamps)/bench ## On a machine with a GPU: run the tests on it, then time fastops; results in bench/
	tools/gpu/run.sh $(bin)/python $(ARGS)

gpu-check: build $(stamps)/test ## Check the GPU kernels without a GPU: machine code, and the tests in an emulator; a part: ARGS=quick
	tools/gpu/check.sh $(ARGS)

gpu-mutations: ## Break the GPU kernels on purpose, after gpu-check: each must be noticed. A choice: ARGS=REGEX
	$(bin)/python tools/gpu/mutations.py $(ARGS)

sanitize: build $(stamps)/test ## Run tests with ASan, UBSan and TSan; a part: ARGS="quick thread"
	tools/sanitize/check.sh $(ARGS)

format: $(stamps)/lint ## Format all sources
	$(bin)/ruff check --fix .
	$(bin)/ruff format .
	$(bin)/clang-format -i $(cxx_sources)

lint: mypy public-types ## Check style, types, workflows, and where PyTorch's internals and extensions of C++ are used
	$(bin)/python tools/check_torch_internals.py
	$(bin)/python tools/check_extensions.py
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/clang-format --dry-run -Werror $(cxx_sources)
	$(bin)/zizmor --offline --quiet --strict-collection .github
	PATH="$(CURDIR)/$(bin):$$PATH"; if command -v actionlint; then actionlint; \
	else echo "actionlint is not installed: of the workflows, zizmor alone has seen them"; fi

# The package as it is installed: with the module that is generated from the table of activations.
mypy: $(torch) $(stamps)/lint $(stamps)/bench $(stamps)/wheel $(stamps)/release
	rm -rf build/lint
	mkdir -p build/lint
	cp -r python/fastops build/lint/
	$(bin)/python tools/generate_activations.py src/activations/table.h build/lint/fastops/_activations.py
	$(bin)/mypy

# What type checkers see of the public names, as of a package that is installed: all of it, or this fails.
public-types: mypy
	rm -rf build/public-types
	$(bin)/python -m venv --without-pip build/public-types
	packages() { "$$1" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }; \
	own=$$(packages build/public-types/bin/python); \
	packages $(bin)/python > "$$own/others.pth"; \
	cp -r build/lint/fastops "$$own"; \
	cd build/public-types; \
	PATH="$$PWD/bin:$$PATH" "$(CURDIR)/$(bin)/basedpyright" --verifytypes fastops --ignoreexternal

# What is released has the time of the commit, or without git that of the sources.
sdist wheel release-check: export SOURCE_DATE_EPOCH ?= \
  $(shell git log -1 --format=%ct 2> /dev/null || stat -c %Y pyproject.toml)

sdist: $(stamps)/build $(stamps)/wheel ## Build the source distribution into dist/
	rm -rf dist
	$(bin)/python -m build --sdist --no-isolation --outdir dist
	$(bin)/python tools/check_distributions.py dist/*.tar.gz
	if [[ $(DIST) != "$(own_name)" ]]; then \
	  rm -rf build/sdist; mkdir -p build/sdist; tar -xzf dist/*.tar.gz -C build/sdist; rm dist/* build/sdist/*/PKG-INFO; \
	  sed -i 's/^name = "$(own_name)"$$/name = "$(DIST)"/' build/sdist/*/pyproject.toml; \
	  $(bin)/python -m build --sdist --no-isolation --outdir dist build/sdist/*; \
	fi

# Uses what `build` compiled; the check of the source distribution is that it has the same files.
wheel: build sdist ## Build the Linux wheel, for TORCH and WHEEL_TORCH, into wheelhouse/ and try it in a clean environment
	rm -rf wheelhouse
	BUILD_OPTIONS="$(werror) $(gpu_libraries)$(GPU)" $(bin)/python tools/build_wheel.py --out wheelhouse --name $(DIST) --torch $(WHEEL_TORCH)
	PATH="$(CURDIR)/$(bin):$$PATH" python tools/check_distributions.py wheelhouse/*.whl
	clean=$$(mktemp -d); trap 'rm -rf "$$clean"' EXIT; \
	$(PYTHON) -m venv --without-pip "$$clean/venv"; \
	$(bin)/python -m pip --python "$$clean/venv/bin/python" install --no-compile $(TORCH) wheelhouse/*.whl; \
	cd "$$clean"; \
	venv/bin/python -m fastops; \
	venv/bin/python "$(CURDIR)/tools/smoke_test.py"

# SUITE: with which of them all tests are run. Each takes 5 GB while it is tried.
wheel-matrix: WHEEL_TORCH = $(released_torch)
wheel-matrix: wheel ## Try a wheel for every torch beside each, from PyPI; all tests with some: SUITE="2.11.0 2.13.0 2.15.0"
	$(bin)/python tools/wheel_matrix.py --wheels wheelhouse --name $(DIST) --suite $(SUITE) -- \
	  $(sort $(WHEEL_TORCH) $(torch_of_group))

release-check: wheel $(stamps)/release ## Rehearse a release: RELEASING.md; with a second build, as long as a first, by ARGS=--rebuild
	BUILD_OPTIONS="$(werror) $(gpu_libraries)$(GPU)" $(bin)/python tools/release_check.py $(ARGS) --torch $(RELEASE_TORCH) -- dist/*.tar.gz wheelhouse/*.whl

# Kernels, host code and tests of the Apple GPU backend, on a stand-in for the device: tests/metal/README.md.
metal-check: build $(stamps)/test ## Check the Metal backend on Linux, without a Mac; needs clang-19; a part: ARGS=quick
	bash tests/metal/check.sh $(ARGS)

metal-symbols: $(torch) ## Compile the Metal backend for macOS and look for its symbols in torch for macOS (large downloads)
	bash tests/metal/symbols.sh

windows-check: $(torch) ## Compile the sources for Windows, as far as that goes without Windows; needs clang-19; some files: ARGS=REGEX (large downloads)
	$(pip) ziglang==0.15.2
	$(bin)/python tools/windows/check.py $(ARGS)

aarch64-check: $(stamps)/build ## Cross-compile the wheel for Linux on aarch64 and run tests of the ops in an emulator; on Debian (large downloads)
	BUILD_OPTIONS="$(werror)" tools/aarch64/check.sh $(ARGS)

aarch64-instructions: $(stamps)/build ## Count the instructions per element of fastops and PyTorch on Arm, after aarch64-check, in its emulator; a part: ARGS="--cpu neon"
	$(bin)/python tools/aarch64/instructions.py $(ARGS)

macos-check: $(stamps)/build ## Build the wheel for macOS with Zig and look at what it links with; needs llvm-19 (large downloads)
	$(pip) ziglang==0.15.2 macholib==1.16.4
	BUILD_OPTIONS="$(werror)" tools/macos/check.sh

backend-check: build $(stamps)/test ## Check the reference backend in examples/backend, and the suite on its device; a part: ARGS=quick
	bash examples/backend/check.sh $(ARGS)

clean: ## Remove everything that was built, and .venv
	rm -rf .venv .venv-strangers build dist wheelhouse demo bench .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(stamps)/python:
	$(PYTHON) -m venv .venv
	mkdir -p $(stamps)
	$(pip) --upgrade pip
	touch $@

$(torch): $(stamps)/python
	rm -f $(stamps)/torch-*
	$(pip) $(TORCH)
	touch $@

# A dependency group of pyproject.toml.
$(stamps)/build $(stamps)/lint $(stamps)/demo $(stamps)/bench $(stamps)/docs $(stamps)/explorer $(stamps)/explorer-check $(stamps)/wheel $(stamps)/release: $(stamps)/python pyproject.toml
	$(pip) --group $(notdir $@)
	touch $@

# Together with torch, which some of it depends on in any version.
$(stamps)/test: $(torch) pyproject.toml
	$(pip) $(TORCH) --group test
	touch $@

# Where nothing but files of src/ changed since, what pip does beside is left out: that takes 10 seconds.
$(fastops): $(torch) $(stamps)/build $(sources)
	if test -e $@ && test -z "$(filter-out src/%,$?)" && \
	    folder=build/$$($(bin)/python -m scikit_build_core builder wheel-tag) && test -e "$$folder/CMakeCache.txt"; then \
	  touch $@.started; \
	  $(bin)/cmake --build "$$folder"; \
	  packages=$$($(bin)/python -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])'); \
	  $(bin)/cmake --install "$$folder" --strip --prefix "$$packages"; \
	else \
	  rm -f $(stamps)/fastops*; \
	  touch $@.started; \
	  if test -e $(bin)/../lib/python*/site-packages/fastops-*.dist-info; then $(bin)/python -m pip uninstall --yes fastops; fi; `# as it was called before` \
	  $(pip) --no-build-isolation --no-deps $(werror) $(gpu_libraries) --editable .; \
	fi
	mv $@.started $@
