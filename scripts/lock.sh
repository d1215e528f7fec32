#!/usr/bin/env bash
# Regenerates the hashed lock files from the pyproject.toml of the workspace and of its packages.
# Needs Python 3.11 and `uv` on PATH, or named by UV=. Pass --upgrade to take newer versions.
set -euo pipefail
cd "$(dirname "$0")/.."

uv="${UV:-uv}"
command -v "$uv" >/dev/null || {
  echo "lock: uv is not on PATH. Install it (pip install uv) or name it: UV=/path/to/uv make lock" >&2
  exit 1
}

# A package directory or index of this machine must not find its way into the lock files.
unset PIP_FIND_LINKS UV_FIND_LINKS PIP_INDEX_URL PIP_EXTRA_INDEX_URL UV_INDEX UV_INDEX_URL UV_EXTRA_INDEX_URL
export UV_CUSTOM_COMPILE_COMMAND="make lock"

lock() {
  local output="$1"
  shift
  "$uv" pip compile --quiet --no-config --universal --python-version 3.11 \
    --fork-strategy fewest --generate-hashes --no-emit-index-url --no-emit-find-links \
    --output-file "$output" "$@" >/dev/null
  echo "lock: $output has $(grep -c '==' "$output") packages"
}

# The AMQP engine has to be compiled, so it has a file of its own: a machine without a compiler
# can install all of the others. What it needs itself has the versions of the large file.
lock requirements-build.lock --group build "$@"
lock requirements-uv.lock --group install --no-annotate "$@"
required() { "${VENV:-.venv}/bin/python" -m scripts.packages "$@"; }
required all group:dev group:bench group:docs | grep -v '^python-qpid-proton' |
  lock requirements.lock --no-annotate - "$@"
required amqp | lock requirements-amqp.lock --constraints requirements.lock --no-annotate - "$@"
# What packaging/Dockerfile installs beside them: the base and the extras of a server.
required base cluster ldap otel protobuf tokens |
  lock requirements-image.lock --constraints requirements.lock --no-annotate - "$@"

# What scripts/airflow.sh installs.
required penstock-airflow |
  lock requirements-airflow.lock --constraints requirements-build.lock --no-annotate - "$@"

# What `make lowest` installs: the lowest versions that each pyproject.toml allows of what users install
# and of what runs the tests, the rest as in the large file. Of the extra `spark` only deltalake is
# in it, and of `demo` pandas: the range of PySpark has one version, which the large file has.
# Built anew each time: a version that is kept would not be the lowest.
rm -f requirements-lowest.lock
direct="$(mktemp)" && rest="$(mktemp)" && trap 'rm -f "$direct" "$rest"' EXIT
required base cluster ldap protobuf tokens >"$direct"
required spark | grep '^deltalake' >>"$direct"
required demo | grep '^pandas' >>"$direct"
required group:dev | grep -E '^(duckdb|hypothesis|pytest|pytest-xdist)[<>=]' >>"$direct"
# Google's own types are in a version of the large file that wants a newer protobuf.
names="$(grep -oE '^[a-z0-9.-]+' "$direct" | paste -sd '|')|googleapis-common-protos"
grep -E '^[a-z0-9._-]+==' requirements.lock | grep -vE "^($names)==" | sed 's/ *\\$//' >"$rest"
lock requirements-lowest.lock --resolution lowest-direct --constraints "$rest" --no-annotate - <"$direct"
