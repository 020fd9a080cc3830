# Everything a developer does, one command each. `make` lists them.
# Needs: Python >= 3.10, a C++20 compiler, make. The rest (CMake, Ninja, PyTorch ...) goes into .venv.

PYTHON ?= python3
PRESET ?= release
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST_ARGS ?=
BENCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Tests start thousands of processes. If none may keep the bytecode of our modules, each compiles them anew.
unexport PYTHONDONTWRITEBYTECODE
# One compute thread per rank: ranks share the machine's cores.
RUN := OMP_NUM_THREADS=1
# Ranks wait for each other half of the time: more tests than cores keep the cores busy.
LANES := $(shell expr $(JOBS) + 2)
# C++ tests wait more.
CORE_LANES := $(shell expr $(JOBS) + 4)
# Six of its lanes leave a third of two cores idle; the thread sanitizer's leave a seventh.
ASAN_LANES := $(shell expr $(JOBS) + 8)
# The thread sanitizer of older compilers cannot place its shadow memory where addresses are very random.
FIXED_ADDRESSES := $(shell setarch -R true 2>/dev/null && echo setarch -R)
# $(1): the preset. Two builds in one folder would disturb each other: the second waits.
lock = $(shell command -v flock >/dev/null && echo flock build/.lock-$(1))
REQUIREMENTS := requirements/build.txt requirements/test.txt requirements/lint.txt requirements/bench.txt
PYTHON_SOURCES := src tests fuzz benchmarks examples docs docker tools

.DEFAULT_GOAL := help
.PHONY: help docs system venv venv-gate venv-mpich venv-tensorflow venv-libraries versions versions-check build demo test test-plain sanitized test-all test-core test-asan test-tsan test-python test-gpu fuzz fuzz-merge mutants lint lint-types lint-rest format stub bench bench-check wheel wheels wheels-try clean

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.requirements  ## make .venv with everything that building and testing needs

# A stamp for each step, so that nobody waits for what he does not need: what compiles, what the demo runs on, and
# everything.
# What nobody imports is not compiled to bytecode: that takes as long as all the rest.
PIP_INSTALL := -m pip install --quiet --no-compile
PIP := $(BIN)/python $(PIP_INSTALL)

$(VENV)/.build: requirements/build.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Farandole needs Python 3.10 or newer; name one with: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing what compiles into $(VENV)"
	@$(PIP) -r $<
	@touch $@

$(VENV)/.demo: requirements/demo.txt $(VENV)/.build
	@echo "installing what the demo runs on into $(VENV): PyTorch, which may be large (docs/install.md: from the sources)"
	@$(PIP) -r $<
	@touch $@

$(VENV)/.requirements: $(REQUIREMENTS) requirements/demo.txt requirements/alone.txt $(VENV)/.build
	@echo "installing everything that tests need into $(VENV)"
	@$(PIP) $(addprefix -r ,$(REQUIREMENTS))
	@$(PIP) --no-deps -r requirements/alone.txt
	@touch $@ $(VENV)/.demo

# Before several processes of tests import it at once, and each compiles it.
$(VENV)/.imported: $(VENV)/.requirements
	@PYTHONPATH=tests/lean $(BIN)/python -m tests.lean.first_imports 2>/dev/null || \
	  echo "something that was installed ends Python when it is imported: python -m tests.lean.first_imports"
	@touch $@

# Debian's and Ubuntu's packages, before anything else: as root they are installed, else a line says how.
system:  ## the system packages that tests need
	@sh requirements/system.sh

# Environments beside .venv, each for one purpose: .venv-NAME has what requirements/NAME.txt says.
.venv-%/.requirements: requirements/%.txt
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python $(PIP_INSTALL) -r $<
	@touch $@

# Beside Open MPI in one environment each would find the other's library.
venv-mpich: .venv-mpich/.requirements  ## make .venv-mpich, whose mpiexec some tests start ranks with

# Those beside .venv that the gate needs. An installer uses one core, and waits for the disk.
venv-gate: .venv-docs/.requirements .venv-mpich/.requirements .venv-tf216/.requirements

venv-tensorflow: .venv-tf216/.requirements .venv-tf218/.requirements  ## environments with older versions of TensorFlow

venv-libraries: .venv-deepmd/.requirements .venv-lightning/.requirements  ## environments of programs that tests/libraries runs

# The editable install adds src/ to the path of .venv and the command horovodrun; CMake puts _core beside it.
$(VENV)/.editable: $(VENV)/.build pyproject.toml
	@$(PIP) --no-build-isolation --no-deps -e . --config-settings=wheel.cmake=false --config-settings=wheel.py-api=py3
	@touch $@

define build_preset
	@mkdir -p build
	@$(lock) $(BIN)/cmake --preset $(1) --log-level=WARNING -Wno-unused-cli $(or $(3),$(WITH_PYTHON))
	@$(lock) $(BIN)/cmake --build --preset $(1) --parallel $(JOBS) $(2)
endef
WITH_PYTHON := -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python

