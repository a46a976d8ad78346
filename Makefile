# Two commands do all the set-up themselves: make quickstart, make test. Python 3.11 or newer is all they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := runs/quickstart
PLM := $(BIN)/proteinlm
WORKERS ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# XLA takes its buffers anew for each step; in huge pages that costs a fifth of the step less on a CPU (Linux, glibc).
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

.PHONY: quickstart clean-quickstart test test-all lint format notebooks docs clean

$(VENV)/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "proteinlm needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

# The four commands that a user would type, on the proteins that come with the package, and a page that shows it all.
quickstart: $(VENV)/installed
	@test ! -e $(RUNS)/dataset || echo "$(RUNS)/dataset is there already; make clean-quickstart starts anew"
	test -e $(RUNS)/dataset || $(PLM) ingest sample --output $(RUNS)/dataset --valid 0.05 --test 0.1
	for run in causal masked concat; do \
	  $(PLM) train quickstart_$$run --dataset $(RUNS)/dataset --run $(RUNS)/$$run || exit; done
	$(PLM) evaluate $(RUNS)/causal $(RUNS)/masked $(RUNS)/concat
	$(PLM) analyze $(RUNS)/causal --sequences 200
	$(PLM) analyze $(RUNS)/masked --sequences 200
	$(PLM) report $(RUNS)

clean-quickstart:
	rm -rf $(RUNS)

test: $(VENV)/installed-dev lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

# With the slow ones: kills at every file operation, whole notebooks, several processes and devices.
test-all: $(VENV)/installed-dev lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Runs them from the first cell to the last, in notebooks/, where their runs stay (notebooks/runs).
notebooks: $(VENV)/installed-dev
	mkdir -p docs/notebooks
	$(BIN)/python -m nbconvert --execute --to html --output-dir docs/notebooks notebooks/*.ipynb

# The site of README, guides, gallery and API reference; a link that leads nowhere fails it. Open build/site/index.html.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(VENV)/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/pyright

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) runs .pytest_cache .ruff_cache .hypothesis .import_linter_cache
