# From a fresh clone, with nothing but Python >= 3.11 and make: `make demo` and `make test`.

PYTHON ?= python3
WORKERS ?= 2

BIN := .venv/bin
CORE := .venv/.core
DEVELOP := .venv/.develop

.PHONY: demo test install develop lint format clean

demo: $(CORE)
	$(BIN)/ringflow demo --overwrite

test: $(DEVELOP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

install: $(CORE)

develop: $(DEVELOP)

lint: $(DEVELOP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEVELOP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# pip, with a line for every package it fetches and its size; what it complains of comes on stderr as it is.
define install
	@{ $(BIN)/python -m pip install --progress-bar off -c constraints.txt -e '$(1)' || echo failed; } | awk ' \
		/^failed$$/ { exit 1 } \
		/^ *(Downloading|Processing|Using cached) .*[.]whl/ && !/metadata/ { \
			sub(/.*\//, ""); sub(/^ *(Downloading|Using cached) /, ""); split($$1, part, "-"); \
			print "  " ++n ". " part[1] " " part[2] " " $$2 " " $$3; fflush() } \
		/^Installing collected/ { print "  unpacking " NF - 3 " packages"; fflush() }'
	@echo "  .venv takes $$(du -sh .venv | cut -f1)"
endef

# The stamps are newer than what they were installed from, so a changed requirement installs again.
$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "ringflow needs Python >= 3.11; name one: make PYTHON=python3.12" >&2; exit 2; }
	@echo "installing ringflow and what it stands on into .venv; torch is by far the largest of about 65 packages"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(call install,.)
	@touch $@

$(DEVELOP): $(CORE)
	@echo "installing what tests need: Ray, Spark, ONNX, MPI, linters; Spark is by far the largest"
	$(call install,.[dev])
	@touch $@