# The sanitizers' builds take the newest clang that has its run-time libraries: it compiles them faster than GCC
# does, and the fuzzers, which need it, share what is compiled for the address sanitizer. Else the default compiler
# builds the tests. Another compiler than last time's starts the folder anew.
CLANG ?= $(shell for cxx in $$(ls /usr/bin/clang++* 2>/dev/null | sort -rV); do \
  for library in fuzzer asan tsan; do \
    test -e "$$($$cxx -print-file-name=libclang_rt.$$library-$$(uname -m).a)" || continue 2; \
  done; echo $$cxx && break; done)
# $(1): the preset.
with_clang = $(and $(CLANG),-DCMAKE_CXX_COMPILER=$(CLANG) $(if $(filter asan,$(1)),-DFARANDOLE_BUILD_FUZZERS=ON) \
  $$(grep -qs '^CMAKE_CXX_COMPILER:[A-Z]*=$(CLANG)$$' build/$(1)/CMakeCache.txt || echo --fresh))
build_sanitized = $(call build_preset,$(1),$(2),$(with_clang))

# Reads docstrings out of the sources: neither the package nor a framework is installed beside the generator.
docs: .venv-docs/.requirements  ## make the site in build/docs; a link that leads nowhere is an error
	@.venv-docs/bin/python -m sphinx --fail-on-warning --keep-going --quiet --jobs auto -c docs/site docs build/docs
	@echo "build/docs/index.html"

build: $(VENV)/.editable  ## compile the native module into src/horovod (PRESET=release or dev)
	$(call build_preset,$(PRESET),--target _core --target _tensorflow)

demo: build $(VENV)/.demo  ## train a small network with 1 and then 2 processes
	@$(RUN) $(BIN)/python -m horovod.demo

# What the gate leaves out is a table in CONTRIBUTING.md.
# With several jobs, too, nothing is compiled before the system packages are known to be there. What the sanitizers
# need is compiled beside the other tests, and gives way to them.
test: system  ## the tests of the gate
	@$(MAKE) --no-print-directory --jobs=2 test-plain sanitized
	@$(MAKE) --no-print-directory test-asan test-tsan

test-plain:
	@$(MAKE) --no-print-directory test-core
	@$(MAKE) --no-print-directory test-python

test-all: export FARANDOLE_FULL_MATRIX := 1
test-all: system venv-libraries  ## every test in every build and every world: for a night
	@$(MAKE) --no-print-directory WHOLE=1 test

test-core: $(VENV)/.editable  ## C++ tests
	$(call build_preset,$(PRESET),$(if $(WHOLE),,--target _core --target _tensorflow --target gate_tests))
	@$(BIN)/ctest --preset $(PRESET) $(if $(WHOLE),,-L gate) --parallel $(CORE_LANES)

sanitized: $(VENV)/.build
	@nice -n 15 $(MAKE) --no-print-directory --jobs=1 asan-built tsan-built QUIET=--quiet

%-built: $(VENV)/.build
	$(call build_sanitized,$*,$(if $(WHOLE),,--target gate_tests) $(if $(QUIET),-- $(QUIET)))

test-asan: $(VENV)/.build  ## C++ tests under the address and undefined-behaviour sanitizers
	$(call build_sanitized,asan,$(if $(WHOLE),,--target gate_tests))
	@$(BIN)/ctest --preset asan $(if $(WHOLE),,-L gate) --parallel $(ASAN_LANES)

test-tsan: $(VENV)/.build  ## C++ tests under the thread sanitizer
	$(call build_sanitized,tsan,$(if $(WHOLE),,--target gate_tests))
	@$(FIXED_ADDRESSES) $(BIN)/ctest --preset tsan $(if $(WHOLE),,-L gate) --parallel $(CORE_LANES)

# Tests that are asked for by name run in one process, where a debugger works. tests/conftest.py says which stay
# together.
PYTEST_LANES ?= $(LANES)

test-python: build $(VENV)/.imported .venv-mpich/.requirements  ## Python tests (PYTEST_ARGS="-k name")
	$(call build_preset,$(PRESET),--target fakes)
	@FARANDOLE_FAKES=$(CURDIR)/build/$(PRESET)/fakes $(RUN) $(BIN)/python -m pytest tests $(or $(PYTEST_ARGS),--numprocesses $(PYTEST_LANES))

# A Python whose PyTorch is built for CUDA; that of .venv may be. Exits with 2 where there is no device.
GPU_PYTHON ?= $(BIN)/python
GPU_ARGS ?=

test-gpu: build $(VENV)/.requirements  ## everything that needs a GPU, as a table (GPU_ARGS="--only load growth")
	$(if $(filter fake,$(FARANDOLE_TEST_DEVICE)),$(call build_preset,$(PRESET),--target fakes))
	@FARANDOLE_FAKES=$(CURDIR)/build/$(PRESET)/fakes $(RUN) PYTHONPATH=$(CURDIR):$(CURDIR)/src $(GPU_PYTHON) -m tests.gpu $(GPU_ARGS)

