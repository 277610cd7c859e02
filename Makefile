# Two commands matter: `make demo` and `make test`. Each sets up what it needs and reuses it the next time.
# Another Python is tried with `make test PYTHON=python3.10`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
DEV := $(VENV)/.dev
DOCS := $(VENV)/.docs
# pip reads both: the versions of what is installed, and of what builds the package, which --constraint does not reach.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)

.PHONY: demo test bench docs soak lint format clean FORCE

demo: $(CORE)
	$(BIN)/rebapl demo

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# How long a training step and an answer take here; what to time is said by `make bench WHAT="--parts growth"`.
bench: $(CORE)
	$(BIN)/python benchmarks/speed.py $(WHAT)

# The documentation as a site, in the folder `site`; open site/index.html. Broken links and anchors stop it.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# A thousand tiny runs through the local pool and through Ray: half an hour. The record goes to docs/benchmarks.
soak: $(DEV)
	$(BIN)/python tools/soak.py

lint: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(DEV)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache demo site

WHICH := -c 'import sys; print(sys.version.split()[0], sys.base_prefix); sys.exit(sys.version_info < (3, 10))'

# The environment belongs to one Python. When another one is named, it is made anew; when none is, it is used as it is.
$(VENV)/pyvenv.cfg: FORCE
ifeq ($(origin PYTHON),file)
	@test -e $@ || $(MAKE) --no-print-directory $@ PYTHON=$(PYTHON)
else
	@wanted=$$($(PYTHON) $(WHICH)) || \
		{ echo "rebapl needs Python 3.10 or newer; say which with: make PYTHON=/path/to/python3"; exit 1; }; \
	if [ "$$($(BIN)/python $(WHICH) 2>&1)" != "$$wanted" ]; then \
		echo "Making $(VENV) with Python $$wanted"; \
		rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); \
	fi
endif

FORCE:

$(CORE): $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (some minutes, the first time only)"
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(DEV): $(CORE) tests/laplace-torch.txt
	@echo "Installing the tools for tests into $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@$(BIN)/python -m pip install --quiet --no-deps --requirement tests/laplace-torch.txt
	@touch $@

$(DOCS): $(CORE)
	@echo "Installing the tools for the documentation into $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable ".[docs]"
	@touch $@
