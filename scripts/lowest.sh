#!/usr/bin/env bash
# The fast tests with the lowest versions that the pyproject.toml of each package allows, as requirements-lowest.lock has
# them; `make check` and `make test` are the run with the newest. The environment is its own, in
# build/lowest, and made anew when the lock changes.
# Left out: what needs Spark, a process, a realm's doors or a tool that is not in that lock, and the
# core, which uses nothing of them but msgspec's structs.
# The lowest versions have wheels for Python 3.11 and 3.12 only: with another Python there is
# nothing to try, and a line says so.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/workspace.sh

venv="${LOWEST:-build/lowest}"
lock=requirements-lowest.lock
say() { printf 'lowest: %s\n' "$*"; }

has_wheels() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' >/dev/null 2>&1; }

python=""
for candidate in "${PYTHON:-}" "${VENV:-.venv}/bin/python" python3.11 python3.12 python3; do
  if [ -n "$candidate" ] && command -v "$candidate" >/dev/null && has_wheels "$candidate"; then
    python="$candidate"
    break
  fi
done
if [ -z "$python" ]; then
  say "left out: no Python 3.11 or 3.12 is here, and the lowest versions have no wheels for another"
  exit 0
fi

install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@"; }
is_stamped() { [ "$(cat "$venv/.$1" 2>/dev/null || true)" = "$2" ]; }

stamp="$( ("$python" -c 'import sys; print(sys.version)' && cat "$lock" requirements-build.lock requirements-uv.lock) | cksum)"
if ! is_stamped stamp "$stamp"; then
  say "installing $(grep -c '==' "$lock") packages in their lowest versions"
  rm -rf "$venv"
  mkdir -p "$(dirname "$venv")"
  "$python" -m venv "$venv"
  install_locked "$venv" "$lock" --only-binary :all:
  install --only-binary :all: --require-hashes -r requirements-build.lock
  printf '%s' "$stamp" >"$venv/.stamp"
fi
# Its parts are found by the entry points of the installation.
if ! is_stamped project "$project"; then
  "$venv/bin/python" -m pip uninstall --quiet --disable-pip-version-check --no-input --yes penstock-realm
  install --no-build-isolation --no-deps "${editable[@]}"
  printf '%s' "$project" >"$venv/.project"
fi
say "testing with $("$venv/bin/python" -m pip list --format=freeze --disable-pip-version-check |
  grep -E '^(cryptography|msgspec|numpy|pyarrow|structlog|typer|uvicorn)==' | paste -sd ' ')"

# Schemathesis and others' codecs of MQTT and WebSocket are imported by these, and are not in the lock.
# Neither is pyiceberg, whose lowest version is the newest.
without=(
  packages/client/tests/tables/test_iceberg.py
  packages/client/tests/tables/test_iceberg_rest.py
  packages/client/tests/tables/test_merge_killed.py
  packages/client/tests/test_archiver.py
  packages/client/tests/test_archiver_by_reference.py
  packages/client/tests/test_archiver_killed.py
  packages/core/tests/wire/test_websocket_oracle.py
  packages/mqtt/tests/wire/test_oracles.py
  packages/server/tests/frontends/http/test_openapi.py
)
exec "$venv/bin/python" -m pytest -q -n 2 -p no:cacheprovider --hypothesis-profile=quick \
  -m "not slow and not spark and not process and not door" "${without[@]/#/--ignore=}" \
  packages/{amqp,client,mqtt,server,tools}/tests packages/core/tests/{columns,wire} \
  packages/cluster/tests/storage tests/access tests/contract "$@"
