# Thin wrappers around the `nearmem` command and the tests; `make help` lists them.
# The environment is made on first use from PyPI; the machine needs python3, g++, make and perl.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help sim test verilog bench baseline sweep reproduce registers figures docs lint constraints clean

help: ## Lists the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is \
	needed, this is %s: set PYTHON=..." % sys.version.split()[0])'
	@echo "Installing into $(VENV) (first use; about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[dev]'
	@touch $@

sim: $(INSTALLED) ## Trains on handwritten digits, every Adam step on the simulated RTL (ARGS=...)
	@$(BIN)/nearmem sim $(ARGS)

test: $(INSTALLED) ## Runs all tests (ARGS=... goes to pytest)
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile $(ARGS)

verilog: $(INSTALLED) ## Writes build/verilog/NAME.v and NAME.json
	@$(BIN)/nearmem verilog $(ARGS)

bench: $(INSTALLED) ## Measures the simulation's speed, beside cocotb and Amaranth's simulator
	@$(BIN)/nearmem bench $(ARGS)
	@$(BIN)/python -m hw_tests.speed

baseline: $(INSTALLED) ## Measures Adam on this machine's CPU, beside the simulated module
	@$(BIN)/nearmem baseline $(ARGS)

sweep: $(INSTALLED) ## Measures all combinations of settings (ARGS="--axis lanes=4,16 ...")
	@$(BIN)/nearmem sweep $(ARGS)

reproduce: $(INSTALLED) ## Makes a paper's tables and figures of training again (PAPER=mc-dla ARGS=figure13)
	@$(BIN)/nearmem reproduce $(or $(PAPER),axdimm) $(ARGS)

registers: $(INSTALLED) ## Writes build/registers: the register maps as Markdown and as C headers
	@$(BIN)/nearmem registers $(ARGS)

figures: $(INSTALLED) ## Draws docs/pictures again (ARGS=--measure: also what takes minutes)
	@$(BIN)/python docs/figures $(ARGS)

docs: $(INSTALLED) ## Builds build/docs/index.html; warnings are errors
	@rm -rf build/docs build/doctrees
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --jobs auto \
	  --doctree-dir build/doctrees docs build/docs $(ARGS)
	@echo "build/docs/index.html"

lint: $(INSTALLED) ## Checks format, style and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/basedpyright

# PyTorch itself says which of CUDA's libraries it needs, to the version, and they differ by platform.
constraints: ## Writes constraints.txt: the newest versions that pyproject.toml allows
	@$(PYTHON) -m venv --clear build/constraints
	@build/constraints/bin/python -m pip install --quiet --disable-pip-version-check \
	  '.[dev,cluster,torch]'
	@build/constraints/bin/python -m pip freeze --all --exclude nearmem --exclude pip > build/frozen.txt
	@sed -i -E '/^[^#]/d' constraints.txt
	@sed -E '/^(cuda|nvidia|triton)/d; s/\+.*//' build/frozen.txt >> constraints.txt

clean: ## Removes builds and the environment
	rm -rf build docs/api/modules docs/api/registers.md $(VENV) *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
