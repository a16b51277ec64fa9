# Targets that run Python code first set up its environment: `.venv`, or `.venv-python3.12`
# for another interpreter (make test PYTHON=python3.12). The first setup takes minutes,
# later ones less than a second.

PYTHON ?= python3
GPU ?=
RAY ?=
RUN_FLAGS ?= --algo=personalized_fedavg --task=emnist

# Tests of a module share what they build, so each module runs on one worker. No
# reordering: it would run modules with few but long tests last, one after the other.
TEST_PROCESSES ?= --numprocesses=2 --dist=loadfile --no-loadscope-reorder
# One module runs every algorithm on every task, so slow tests are divided within modules.
SLOW_TEST_PROCESSES ?= --numprocesses=2 --dist=worksteal
PYTEST_FLAGS ?=

BENCH_RUNTIMES_FLAGS ?= --quick
BENCH_ADJOINT_FLAGS ?= --quick
BENCH_AGGREGATION_FLAGS ?= --cohorts=10
BENCH_ALGORITHMS_FLAGS ?=
GPU_CHECK_FLAGS ?=

VENV := .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
VENV_PYTHON := $(VENV)/bin/python
PYTEST = $(VENV_PYTHON) -m pytest -q $(PYTEST_FLAGS)
REQUIREMENTS := requirements.txt $(if $(GPU),requirements-gpu.txt) \
	$(if $(RAY),requirements-ray.txt)

# The stamp's name depends on the requirements and the Python version, so it needs no
# prerequisites: another branch's requirements have another stamp.
STAMP := $(VENV)/.stamp-$(shell { cat $(REQUIREMENTS); $(PYTHON) --version; } 2>&1 \
	| cksum | cut -d ' ' -f 1)

.PHONY: help setup run test test-extended test-slow test-all durations lint format bench-adjoint bench-aggregation bench-algorithms bench-client-memory bench-runtimes gpu-check site docs notebooks build-file bazel-test clean distclean
.DEFAULT_GOAL := help

help:
	@echo "make run         $(RUN_FLAGS) (RUN_FLAGS=... for others)"
	@echo "make test        the quick tests; make test-extended: additional tests in CI"
	@echo "make test-slow   all other tests, two to three hours; make test-all: all three, with Ray"
	@echo "make durations   all tests, and records which are quick"
	@echo "make lint        checks with ruff; make format: fixes and formats"
	@echo "make bench-runtimes  seconds per round, compared with TFF's runtime and other simulators"
	@echo "make bench-adjoint  gradients through training: time and memory by number of steps"
	@echo "make bench-aggregation  rounds with each aggregator: time and memory compared with a mean"
	@echo "make bench-algorithms  a local step of each algorithm: time compared with FedAvg's, and memory"
	@echo "make bench-client-memory  client memory: time and memory by number of clients"
	@echo "make gpu-check GPU=1  all checks that need a GPU, in under 8 minutes"
	@echo "make site        builds the pages of docs/ into site/ (make docs: the same)"
	@echo "make notebooks   executes the notebooks"
	@echo "make build-file  regenerates the BUILD files; make bazel-test: builds all targets with Bazel and runs four tests"
	@echo "make clean       deletes caches and builds; make distclean: the environments as well"
	@echo "Variables: PYTHON=python3.12 for another Python, GPU=1 for the CUDA packages, RAY=1 for Ray."

setup: $(STAMP)

$(STAMP):
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
		|| { echo "Needs Python 3.11 to 3.13 (make PYTHON=...), found: $$($(PYTHON) --version)" >&2; exit 1; }
	@# An environment of another Python version or an incomplete one cannot be reused.
	@[ "$$($(VENV_PYTHON) --version 2>&1)" = "$$($(PYTHON) --version)" ] \
		&& $(VENV_PYTHON) -m pip --version >/dev/null 2>&1 \
		|| { echo "Creating $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@rm -f $(VENV)/.stamp-*
	@# TFF's metadata is outdated: its dependencies and its limit on Python do not apply.
	$(VENV_PYTHON) -m pip install --disable-pip-version-check --quiet --no-compile \
		--no-deps --ignore-requires-python $(addprefix -r ,$(REQUIREMENTS))
	@# Bytecode halves the time of imports. The excluded file is not valid Python.
	@env -u PYTHONDONTWRITEBYTECODE $(VENV_PYTHON) -m compileall -q -j 0 \
		-x 'pyglove/backend' $(VENV)/lib \
		|| echo "Some files could not be compiled to bytecode; importing them takes longer." >&2
	@touch $@

run: $(STAMP)
	$(VENV_PYTHON) main.py $(RUN_FLAGS)

test: $(STAMP)
	$(PYTEST) $(TEST_PROCESSES) --durations=10 -m "not slow and not extended" tests

test-extended: $(STAMP)
	$(PYTEST) $(TEST_PROCESSES) --durations=10 -m extended tests

test-slow: $(STAMP)
	$(PYTEST) $(SLOW_TEST_PROCESSES) --durations=20 -m slow tests

# One after the other: TensorFlow keeps much of what tests trace until their process ends,
# so processes that run all tests outgrow 24 GB. All of them include those with Ray.
test-all:
	$(MAKE) test RAY=1
	$(MAKE) test-extended RAY=1
	$(MAKE) test-slow RAY=1

# Runs all tests and records their durations, which determine the quick ones.
durations:
	$(MAKE) test-all PYTEST_FLAGS=--record_durations

lint: $(STAMP)
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) -m ruff format --check

format: $(STAMP)
	$(VENV_PYTHON) -m ruff check --fix
	$(VENV_PYTHON) -m ruff format

bench-runtimes: $(STAMP)
	$(VENV_PYTHON) benchmarks/runtimes.py $(BENCH_RUNTIMES_FLAGS)

bench-adjoint: $(STAMP)
	$(VENV_PYTHON) benchmarks/adjoint.py $(BENCH_ADJOINT_FLAGS)

bench-aggregation: $(STAMP)
	$(VENV_PYTHON) benchmarks/aggregation.py $(BENCH_AGGREGATION_FLAGS)

bench-algorithms: $(STAMP)
	$(VENV_PYTHON) benchmarks/algorithms.py $(BENCH_ALGORITHMS_FLAGS)

bench-client-memory: $(STAMP)
	$(VENV_PYTHON) benchmarks/client_memory_cost.py

gpu-check: $(STAMP)
	$(VENV_PYTHON) benchmarks/gpu_check.py $(GPU_CHECK_FLAGS)

# Tools that the package itself does not need are in environments of their own.
build/site-tools build/notebook-tools: build/%-tools: tools/%/requirements.txt
	$(PYTHON) -m venv --clear $@
	$@/bin/python -m pip install --disable-pip-version-check --quiet -r $<
	@touch $@

site: build/site-tools
	build/site-tools/bin/mkdocs build --quiet --config-file tools/site/mkdocs.yml

docs: site

notebooks: $(STAMP) build/notebook-tools
	PYTHONPATH=$$($(VENV_PYTHON) -c "import sysconfig; print(sysconfig.get_path('purelib'))") \
		build/notebook-tools/bin/python tools/notebook/execute.py notebooks/*.ipynb

build-file: $(STAMP)
	$(VENV_PYTHON) -m tests.testing.build_files

bazel-test: $(STAMP)
	tools/bazel/run $(abspath $(VENV_PYTHON))

clean:
	@[ ! -d build ] || chmod -R u+w build
	rm -rf .pytest_cache .ruff_cache .hypothesis build dist site *.egg-info bazel-*
	find . -path './.venv*' -prune -o -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-*
