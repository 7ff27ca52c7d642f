# make test [PYTHON=python3.13] [VENV=folder]: check the types, run the tests and check the files. It
# uses a virtual environment of its own for each Python. In a checkout that cannot be written, VENV
# says where to put it.

PYTHON ?= python3
VENV := .venv/$(shell $(PYTHON) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
FILES := crawl.py test_crawl.py conftest.py .ci/bench.py .ci/check.py .ci/soak.py
PYTEST = $(VENV)/bin/pytest -q
COVERAGE = --cov=crawl --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100

test: $(VENV)/ready
	$(PYTHON) .ci/check.py
	$(VENV)/bin/mypy --strict --cache-dir $(VENV)/mypy $(FILES)
	COVERAGE_FILE=$(VENV)/coverage $(PYTEST) $(COVERAGE)

# The size and the order of the files: no section too long, no name used above its definition, ...
check:
	$(PYTHON) .ci/check.py

# make test in an empty environment, on every Python from 3.11 onwards that is installed here.
test-all:
	bash .ci/run

# The tests with the selectors of other systems. (kqueue cannot be tried on Linux.)
selectors: $(VENV)/ready
	SELECTOR=PollSelector $(PYTEST)
	SELECTOR=SelectSelector $(PYTEST)

# The speed beside asyncio and threads, as ratios. It takes about two minutes.
bench:
	$(PYTHON) .ci/bench.py

# The tests that take minutes.
soak: $(VENV)/ready
	$(PYTEST) .ci/soak.py -s
	SEED=$$(date +%s) ROUNDS=1000000 $(PYTEST) -k 'mutated or made_up' -o faulthandler_timeout=3600

$(VENV)/ready: Makefile
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check mypy==2.4.1 pytest==9.2.0 pytest-cov==7.1.0
	touch $@

clean:
	rm -rf .venv .coverage __pycache__

.PHONY: test check test-all selectors bench soak clean
