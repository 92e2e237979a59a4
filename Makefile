PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test clean

# Equality on a few episodes, speed against a process per environment, and a minute of training.
demo: .venv/train
	$(BIN)/mjvec demo

# Lint, types and tests.
test: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest

clean:
	rm -rf .venv

.venv/train: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train]'
	touch $@

.venv/dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
