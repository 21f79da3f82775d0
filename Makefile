# Needs Python >= 3.11, pip and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN ?= runs/quickstart
WORKERS ?= 2
STAMP := $(VENV)/.installed

VERSIONS ?= lowest
EXTRAS ?= supersuit sb3 torchrl benchmarl jaxmarl rllib ray audit wandb datasets

.PHONY: run about-run test validate differential settings fresh robustness coverage mutation lint format wheel-test sbom docs first-hour gpu notebooks bridges versions thorough clean

run: about-run $(STAMP)  ## train IPPO, evaluate it beside the static settings, print the table, draw the plots
	$(BIN)/ecn-marl train ippo --out $(RUN) --evaluate --overwrite

about-run:
	@echo "make run: installs everything into $(VENV) if that is not done yet, trains IPPO by its recipe, evaluates it beside"
	@echo "static settings, prints the table and draws plots into $(RUN): 3 to 8 minutes, 2 to 4 once installed."

test: lint  ## linters, types and the whole suite, in WORKERS processes
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

thorough: $(STAMP)  ## tests that repeat laws on more networks, senders and scenarios, and long runs (an hour); before a release
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m thorough

validate: $(STAMP)  ## against theory and recorded packet-level runs; fails if any verdict is not as expected
	$(BIN)/ecn-marl validate

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel-test: $(STAMP)  ## the built wheel, outside the checkout: its files, imports, and what users meet first
	PYTHON="$(BIN)/python" WORKERS="$(WORKERS)" sh .ci/wheel-test

differential: $(STAMP)  ## the fluid beside packets, case by case (minutes); the table goes into docs/validation.md
	$(BIN)/python tests/packets/campaign.py

settings: $(STAMP)  ## J of 36 static settings in the fluid and on packets, five scenarios (hours); the table goes into docs/validation.md
	$(BIN)/python tests/packets/settings.py

fresh: $(STAMP)  ## property tests with fresh examples (minutes); what fails is printed to be pasted as @example
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m hypothesis --hypothesis-profile fresh

robustness: fresh  ## that, and cases that try to break it, for 30 minutes; the counts go into docs/reliability.md
	$(BIN)/python tests/robustness/campaign.py --out tests/robustness/counts.json
	$(BIN)/python docs/tables.py

coverage: $(STAMP)  ## branches of sim, envs and wrappers that their tests run (half an hour)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --cov --cov-report=term:skip-covered tests/sim tests/envs tests/wrappers tests/test_*.py

mutation: $(STAMP)  ## faults put into the simulator and the maths of learning, which tests have to find (20 minutes)
	$(BIN)/python -m pip install --quiet "cosmic-ray>=8.7,<9"
	$(BIN)/python tests/robustness/mutation.py

sbom: $(STAMP)  ## licences of all that the wheel brings along, and a bill of materials
	PYTHON="$(BIN)/python" .ci/sbom

docs: $(STAMP)  ## the documentation site in build/site; its tables are written anew
	$(BIN)/python docs/tables.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

first-hour: $(STAMP)  ## what a new user waits for, from the wheel in an empty environment (minutes)
	$(BIN)/python docs/first_hour.py --write

gpu: $(STAMP)  ## the kernel beside XLA on this machine's GPU (minutes); the table goes into docs/performance.md
	$(BIN)/ecn-marl speed --gpu --scenario websearch-v0 --scenario restore-serve-v0 --envs 1024,4096,16384,65536 --train ippo --out results/speed-gpu.json
	$(BIN)/python docs/tables.py

notebooks: $(STAMP)  ## run the notebooks and keep their outputs (minutes)
	$(BIN)/python notebooks/run.py

bridges:  ## the bridge of each extra, in a virtual environment of its own; EXTRAS="sb3 rllib" for some
	@set -e; for extra in $(EXTRAS); do echo "bridge $$extra"; PYTHON="$(PYTHON)" .ci/bridge $$extra; done

versions:  ## tests with other versions of the dependencies: lowest, or a version of JAX (PYTHON >= 3.12 for 0.11 and later)
	@set -e; for versions in $(VERSIONS); do echo "versions $$versions"; PYTHON="$(PYTHON)" .ci/versions $$versions; done

$(STAMP): pyproject.toml
	@PYTHON="$(PYTHON)" .ci/install $(VENV)
	@touch $@

clean:  ## everything that can be made again; never runs/
	rm -rf $(VENV) build dist .hypothesis .pytest_cache .ruff_cache .mypy_cache
