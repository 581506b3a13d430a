# The commands of the project; `make help` lists them. Everything a command needs is made
# first, once: see tools/setup.sh.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: help setup setup-newest train test test-newest test-cc check check-cc lint \
  format docs soak wheel peers

PINNED := .venv
NEWEST := .venv-newest
DOCS := .venv-docs
BIN := $(PINNED)/bin
# Whole files: their tests share what takes long to make.
PYTEST_WORKERS ?= --numprocesses 2 --dist loadfile
CC_FILES = $(shell find tfctr_ops tests -name '*.cc' -o -name '*.h')

export CXX
export KERAS_BACKEND := tensorflow
export TF_CPP_MIN_LOG_LEVEL ?= 3

help:  ## List the commands.
	@sed -nE 's/^([a-z-]+):.*  ## (.*)/  make \1|\2/p' Makefile | column -t -s '|'

setup:  ## Make .venv and the native library ready: the pinned stack.
	@bash tools/setup.sh $(PINNED) pinned

setup-newest:  ## The same on the newest TensorFlow, in .venv-newest.
	@bash tools/setup.sh $(NEWEST) newest

train: setup  ## Train DeepFM on a synthetic click log; DATA=path/to/ml-1m: on MovieLens.
	$(BIN)/python -m tfctr train $(if $(DATA),\
	  examples/movielens.toml --set data.path='$(DATA)',examples/synthetic.toml)

test: setup  ## Run all tests.
	@$(MAKE) --no-print-directory test-cc
	@bash tools/install_sshd.sh
	@bash tools/install_redis.sh
	@bash tools/install_hwloc.sh
	@bash tools/install_chromium.sh
	$(BIN)/python -m pytest $(PYTEST_WORKERS)

test-newest: setup-newest  ## Run the tests on the newest TensorFlow.
	$(NEWEST)/bin/python -m pytest $(PYTEST_WORKERS)

soak: setup  ## Run the long random tests.
	$(BIN)/python -m pytest -m soak $(PYTEST_WORKERS)

check: lint docs  ## What to run before a commit: lint, docs, sanitizers, tests.
	@$(MAKE) --no-print-directory check-cc
	@bash tools/install_sshd.sh
	@bash tools/install_redis.sh
	@bash tools/install_hwloc.sh
	@bash tools/install_chromium.sh
	$(BIN)/python -m pytest $(PYTEST_WORKERS)

lint: setup  ## Check format, style and types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(if $(CC_FILES),$(BIN)/clang-format --dry-run -Werror $(CC_FILES))

format: setup  ## Format everything.
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .
	$(if $(CC_FILES),$(BIN)/clang-format -i $(CC_FILES))

docs: $(DOCS)/.made  ## Build the guides, the handbook and the API reference, in build/docs.
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

# An environment of its own: what builds pages stays out of the pins of the others.
$(DOCS)/.made: pyproject.toml | setup
	$(BIN)/python -m venv --clear $(DOCS)
	$(BIN)/python tools/requirements.py --group docs > build/requirements-docs.txt
	$(DOCS)/bin/python -m pip --disable-pip-version-check --quiet install \
	  --requirement build/requirements-docs.txt
	@touch $@

wheel: setup setup-newest  ## Build a wheel for each TensorFlow, in dist/.
	rm -rf dist build/tf*/lib*
	for environment in $(PINNED) $(NEWEST); do \
	  $$environment/bin/python -m pip --disable-pip-version-check --quiet wheel \
	    --no-deps --no-build-isolation --wheel-dir dist . || exit 1; \
	done
	@rm -rf tfctr.egg-info
	@ls -1 dist/*.whl

peers: setup  ## Make the environments of the systems that benchmarks compare with.
	bash tools/make_peers.sh

# The C++ tests of the store: each file is a program, built without TensorFlow.

CC_FLAGS := -std=c++17 -g -pthread -fno-math-errno -ffp-contract=off \
  -Wall -Wextra -Werror -I.
CC_STORE := $(shell find tfctr_ops/cc/store -name '*.cc' 2> /dev/null)
CC_TESTS := $(wildcard tests/tfctr_ops/cc/*_test.cc)

test-cc:  ## Run the C++ tests of the store.
	@$(MAKE) --no-print-directory -j2 run-plain

check-cc:  ## Run them under AddressSanitizer, UBSan and ThreadSanitizer.
	@$(MAKE) --no-print-directory -j2 run-asan run-tsan

# Mode, flags, command that runs a program.
define CC_MODE
build/cc/$(1)/%.o: %.cc Makefile
	@echo Compiling $$< '($(1))' && mkdir -p $$(@D)
	@$$(CXX) $$(CC_FLAGS) $(2) -MMD -MP -c $$< -o $$@

build/cc/$(1)/%_test: build/cc/$(1)/tests/tfctr_ops/cc/%_test.o \
    $$(CC_STORE:%.cc=build/cc/$(1)/%.o)
	@$$(CXX) $$(CC_FLAGS) $(2) $$^ -o $$@

.PHONY: run-$(1)
run-$(1): $$(CC_TESTS:tests/tfctr_ops/cc/%.cc=build/cc/$(1)/%)
	@for program in $$^; do echo $$$$program; $(3) $$$$program || exit 1; done

-include $$(shell find build/cc/$(1) -name '*.d' 2> /dev/null)
endef

# ThreadSanitizer needs a fixed memory layout, which some kernels randomise too widely.
COMMA := ,
FIXED_LAYOUT := $(shell setarch --addr-no-randomize true 2> /dev/null \
  && echo setarch --addr-no-randomize)

$(eval $(call CC_MODE,plain,-O2,))
$(eval $(call CC_MODE,asan,-O1 -fsanitize=address$(COMMA)undefined \
  -fno-sanitize-recover=all -fno-omit-frame-pointer,))
$(eval $(call CC_MODE,tsan,-O1 -fsanitize=thread,$(FIXED_LAYOUT)))
