# From a fresh clone, with nothing but Python >= 3.11 and make: `make demo` and `make test`.

PYTHON ?= python3
WORKERS ?= 2

BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test install lint format clean

demo: $(STAMP)
	$(BIN)/ringflow demo --overwrite

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

install: $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is newer than what it was installed from, so a changed requirement installs again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "ringflow needs Python >= 3.11; name one: make PYTHON=python3.12" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@
