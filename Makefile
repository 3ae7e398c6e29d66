# make demo | test | test-all | check | docs | bench: each does its own set-up in .venv
PYTHON ?= python3
VENV   ?= .venv
RUN     = $(VENV)/bin/python
WORKERS ?= 2
USABLE  = $(VENV)/.usable
READY   = $(VENV)/.ready
# a path file for what reads packages and runs no import hook: pyright, Pylance, mypy
SHOW    = 'import sys, sysconfig; open(sysconfig.get_path("purelib") + "/sgl_folders.pth", "w").write(sys.argv[1] + "\n")'

SOURCES = pyproject.toml setup.py constraints.txt $(shell find grammars/core runtime/csrc -name '*.[ch]' -o -name '*.inc')

.PHONY: setup demo test test-all test-rest check docs bench tutorials types clean
setup: $(READY) types
	$(bytecode)

# what pip does for packages that it copies: a program whose environment forbids .pyc files would compile 470 modules
bytecode = @$(RUN) -m compileall -q sgl lang runtime grammars common

# each installation compiles the C parts: what tests need comes with the programs, in one
$(READY): $(SOURCES)
	@echo "installing sgl and what tests, documentation and tutorials need into $(VENV) (the first time: minutes)"
	$(call install,'.[dev]')
	@touch $(USABLE) $@

# enough to run programs
$(USABLE): $(SOURCES)
	@echo "installing sgl into $(VENV) (the first time: minutes, most of it PyTorch)"
	$(call install,.)
	@touch $@

define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sgl needs Python 3.11 to 3.13; try: make PYTHON=python3.13")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -q --disable-pip-version-check -c constraints.txt -e $(1)
	@$(RUN) -c $(SHOW) "$(CURDIR)/build/types"
endef

demo: $(USABLE) types
	$(bytecode)
	@$(RUN) examples/extract_bookings.py

# each file runs in one of WORKERS processes, the files that take longest first; OPTIONS=--record-durations notes how long
PYTEST = $(RUN) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(OPTIONS)

# the short selection; what it is: tests/selection.py
test: setup
	$(PYTEST)

test-all: setup
	$(PYTEST) --whole

# make test-rest TESTS="tests/cpu/test_gemv.py tests/unit": what the short selection leaves out of these
test-rest: setup
	$(PYTEST) --rest $(TESTS)

# the site, in build/site; a link that leads nowhere fails it
docs: setup
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet
	@echo "build/site/index.html"

check: setup
	$(RUN) -m ruff check .
	$(VENV)/bin/mypy --config-file pyproject.toml build/types/sgl
	$(RUN) tests/house.py

bench: setup
	$(RUN) benchmarks/speed.py
	$(RUN) benchmarks/fork.py
	$(RUN) -m benchmarks.workloads --short

# run the notebooks and keep their outputs; make tutorials NOTEBOOK=7 runs one
tutorials: setup
	$(RUN) tests/notebooks.py $(NOTEBOOK)

# type checkers and editors read packages from folders of their name: show them the floors under sgl/
types:
	@mkdir -p build/types/sgl
	@for f in sgl/*; do ln -sfn ../../../$$f build/types/sgl/$$(basename $$f); done
	@for f in lang runtime grammars common; do ln -sfn ../../../$$f build/types/sgl/$$f; done

clean:
	rm -rf build dist *.egg-info $(VENV)
