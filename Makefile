# Everything is set up on first use: a Python environment, Java, and the pinned jars.
# Needed beforehand: Python 3.11 or newer and make.

PY := .venv/bin/python
STAMP := .venv/.installed
PYTEST_ARGS ?=
# The tests of `make test`: all that need nothing, and the main behaviour of each subject.
MAIN := main or not (spark or services or crash)
IN_PARALLEL := --numprocesses 2 --dist loadfile
WORDS ?=
CASES ?=
BENCH_ARGS ?=
ARGS ?=

export PYSPARK_PYTHON := $(CURDIR)/$(PY)

.DEFAULT_GOAL := help
.PHONY: help demo test test-rest test-all lint check unit bench crash soak beside chaos histories interop mutants docs java jars services test-jars test-s3 test-prometheus test-browser clean

help:            ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: jars       ## make a messy sample lake, look after it, show before and after
	@$(PY) -m lakewarden.cli demo

test: lint services ## lint, then the main behaviour of every part; under 12 minutes on two cores
	@$(PY) -m pytest -m "($(MAIN)) and not nightly" $(IN_PARALLEL) $(PYTEST_ARGS)

test-rest: services ## every test of test-all that make test leaves out
	@$(PY) -m pytest -m "not ($(MAIN)) and not nightly" $(IN_PARALLEL) $(PYTEST_ARGS)

test-all: test test-rest ## make test, then the rest: every test but those of crash and interop

check: test      ## the same as test

lint: $(STAMP)   ## ruff and mypy --strict
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --quiet --check .
	@.venv/bin/mypy --strict --no-error-summary lakewarden

unit: $(STAMP)   ## the pure tests only: no Spark, no services
	@$(PY) -m pytest -m "not (spark or services or crash)" $(PYTEST_ARGS)

crash: services  ## kill a real process at every journaled step, let others in at every moment, then check the tables
	@$(PY) -m pytest -m "crash or nightly" $(IN_PARALLEL) $(PYTEST_ARGS)

soak: test-jars  ## three minutes of a busy writer beside our jobs, for Iceberg format versions 2 and 3 and for Paimon
	@LAKEWARDEN_SOAK_SECONDS=180 LAKEWARDEN_SOAK_SEEDS=40 $(PY) -m pytest -m "" -s tests/soak $(PYTEST_ARGS)

beside: test-jars ## ten minutes of a writer and queries, with and without the worker beside them; ARGS="--minutes 60"
	@$(PY) -m bench.soak $(ARGS)

chaos: test-jars test-s3 ## two workers whose leader, Spark, database and store are killed in turn; ARGS="--rounds 5"
	@$(PY) -m bench.chaos $(ARGS)

histories: test-jars ## 10,000 random histories of modelled tables and 100 of real ones: no file that is needed is deleted
	@LAKEWARDEN_HISTORIES=10000 LAKEWARDEN_REAL_HISTORIES=100 $(PY) -m pytest -s tests/histories $(PYTEST_ARGS)

interop: test-jars test-s3 ## Lakewarden beside real Flink, Trino, Hive, Nessie and six readers; ARGS="flink trino" for some
	@$(PY) -m tests.interop $(ARGS)

mutants: test-jars ## put known losses back one at a time: the test named for each must turn red; WORDS="lock" for some
	@$(PY) -m tests.mutants $(WORDS)

bench: jars      ## measure against Iceberg's own procedures on the same tables; CASES="sort growth" for some
	@$(PY) -m bench $(CASES) $(BENCH_ARGS)

docs: $(STAMP)   ## write the generated pages anew
	@$(PY) -m lakewarden.cli.docs

clean:           ## remove caches and build output; the environment and the jars stay
	@rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

$(STAMP): pyproject.toml requirements/pinned.txt scripts/venv.sh
	@sh scripts/venv.sh .venv
	@touch $@

java: $(STAMP)
	@sh scripts/java.sh $(PY)

jars: java
	@$(PY) -m lakewarden.spark.jars --quiet base jdbc

# The tests start many short-lived sessions, which repays the archive of classes.
test-jars: java
	@$(PY) -m lakewarden.spark.jars --quiet base jdbc s3 paimon paimon-s3 rest-server
	@$(PY) -m lakewarden.spark.session

# A real S3 server, built once where there is Go.
test-s3:
	@sh scripts/versitygw.sh

test-prometheus:
	@sh scripts/prometheus.sh

# Everything the tests start beside Spark.
services: test-jars test-s3 test-prometheus test-browser

# The console's tests drive the system's own Chromium.
test-browser:
	@sh scripts/browser.sh
