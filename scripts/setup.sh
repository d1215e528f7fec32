#!/usr/bin/env bash
# Makes .venv from nothing but Python 3.11 or newer: every package pinned and hashed by
# requirements.lock, then Penstock itself as an editable install.
# Costs nothing when the stamps say that all of it is in place; a changed lock or another
# interpreter makes the environment anew, a changed pyproject.toml only reinstalls Penstock.
# PYTHON= names the interpreter, VENV= the directory.
set -euo pipefail
cd "$(dirname "$0")/.."

venv="${VENV:-.venv}"
log="$venv.log"

say() { printf 'setup: %s\n' "$*"; }
die() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    command -v "$PYTHON" >/dev/null || die "PYTHON=$PYTHON is not a program"
    is_recent "$PYTHON" ||
      die "PYTHON=$PYTHON is $("$PYTHON" --version 2>&1 || true), but Penstock needs Python 3.11 or newer"
    echo "$PYTHON"
    return
  fi
  # The environment that is here already wins: a newer python3 on PATH is no reason to rebuild.
  for candidate in "$venv/bin/python" python3 python3.13 python3.12 python3.11 python; do
    if command -v "$candidate" >/dev/null && is_recent "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  die "Penstock needs Python 3.11 or newer, and none is on PATH (python3: $(python3 --version 2>&1 || true)). If there is one elsewhere: make PYTHON=/path/to/python3.11"
}

quietly() {
  "$@" >>"$log" 2>&1 && return
  tail -n 40 "$log" >&2
  die "this failed: $* (all its output is in $log)"
}

# Source distributions are built with the pinned and hashed build packages, not with
# whatever an isolated build would fetch.
install() {
  quietly "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
    --no-build-isolation "$@"
}

is_stamped() { [ "$(cat "$venv/.$1" 2>/dev/null || true)" = "$2" ]; }

python="$(find_python)"
packages="$( ("$python" -c 'import sys; print(sys.version)' && cat requirements-build.lock requirements.lock) | cksum)"
project="$(cksum <pyproject.toml)"
if is_stamped packages "$packages" && is_stamped project "$project"; then
  exit 0
fi

: >"$log"
if ! is_stamped packages "$packages"; then
  # The environment's own interpreter cannot rebuild the environment it lives in.
  [ "$python" != "$venv/bin/python" ] || python="$("$python" -c 'import sys; print(sys._base_executable)')"
  say "creating $venv with $("$python" --version)"
  rm -rf "$venv"
  "$python" -m venv "$venv" >>"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    die "$python cannot make virtual environments (on Debian and Ubuntu: apt-get install python3-venv)"
  }
  say "installing $(grep -c '==' requirements.lock) locked packages; with Spark and a JVM in them the first time takes minutes"
  install --require-hashes -r requirements-build.lock
  install --require-hashes -r requirements.lock
  printf '%s' "$packages" >"$venv/.packages"
fi
say "installing penstock"
install --no-deps --editable .
printf '%s' "$project" >"$venv/.project"
rm -f "$log"
say "done in $SECONDS s"
