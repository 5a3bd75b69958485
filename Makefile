PYTHON ?= python3
VENV   ?= .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
PIP     = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# empty in recipes: processes keep the bytecode of what they import, for the next one
export PYTHONDONTWRITEBYTECODE =
# what the demo needs, and what tests, lint and docs need besides
INSTALL = $(VENV)/.installed
DEV     = $(VENV)/.installed-dev

.PHONY: demo test test-slow lint bench docs clean

# --no-compile: most of torch is never imported, and what is compiles then
$(INSTALL): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile torch -e ".[cpu,report]"
	$(BIN)/python -c "open('$(INSTALL)', 'w').close()"

$(DEV): $(INSTALL)
	$(PIP) -e ".[dev,parity,docs]"
	$(BIN)/python -c "open('$(DEV)', 'w').close()"

demo: $(INSTALL)
	$(BIN)/python -m resolvent demo --out out/demo

test: $(DEV) lint
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: $(DEV)
	$(BIN)/python -m pytest -m slow

lint: $(DEV)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy

bench: $(INSTALL)
	$(PIP) -e ".[bench]"
	$(BIN)/python -m benchmarks.cpu
	$(BIN)/python -m benchmarks.cpu.scaling

docs: $(INSTALL)
	$(PIP) -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

clean:
	$(PYTHON) -c "import shutil; [shutil.rmtree(p, ignore_errors=True) for p in ('$(VENV)', 'out', 'build', 'dist')]"