# The same library under the newest and the oldest TensorFlow of the table.
versions-check: build $(VENV)/.requirements .venv-tf216/.requirements  ## check two versions of TensorFlow with what was built
	@$(RUN) $(BIN)/python -m tests.versions.run .venv-tf216 $(VENV)

versions: build $(VENV)/.requirements venv-tensorflow  ## check every version of TensorFlow and write the table of docs/versions.md
	@$(RUN) $(BIN)/python -m tests.versions.run --write docs/versions.md .venv-tf216 .venv-tf218 $(VENV)

FUZZ_S ?= 3

fuzz: $(VENV)/.editable $(VENV)/.requirements  ## feed nonsense to every parser for FUZZ_S seconds each (FUZZ_S=3600 for an hour)
ifeq ($(CLANG),)
	@echo "fuzz: the C++ parsers are left out: no clang with libFuzzer here (Debian: clang, libclang-rt-14-dev)"
else
	$(call build_sanitized,asan,--target fuzzers)
	@$(BIN)/python fuzz/run.py --seconds $(FUZZ_S) --jobs $(JOBS) build/asan
endif
	@$(RUN) FUZZ_S=$(FUZZ_S) $(BIN)/python -m pytest -q --show-capture=no fuzz

fuzz-merge: $(VENV)/.build  ## take what fuzzers have learned here into fuzz/corpus
	$(call build_sanitized,asan,--target fuzzers)
	@$(BIN)/python fuzz/run.py --merge build/asan

MUTANTS_ARGS ?=

# Takes a night: it gives way to everybody else.
mutants: $(VENV)/.build  ## which changes of the engine do the C++ tests notice? (MUTANTS_ARGS="--sample 300")
	@$(BIN)/python -m pip install --quiet -r requirements/mutants.txt
	@nice -n 19 $(BIN)/python -m tests.mutation.run --jobs $(JOBS) $(MUTANTS_ARGS)

lint: lint-types lint-rest  ## formatting, types, layering

lint-types: $(VENV)/.requirements
	@$(BIN)/python -m mypy --strict $(PYTHON_SOURCES)

lint-rest: $(VENV)/.requirements
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@find core tests/core tests/fakes fuzz -name '*.h' -o -name '*.cpp' -o -name '*.inl' | xargs -r $(BIN)/clang-format --dry-run -Werror
	@$(BIN)/hadolint docker/Dockerfile
	@$(BIN)/python -m pytest -q tests/repo/test_layering.py

format: $(VENV)/.requirements  ## rewrite sources in the project's format
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .
	@find core tests/core tests/fakes fuzz -name '*.h' -o -name '*.cpp' -o -name '*.inl' | xargs -r $(BIN)/clang-format -i

stub: build $(VENV)/.requirements  ## write src/horovod/_core.pyi anew from the native module
	@$(BIN)/python -m nanobind.stubgen -q -p core/bindings/stub.txt -m horovod._core -o src/horovod/_core.pyi
	@$(BIN)/ruff format --quiet src/horovod/_core.pyi

bench: build $(VENV)/.requirements  ## compare with PyTorch Gloo and Open MPI, interleaved; writes benchmarks/results/
	@$(RUN) $(BIN)/python -m benchmarks.run $(BENCH_ARGS)

bench-check: build $(VENV)/.requirements  ## fail if a collective has become slower beside Gloo and MPI than recorded (BENCH_ARGS=--record)
	@$(RUN) $(BIN)/python -m benchmarks.check $(BENCH_ARGS)

wheel: $(VENV)/.build  ## a wheel for this Python in dist/
	@$(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
	@ls dist/*.whl

$(VENV)/.release: $(VENV)/.requirements requirements/release.txt
	@$(BIN)/python -m pip install --quiet -r requirements/release.txt
	@touch $@

WHEELS_ARGS ?=

wheels: $(VENV)/.release  ## wheels for every machine and Python, and the sources, in dist/, checked (docs/howto/release.md)
	@$(BIN)/python -m tools.release build check $(WHEELS_ARGS)

# The Pythons on the path, another Debian, another machine. Needs qemu-user, libgtest-dev and googletest.
wheels-try: $(VENV)/.release  ## run the wheels of dist/ where their users may
	@$(BIN)/python -m tools.release.trial_here dist $(foreach minor,10 11 12 13 14,$(shell command -v python3.$(minor)))
	@$(BIN)/python -m tools.release.trial_here dist $(BIN)/python --torch
	@$(BIN)/python -m tools.release.trial_here dist $(PYTHON) --sources
	@$(BIN)/python -m tools.release.trial_tree dist trixie amd64
	@$(BIN)/python -m tools.release.trial_tree dist trixie arm64
	@$(BIN)/python -m tools.release.trial_tests aarch64 'test_(.*kernels|shm.*)'

clean:  ## remove what was built (not .venv)
	rm -rf build dist src/horovod/_core*.so .mypy_cache .ruff_cache .pytest_cache
