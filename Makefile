# The two commands of the README are `make demo` and `make test`; both set up what they need, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# One worker for each core, but no more than four: training tests start processes of their own. Slurm's tests mostly wait: two more.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 4 ? n : 4)))
ALL_WORKERS ?= $(shell echo $$(($(WORKERS) + 2)))

# The tests start the command a thousand times: without its bytecode on disk, each time compiles it again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-extended test-all test-fast chaos lint format bench docs gpu-kit lab-up lab-down clean

help: ## What there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | while IFS='|' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

# torch first, by its plain pin: where pip finds a CPU build of that version, the range in pyproject.toml is then satisfied and nothing
# pulls CUDA packages. Where the plain pin is a CUDA build, and there is no NVIDIA GPU, PyTorch's own index has the CPU build.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
torch_index = index=; if [ ! -e /dev/nvidia0 ] && [ "$$(uname)" = Linux ] \
    && $(1) --dry-run --no-deps --report - torch | grep -qi '"nvidia-\|"cuda-'; then index="--extra-index-url $(TORCH_CPU_INDEX)"; fi
$(VENV)/full: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	@echo "installing torch, transformers, trl and the test tools into $(VENV) (a minute or two, 1.5 GB)"
	@$(call torch_index,$(PIP) install --constraint constraints.txt); \
	$(PIP) install --constraint constraints.txt $$index torch
	$(PIP) install --constraint constraints.txt --editable '.[train,trackers,dev]'
	@# Beside the environment: in it, peft imports it at each start of a training, a quarter of the start's CPU time.
	$(PIP) install --constraint constraints.txt --no-deps --target $(VENV)/quantized bitsandbytes
	@touch $@

$(VENV)/light: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(VENV)/full ## Train a small model here, two simulated nodes, with the script that a cluster would run
	@examples/demo.sh $(BIN)/hpctrain demo

# A test that fails is run once more, for a busy machine fails one of thousands; the closing line counts it ("rerun"), -ra lists it.
PYTEST = tests/with_lab.sh $(BIN)/python -m pytest -n $(ALL_WORKERS) --dist loadfile --no-loadscope-reorder --reruns 1 -raR

test: $(VENV)/full ## The main job and every command, on a real two-node Slurm where it can be started
	@$(PYTEST) -m 'not extended'

test-extended: $(VENV)/full ## What test leaves out: outages and other faults, other sites, long trainings
	@$(PYTEST) -m extended

test-all: $(VENV)/full ## Both at once: what waits for Slurm runs beside what computes
	@$(PYTEST)

test-fast: $(VENV)/light ## The inner loop: no Slurm, no torch, under a minute
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --hypothesis-profile=fast \
	    -m 'not slurm and not torch and not slow and not extended' -q

# pyproject.toml bounds the libraries to the releases that were tested; here is what comes after them. Not in test-all: it fails when
# somebody else releases something.
NEWEST := .venv-newest
NEWEST_PIP = $(NEWEST)/bin/python -m pip --disable-pip-version-check --quiet
test-newest: ## The training's tests on the newest releases of torch, transformers, TRL and their like (by hand, ten minutes)
	$(PYTHON) -m venv $(NEWEST)
	@$(call torch_index,$(NEWEST_PIP) install); \
	$(NEWEST_PIP) install --upgrade $$index torch transformers trl accelerate datasets peft optuna nvidia-ml-py
	$(NEWEST_PIP) install --upgrade --editable '.[dev]'
	$(NEWEST_PIP) list | grep -iE '^(torch|transformers|trl|accelerate|datasets|peft|optuna) '
	$(NEWEST)/bin/python -m pytest -n $(WORKERS) -m 'not extended and not slurm' tests/training

MINUTES ?= 40
chaos: $(VENV)/full ## Break real jobs in 28 ways, and see that none of them costs work (root; MINUTES=40 at most)
	@$(BIN)/python tests/chaos/campaign.py --minutes $(MINUTES)

lint: $(VENV)/full ## ruff, mypy --strict, import-linter, shellcheck
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/shellcheck templates/job.sh tests/*.sh examples/*.sh .ci/run
	@# The scripts source the library and quote on purpose what each node expands.
	$(BIN)/shellcheck --exclude SC1090,SC1091,SC2016,SC2034,SC2088,SC2154 tests/golden/*/script*.sbatch

format: $(VENV)/light ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/full ## Measure start-up, checks, samples, explaining 1 GB, and training beside TRL's defaults
	$(BIN)/python tests/bench/bench_cli.py
	$(BIN)/python tests/bench/bench_memory.py
	$(BIN)/python tests/bench/bench_explain.py
	$(BIN)/python bench/train.py --knobs --tokens 15000

docs: $(VENV)/full ## Build the documentation site into site/
	$(BIN)/python docs/build_site.py

gpu-kit: $(VENV)/full ## Gather what bench/gpu needs on a GPU machine without a network, into .gpu-kit
	$(BIN)/python bench/gpu/kit.py --into .gpu-kit

lab-up: ## Start the two-node Slurm on this machine (root; installs Debian's packages)
	@tests/lab/lab up

lab-down: ## Stop it
	@tests/lab/lab down

clean: ## Remove what the targets above made
	rm -rf $(VENV) demo build dist site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
