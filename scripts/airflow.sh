#!/usr/bin/env bash
# Makes build/airflow, in which the tests of packages/airflow start Airflow: it requires other
# versions of many packages than requirements.lock has. Costs nothing if the environment is current.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/workspace.sh

python="${VENV:-.venv}/bin/python"
venv=build/airflow
lock=requirements-airflow.lock
packages=(packages/core packages/client packages/airflow)
say() { printf 'airflow: %s\n' "$*"; }
install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@"; }

stamp="$( ("$python" -c 'import sys; print(sys.version)' &&
  cat "$lock" requirements-build.lock requirements-uv.lock "${packages[@]/%//pyproject.toml}") | cksum)"
if [ "$(cat "$venv/.stamp" 2>/dev/null || true)" = "$stamp" ]; then
  exit 0
fi
say "installing Airflow, $(grep -c '==' "$lock") packages, in $venv"
rm -rf "$venv"
mkdir -p "$(dirname "$venv")"
"$python" -m venv "$venv"
# Most modules are never imported by the tests, so none is compiled here.
install_locked "$venv" "$lock" --only-binary :all: --no-compile
install --only-binary :all: --require-hashes -r requirements-build.lock
install --no-build-isolation --no-deps "${packages[@]/#/--editable=}"
printf '%s' "$stamp" >"$venv/.stamp"
say "done in $SECONDS s"
