#!/usr/bin/env bash
# Writes the locks beside it. What the package needs stands in pyproject.toml; the .in files hold what only this
# repository needs. dev.txt is resolved first and binds the others, so that every lock names the same releases.
#
#   requirements/lock.sh [--upgrade | --upgrade-package NAME]
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
    local lock=$1
    shift
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-header --output-file "requirements/$lock" "$@"
}

compile dev.txt "$@" pyproject.toml --extra aws --extra spark --extra expression \
    requirements/build.in requirements/aws.in requirements/dev.in
compile build.txt requirements/build.in --constraints requirements/dev.txt
compile core.txt pyproject.toml --constraints requirements/dev.txt
compile spark.txt pyproject.toml --extra spark --constraints requirements/dev.txt
compile aws.txt pyproject.toml --extra aws --extra spark requirements/aws.in --constraints requirements/dev.txt
compile demo.txt "$@" --no-deps requirements/demo.in
compile moto.txt "$@" requirements/moto.in
compile docs.txt "$@" requirements/docs.in
compile spark35.txt "$@" requirements/spark35.in
compile notebook.txt "$@" --no-deps requirements/notebook.in

# What functions and the Spark job unpack: for the Python of their runtimes and Linux alone.
layer() {
    local name=$1 python=$2
    shift 2
    .venv/bin/uv pip compile --quiet --python-version "$python" --python-platform x86_64-manylinux_2_28 \
        --generate-hashes --no-emit-index-url --no-header --constraints requirements/dev.txt \
        --output-file "requirements/layer-$name.txt" "$@"
}

lean=requirements/layer-lean.in
layer lean 3.13 $lean
layer lance 3.13 $lean requirements/layer-lance.in
layer spark 3.11 $lean requirements/layer-lance.in requirements/layer-spark.in
layer expression 3.13 requirements/layer-expression.in --no-emit-package pyarrow --no-emit-package typing-extensions

# Where packages come from is the installing machine's choice.
if grep -nE '://|--(extra-)?index-url|--find-links' requirements/*.txt; then
    echo "a lock names an address" >&2
    exit 1
fi
