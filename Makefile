# Each target sets up what it needs. PYTHON: a Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test check soak kills bench clean

$(VENV)/.ready: requirements.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

run: $(VENV)/.ready
	$(BIN)/tpdpdash serve

test: $(VENV)/.ready
	$(BIN)/python -m pytest -m "not soak"

# What is too long for every run: 500 random kills, and the built-in worker's memory at the size of Llama-3-8B.
soak: $(VENV)/.ready
	$(BIN)/python -m pytest -m soak

# The soak's short form.
kills: $(VENV)/.ready
	TPDPDASH_SOAK_KILLS=10 $(BIN)/python -m pytest -m soak tests/run/test_soak.py

check: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks.search
	$(BIN)/python -m benchmarks.history
	$(BIN)/python -m benchmarks.calibrated
	$(BIN)/python -m benchmarks.telemetry
	$(BIN)/python -m benchmarks.probe

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
