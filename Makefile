# Thin wrappers around the `nearmem` command and the tests; `make help` lists them.
# The environment is made on first use from PyPI; the machine needs python3, g++, make and perl.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NEARMEM := $(BIN)/python -m sw_driver.cli
RUNS := $(VENV)/.runs# there when what commands need is installed
INSTALLED := $(VENV)/.installed# when what tests, documentation and hand-off need is, too
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help sim test soak formal mutate coverage verilog bench measure sweep reproduce registers figures docs lint constraints clean

help: ## Lists the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

# Installs the package with the extras $(1), which take $(2) MB; first sees whether that can end well.
define install
@case "$$PWD" in *[:\$$]*) echo "Python's venv and setuptools take no path with : or $$ in it, as \
$$PWD has: move this folder" >&2; exit 2;; esac
@for tool in g++ make perl; do command -v $$tool > /dev/null || { echo "$$tool is missing, with which \
simulators are built: install g++, make and perl" >&2; exit 2; }; done
@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is \
needed, this is %s: set PYTHON=..." % sys.version.split()[0])'
@'$(PYTHON)' -c 'import ensurepip' 2> /dev/null || { echo "Python makes no environments here: install \
its venv (python3-venv)" >&2; exit 2; }
@test "$$(df -Pm . | awk 'NR == 2 { print $$4 }')" -ge $(2) || { echo "$(2) MB are needed here, and \
there are $$(df -Pm . | awk 'NR == 2 { print $$4 }'): make room" >&2; exit 2; }
@echo "Installing into $(VENV): $(2) MB, a minute or some, the first time only"
@'$(PYTHON)' -m venv $(VENV)
@$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.$(1)'
@touch $@
endef

$(RUNS): pyproject.toml constraints.txt
	$(call install,,650)

$(INSTALLED): pyproject.toml constraints.txt
	$(call install,[dev],1600)
	@touch $(RUNS)

sim: $(RUNS) ## Trains on handwritten digits, every Adam step on the simulated RTL (ARGS=...)
	@$(NEARMEM) sim $(ARGS)

test: $(INSTALLED) ## Runs all tests (ARGS=... goes to pytest)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 \
	  --dist loadfile $(ARGS)

soak: $(INSTALLED) ## Runs tests that are long by nature, in an order drawn by lot (SECONDS=400 SEED=...)
	@$(addprefix NEARMEM_TEST_SEED=,$(SEED)) $(BIN)/python -m pytest --soak=$(or $(SECONDS),400) \
	  --numprocesses auto --maxprocesses 8 --dist loadfile $(ARGS)

formal: $(INSTALLED) ## Proves properties of the Verilog, and sees that each can fail (ARGS="--table fifo-4 ...")
	@$(BIN)/python -m hw_tests.formal $(ARGS)

mutate: $(INSTALLED) ## Puts 20 small faults into copies of the tree and sees whether tests notice (SEED=...)
	@$(BIN)/python -m hw_tests.mutants $(addprefix --seed ,$(SEED)) $(ARGS)

coverage: $(INSTALLED) ## Counts what benches reach of the hardware: build/coverage/index.html (ARGS="FILE ...")
	@$(BIN)/python -m hw_tests.coverage $(ARGS)

verilog: $(INSTALLED) ## Writes build/verilog/NAME.v and NAME.json
	@$(NEARMEM) verilog $(ARGS)

bench: $(INSTALLED) ## Measures the simulation's speed beside other simulators, and the cost of Sentinel's guard
	@$(NEARMEM) bench $(ARGS)
	@$(BIN)/python -m hw_tests.speed
	@$(BIN)/python -m hw_tests.speed.guard

measure: $(INSTALLED) ## Measures this machine: products, copies, Adam, a drive (ARGS="--out mine.toml")
	@$(NEARMEM) measure $(ARGS)

sweep: $(RUNS) ## Measures all combinations of settings (ARGS="--axis lanes=4,16 ...")
	@$(NEARMEM) sweep $(ARGS)

reproduce: $(RUNS) ## Makes the papers' tables and figures of training again (PAPER=mc-dla ARGS=figure13: some)
	@$(NEARMEM) reproduce $(or $(PAPER),all) $(or $(ARGS),$(if $(PAPER),,--out build/reproduce))

registers: $(INSTALLED) ## Writes build/registers: the register maps as Markdown and as C headers
	@$(NEARMEM) registers $(ARGS)

figures: $(INSTALLED) ## Draws docs/pictures again (ARGS=--measure: also what takes minutes)
	@$(BIN)/python docs/figures $(ARGS)

docs: $(INSTALLED) ## Builds build/docs/index.html; warnings are errors
	@rm -rf build/docs build/doctrees
	@$(BIN)/sphinx-build --fail-on-warning --keep-going --jobs auto \
	  --doctree-dir build/doctrees docs build/docs $(ARGS)
	@echo "build/docs/index.html"

lint: $(INSTALLED) ## Checks format, style and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/basedpyright

# PyTorch itself says which of CUDA's libraries it needs, to the version, and they differ by platform.
constraints: ## Writes constraints.txt: the newest versions that pyproject.toml allows
	@'$(PYTHON)' -m venv --clear build/constraints
	@build/constraints/bin/python -m pip install --quiet --disable-pip-version-check \
	  '.[dev,cluster,firmware,formal,tools,torch]'
	@build/constraints/bin/python -m pip freeze --all --exclude nearmem --exclude pip > build/frozen.txt
	@sed -i -E '/^[^#]/d' constraints.txt
	@sed -E '/^(cuda|nvidia|triton)/d; s/\+.*//' build/frozen.txt >> constraints.txt

clean: ## Removes builds and the environment
	rm -rf build docs/api/modules docs/api/commands.md docs/api/registers.md docs/api/settings.md $(VENV) *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
