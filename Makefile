# Two promises on a fresh machine: `make quickstart`, which installs what users need, and `make test`, which adds what
# development needs. Everything runs in a virtual environment of its own.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
# Tests start more than a hundred processes: where this is set, each of them would compile all sources for itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install quickstart dist installed test parity fuzz lint docs profiles suite gpu bench sb3 clean

$(BIN)/.usable: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[serve]'
	touch $@

$(BIN)/.installed: $(BIN)/.usable
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

install: $(BIN)/.installed

quickstart: $(BIN)/.usable  ## the paper's cluster, emulated; then the whole main job on what is here; resumes if interrupted
	$(BIN)/slimsched run scenarios/paper-live-quick.yaml
	@echo
	@echo 'Next, your own question (after: . $(BIN)/activate), with a page that goes on from there:'
	@echo '  slimsched model add torchvision:resnet18 --weights FOLDER --images FOLDER    docs/tutorials/engineer.md'
	@echo '  slimsched init first.yaml                                                    docs/tutorials/researcher.md'
	@echo '  slimsched jobs import jobs.log                                               docs/tutorials/operator.md'
	@echo
	@echo 'The same workflow on the devices of this machine follows, in about five minutes. Ctrl-C stops it; make quickstart resumes it.'
	@echo
	$(BIN)/slimsched run scenarios/quickstart.yaml

dist: install  ## a wheel and an sdist, in dist/
	rm -f dist/slim_scheduler-*
	$(BIN)/python -m hatchling build --directory dist

installed: dist  ## the wheel in a clean environment and an empty folder: short commands, then the whole quickstart
	$(BIN)/python -m tests.installed dist
	$(BIN)/python -m tests.installed dist quickstart

JOBS ?= 3

test: install  ## every test that this machine can run, but what waits for `make parity`; JOBS processes (docs/tests.md)
	$(BIN)/python -m pytest -n $(JOBS) -m "not mutants and not release"

SEEDS ?= 0:10000

parity: install  ## every rule broken on purpose, what only a release needs (docs/tests.md); then both engines on 10,000 drawn scenarios, bit for bit; SEEDS=4000:10000 goes on from there
	$(BIN)/python -m pytest -m "mutants or release"
	$(BIN)/python -m tests.parity --seeds $(SEEDS)

SECONDS ?= 1200

EXAMPLES ?= 2000

fuzz: install  ## hostile inputs, EXAMPLES of each kind; then torn run folders, kills and a failing host, and the virtual experiment (docs/tests.md), each for SECONDS
	EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest tests/fuzz/test_inputs.py --hypothesis-profile fuzz -o timeout=0
	$(BIN)/python -m tests.fuzz all --seconds $(SECONDS)
	$(BIN)/python -m tests.swarm --seconds $(SECONDS) --jobs $(JOBS)

lint: install docs  ## style of code and of prose, types, the layers of docs/architecture.md, and the site without a warning
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.style

docs: install  ## the documentation site, in site/: open site/index.html; `mkdocs serve` also searches
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

profiles: install  ## the shipped datasheet profiles again, after a change of their model (docs/profiles.md)
	for gpu in $$(cd scenarios/data/profiles && ls *.yaml); do $(BIN)/slimsched profile synth $${gpu%.yaml} --out scenarios/data/profiles/$$gpu; done

suite: install  ## docs/results.md and scenarios/data/suite.csv: tunes the suite's rules that have no file, then runs all; goes on case by case if interrupted
	$(BIN)/python -m benchmarks suite

GPU_PYTHON ?= python3

gpu:  ## what only a GPU can tell, in nine minutes (docs/gpu-measurements.md); installs nothing; EMULATED=1 on the CPU
	$(GPU_PYTHON) -m benchmarks.gpu --seconds 530 $(if $(EMULATED),--emulated)

bench: install  ## speed; never part of a test
	$(BIN)/python -m pytest -o addopts= benchmarks/speed --benchmark-only --benchmark-columns=min,median,rounds

SB3 := .venv-sb3
SB3_NEEDS := examples/stable-baselines3/requirements.txt

$(SB3)/.installed: $(BIN)/.installed $(SB3_NEEDS)  # beside the environment, which has what these need
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(SB3) --requirement $(SB3_NEEDS)
	touch $@

sb3: $(SB3)/.installed  ## examples/stable-baselines3, in short: what was learned there chooses the same here
	PYTHONPATH=$(CURDIR)/$(SB3):$(CURDIR) $(BIN)/python -m pytest examples/stable-baselines3

clean:
	rm -rf $(VENV) $(SB3) runs build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
