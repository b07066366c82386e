# Every target makes what it needs: a .venv, installed once and again when the pins change. Only Python >= 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 0
OUT ?= runs/quickstart
export PYTHONDONTWRITEBYTECODE :=  # what was compiled is kept: tests start Python some hundred times

.PHONY: quickstart search-demo test test-all lint parity tiny-model clean

quickstart: $(VENV)/installed ## the main job: a team learns, the report proves it
	$(BIN)/gruppo quickstart --seed $(SEED) --out $(OUT)

search-demo: $(VENV)/installed ## a deep search whose executor learns to write clues, three seeds, before and after
	PYTHONWARNINGS=ignore::FutureWarning $(BIN)/python examples/deep_search/demo.py --out runs/search-demo

test: $(VENV)/complete ## ruff and the fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: $(VENV)/complete ## all tests, the slow ones too
	$(BIN)/python -m pytest -n 2 -m "slow or not slow" --hypothesis-profile searching

parity: $(VENV)/complete ## our losses against TRL's, by running both
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[parity]"
	$(BIN)/python -m pytest -m slow tests/test_trl_parity.py

tiny-model: $(VENV)/complete ## make the embedded model anew (ten to thirty minutes)
	$(BIN)/python scripts/make_tiny_model.py

lint: $(VENV)/complete ## ruff and the type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gruppo needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/complete: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean: ## remove the environment and all runs
	rm -rf $(VENV) runs
