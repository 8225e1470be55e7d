# Set-up is part of each command. `make install` does nothing else, `make run` does the main job after it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LOCK := constraints.txt
# torch's CPU-only build saves 3.7 GB of CUDA. PyPI has none; where an index of the host has it, it is taken.
TORCH_CPU := torch==2.13.0+cpu --hash=sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b

.PHONY: install run compare test check format docs lock clean

install: $(VENV)/installed

run: install
	$(BIN)/fleet demo

# Three ways to search two operators, side by side: eight minutes on two cores.
compare: install
	$(BIN)/python -m benchmarks.compare

# Many tests wait for processes: three at a time keep two cores at work. These share compiled modules, whatever the
# shell says.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/installed-dev
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Every file that pip takes must have one of the sums in $(LOCK). Older pips cannot look for sums of indirect needs
# there, so pip itself comes first; from the lock too.
$(VENV)/pip: $(LOCK)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	sed -n '/^pip==/,/[^\\]$$/p; /^setuptools==/,/[^\\]$$/p' $(LOCK) > $(VENV)/setup.txt
	$(PIP) install --require-hashes -r $(VENV)/setup.txt
	touch $@

# The stamp is written last, so an interrupted installation is taken up again.
$(VENV)/installed: pyproject.toml $(LOCK) .ci/requirements.py $(VENV)/pip
	$(BIN)/python .ci/requirements.py daemon > $(VENV)/run.txt
	echo '$(TORCH_CPU)' > $(VENV)/torch.txt
	test -e /dev/nvidiactl || $(PIP) install --no-deps --require-hashes -r $(VENV)/torch.txt 2> /dev/null || true
	$(PIP) install --require-hashes -c $(LOCK) -r $(VENV)/run.txt
	PYTHONWARNINGS=ignore $(PIP) install --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python .ci/requirements.py dev > $(VENV)/dev.txt
	$(PIP) install --require-hashes -c $(LOCK) -r $(VENV)/dev.txt
	touch $@

# Not --quiet: that hides warnings from --strict too, and a page that is missing in the navigation is one.
docs: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Pins and sums of everything, kept where they still fit; `make lock UPGRADE=--upgrade` takes the newest. Needs uv.
lock:
	uv pip compile pyproject.toml --group setup --extra dev --extra baselines --extra cuda --extra networks \
		--universal --python-version 3.11 --generate-hashes --no-annotate --quiet $(UPGRADE) \
		--custom-compile-command 'make lock' --output-file $(LOCK) > /dev/null

clean:
	rm -rf $(VENV) runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
