# Everything a contributor runs. `make demo` and `make test` set up what they need by themselves.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
PYTEST = $(BIN)/python -m pytest

# Bytecode is kept, whatever the environment says: else every process that a test starts compiles everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo check lint style layers types unit test coverage test-long test-spark-4.2 fuzz benchmarks benchmark-spark docs dist clean

help:
	@grep -E '^## ' Makefile | sed 's/^## //'

$(STAMP): pyproject.toml setup.py kclient/records/_compiled.pyx $(wildcard kclient/records/_cython/*.pxi)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --group dev --editable '.[all,demo]'
	touch $(STAMP)

## make setup        the virtual environment with everything in it
setup: $(STAMP)

## make demo         the main job on real flights: gateway, producer, consumer group, foreign client, Spark streaming, audit
demo: $(STAMP)
	$(BIN)/python examples/flights_demo.py

## make lint         style, layers and types
lint: style layers types

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The second one counts imports for types too.
layers: $(STAMP)
	$(BIN)/lint-imports --no-cache
	$(BIN)/lint-imports --no-cache --config .importlinter-cycles

# mypy keeps what it has found out; this looks at everything, and only where something is newer.
VERIFIED = $(VENV)/.types-verified
$(VERIFIED): $(STAMP) tests/verify_types.py $(shell find kclient -name '*.py' -o -name '*.pyi')
	$(BIN)/python tests/verify_types.py
	touch $(VERIFIED)

types: $(VERIFIED)
	$(BIN)/mypy

# Virtual time makes these cheap: a seed of each.
TROUBLE = $(patsubst %,tests/simulation/test_%_in_trouble.py,clusters readers admins)

# The unit tests in parts, a process each: so each test is collected once. `gateway_*` stay together, since tests that are
# alike there are chosen from (`AGAIN` in tests/conftest.py). The longest first.
PARTS = rest gateway spark bytes consumers stores mappings producers
# Of the gateway's, those that are most about what a store does: so that no part takes much longer than the others.
ABOUT_STORES = $(patsubst %,tests/unit/gateway/test_gateway_%.py,any_damage damage unknown_outcomes)
UNIT_gateway = tests/unit/gateway $(ABOUT_STORES:%=--ignore=%)
UNIT_stores = tests/unit/htp $(ABOUT_STORES)
UNIT_mappings = $(wildcard tests/unit/gateway_*)
UNIT_consumers = tests/unit/consumer
UNIT_producers = $(patsubst %,tests/unit/%,producer sync)
UNIT_bytes = $(patsubst %,tests/unit/%,records protocol net)
UNIT_spark = $(patsubst %,tests/unit/%,spark migration)
UNIT_rest = tests/unit $(TROUBLE) $(patsubst %,--ignore=%,$(filter tests/%,$(foreach part,$(filter-out rest,$(PARTS)),$(UNIT_$(part)))))

# Their files lie in memory where there is room, since every store syncs many (`make test` has them on the disk), and those
# of a test that has passed go with it.
MEMORY = $(shell df -Pk /dev/shm 2>/dev/null | awk '$$1 == "tmpfs" && $$4 > 500000 && system("test -w " $$6) == 0 { print $$6 }')
FILES = -o tmp_path_retention_policy=failed

.PHONY: $(PARTS:%=unit-%)
$(PARTS:%=unit-%): unit-%: $(STAMP)
	export HYPOTHESIS_PROFILE=quick PYTEST_DEBUG_TEMPROOT="$${PYTEST_DEBUG_TEMPROOT:-$(MEMORY)}"; \
	$(PYTEST) $(UNIT_$*) -m "not slow and not long" --one-loop --one-store $(FILES) -q

SIDE_BY_SIDE = $(BIN)/python tests/side_by_side.py $(MAKE)

unit: $(STAMP)
	$(SIDE_BY_SIDE) $(PARTS:%=unit-%)

## make check        lint and unit tests, side by side: the fast part, some minutes on two cores
check: $(STAMP)
	$(SIDE_BY_SIDE) $(PARTS:%=unit-%) types layers style

# What needs no server: four processes share it, a test at a time, since each waits much of its time. Of the rest two take
# whole files, each with its own Kafka of each version.
ALONE = tests/simulation tests/unit tests/fuzz
SERVED = tests $(ALONE:%=--ignore=%) -m "not long" -n 2 --dist loadgroup

# The few that fail run once more by themselves, and are named (tests/again.py); so are those that took the longest.
SLOWEST = --durations=30 --durations-min=5
ONCE_MORE = $(BIN)/python -m tests.again

## make test         set up, then lint and every test
test: $(STAMP) lint
	$(ONCE_MORE) $(ALONE) -m "not long" -n 4 --in-turn $(SLOWEST) $(COVER)
	$(ONCE_MORE) $(SERVED) --one-loop $(SLOWEST) $(COVER)

# Following every line takes half as long again.
## make coverage     the same, and which lines no test reaches
coverage: $(STAMP)
	rm -f .coverage
	$(MAKE) --no-print-directory test COVER='--cov --cov-append --cov-report='
	$(BIN)/coverage report

## make test-long    the sweeps, soaks and pairs of loop and store that make test leaves out: hours
test-long: $(STAMP)
	$(PYTEST) tests/simulation -m long -n 2 -o faulthandler_timeout=4000
	$(PYTEST) tests --ignore=tests/simulation -m long -o faulthandler_timeout=4000
	$(PYTEST) tests/unit -m "not long" -n 2
	$(PYTEST) $(SERVED)
	$(PYTEST) tests/unit/gateway tests/unit/gateway_groups -m "not long" -n 2 --mapping multilevel
	$(PYTEST) tests/unit/gateway tests/unit/gateway_groups -m "not long" -n 2 --mapping broker
	$(PYTEST) tests/unit/gateway tests/unit/gateway_groups -m "not long" -n 2 --mapping virtual

## make test-spark-4.2  the Spark tests on PySpark 4.2, in an environment of their own
test-spark-4.2:
	$(MAKE) VENV=.venv-spark42 .venv-spark42/.installed
	.venv-spark42/bin/python -m pip install --quiet 'pyspark==4.2.0'
	.venv-spark42/bin/python -m pytest tests/spark

## make fuzz         fuzz everything that reads bytes, FUZZ_SECONDS=60 for each target
FUZZ_SECONDS ?= 60
fuzz: $(STAMP)
	$(BIN)/python -m pip install --quiet --group fuzz
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

## make benchmarks   our figures beside the peers', ratios of medians
benchmarks: $(STAMP)
	$(BIN)/python -m benchmarks

## make benchmark-spark  the data source beside the JVM connector, on PySpark 4.2
benchmark-spark:
	$(MAKE) VENV=.venv-spark42 .venv-spark42/.installed
	.venv-spark42/bin/python -m pip install --quiet 'pyspark==4.2.0'
	.venv-spark42/bin/python -m benchmarks.spark

## make docs         the documentation as a site
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --group docs
	$(BIN)/mkdocs build --strict

## make dist         the packages for upload, built, checked, installed and tried
dist: $(STAMP)
	$(BIN)/python -m tests.build_packages dist

clean:
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .coverage htmlcov kclient/records/*.c kclient/records/*.so
