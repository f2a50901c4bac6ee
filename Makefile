# `make demo` and `make test` do everything on a machine with Python 3.11 or newer: set-up included.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# The packages as one, as they are once installed: tools that read files do not know of the mapping in pyproject.toml.
TREE := build/tree/nfn_monomial
FUZZ ?= 100000
KILLS ?= 6
TRAINING := tests/benchmarks/train tests/benchmarks/make tests/benchmarks/studies
FETCH := --quiet --disable-pip-version-check --retries 1
ADD = $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e ".[$$extras]" \
  || $(BIN)/python -m pip install $(FETCH) -c constraints.txt -e ".[$$extras]"

# Modules are compiled when they are first imported, and kept: to compile all that is installed takes half as long as the set-up.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install demo bench results test test-rounding test-networks gallery test-matrix test-oldest test-newest slow kill fuzz lint docs tree clean

help:
	@echo "make demo   set up, train a zoo of small networks, predict their accuracy from their weights (5 min)"
	@echo "make results  all tables of the documentation again, resumed where it was; ONLY=a,b for some of them (hours)"
	@echo "make bench  all ratios of the speed of layers (2 min)"
	@echo "make test   set up, lint, pytest"
	@echo "make test-rounding  the tests that train, with matrix products that round as on another processor"
	@echo "make test-networks  the whole zoo of networks, files of transformers and Lightning"
	@echo "make gallery  67 architectures of five packages are read as docs/gallery.md says, and 40 others (30 min, with downloads)"
	@echo "make test-matrix  the tests as on other machines: instructions, rounding, threads, order, locale, time zone, no home"
	@echo "make test-oldest  the tests with the lowest versions that pyproject.toml allows, in an environment of their own"
	@echo "make test-newest  the tests with the newest versions that there are, in an environment of their own"
	@echo "make slow   tests that take minutes: compiled layers and models, memory, the zoo against numeric oracles"
	@echo "make kill   commands that are killed, interrupted, or find the disk full, for an hour; KILLS=N of every kind"
	@echo "make fuzz   damaged files, for an hour; FUZZ=N for N damages in all, others in every call"
	@echo "make lint   ruff, mypy --strict, and the order of imports that pyproject.toml states"
	@echo "make docs   the documentation as a site, in build/site"
	@echo "make clean  remove the virtual environment and caches"

install: $(INSTALLED)

# pip finds the torch that its settings name, such as a build for the CPU. uv, which does not read them, has the rest there in
# a quarter of the time; where it finds no packages, because only pip knows where they are, pip goes on.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --no-compile torch uv
	extras=bench,dev,docs; $(ADD)
	touch $(INSTALLED)

# Short spinning: threads that wait actively slow one another down many times on a machine with other work.
demo: $(INSTALLED)
	GOMP_SPINCOUNT=3000 $(BIN)/nfn-monomial demo

# Cheap ones first; what is finished is kept. The commands are in benchmarks/results/commands.toml.
results: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python docs/remake.py "$(ONLY)"
	$(BIN)/python docs/tables.py

# On the CPU with one thread, which is what ratios need; then on a GPU, where there is one.
bench: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/nfn-monomial bench layers --preset quick --out build/bench
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
	  $(BIN)/nfn-monomial bench layers --preset quick --device cuda --out build/bench-gpu; \
	else echo "No GPU was found: nothing was timed on one."; fi

tree:
	@rm -rf $(TREE) && mkdir -p $(TREE)
	@ln -s $(CURDIR)/nfn_monomial/* $(CURDIR)/adapters $(CURDIR)/benchmarks $(TREE)

lint: $(INSTALLED) tree
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd $(dir $(TREE)) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml -p nfn_monomial
	cd $(dir $(TREE)) && PYTHONPATH=. $(CURDIR)/$(BIN)/lint-imports --config $(CURDIR)/pyproject.toml --no-logo

docs: $(INSTALLED) tree
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict
	$(BIN)/python docs/links.py build/site

# Two processes of one thread each: tensors in tests are too small for threads to help.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

# ROUNDING draws the order in which products sum: tests/helpers/other_rounding.py. What goes on behind a cut or a damage is
# compared with the same sums, so it is left out; processes of their own (devices) round as the machine does; what counts
# parameters or draws architectures has no sums. One process: two would import and collect everything twice.
test-rounding: $(INSTALLED)
	ROUNDING=1 OMP_NUM_THREADS=1 $(BIN)/pytest $(TRAINING) -k "not damage and not cut and not killed and not test_devices and not test_params and not test_config" -q

# Groups that are derived and layers on the whole zoo, and checkpoints as transformers and Lightning write them.
test-networks: $(INSTALLED)
	extras=networks; $(ADD) || echo "no transformers: skipped"
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/networks -m "networks and not slow" -n 2 --dist worksteal

# In an environment of its own: torchvision's compiled operators may be those of another torch, and then transformers, which
# imports it wherever it is installed, cannot be used.
gallery:
	test -d build/gallery || $(PYTHON) -m venv build/gallery
	build/gallery/bin/python -m pip install $(FETCH) -c constraints.txt -e '.[gallery,tools,dev]'
	OMP_NUM_THREADS=1 build/gallery/bin/pytest tests/gallery tests/networks/of_packages -m gallery -q -n 2 --dist worksteal

# What takes long beside what else tests the same: compiled layers and models, memory; and what the zoo says of its
# networks, counted by numeric oracles.
slow: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow -q -n 2 --dist worksteal

kill: $(INSTALLED)
	KILLS=$(KILLS) OMP_NUM_THREADS=1 $(BIN)/pytest tests/kill -m kill -s -q

# Prints what came of the damages to every kind of file.
fuzz: $(INSTALLED)
	FUZZ=$(FUZZ) OMP_NUM_THREADS=1 $(BIN)/pytest tests/fuzz -s -q

test-matrix: $(INSTALLED)
	for machine in "OMP_NUM_THREADS=2" "OMP_NUM_THREADS=4 ATEN_CPU_CAPABILITY=default" \
	    "ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=COMPATIBLE HYPOTHESIS_PROFILE=thorough" \
	    "LC_ALL=C PYTHONUTF8=0 TZ=Pacific/Auckland HOME=/nonexistent CI=true" \
	    "ROUNDING=1" "ROUNDING=2" "ROUNDING=3"; do \
	  echo "$$machine"; env OMP_NUM_THREADS=1 SHUFFLE=1 $$machine $(BIN)/pytest -q -n 2 --dist worksteal -m 'not networks and not gallery and not kill' || exit; done

# Versions are read off pyproject.toml, not written twice. What the lowest ones warn of in one another is no fault of ours. PYTHON=python3.13 make test-newest for another Python.
test-oldest:
	test -d build/oldest || $(PYTHON) -m venv build/oldest
	build/oldest/bin/python -m pip install $(FETCH) uv
	build/oldest/bin/uv pip install --quiet --python build/oldest/bin/python --resolution lowest-direct -e '.[bench]'
	build/oldest/bin/uv pip install --quiet --python build/oldest/bin/python -e '.[bench,dev]'
	OMP_NUM_THREADS=1 build/oldest/bin/pytest -q -n 2 --dist worksteal -W ignore::DeprecationWarning -W ignore::UserWarning

test-newest:
	test -d build/newest || $(PYTHON) -m venv build/newest
	build/newest/bin/python -m pip install $(FETCH) --upgrade --upgrade-strategy eager -e '.[bench,dev]'
	OMP_NUM_THREADS=1 build/newest/bin/pytest -q -n 2 --dist worksteal

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
