#!/usr/bin/env bash
# Makes .venv from nothing but Python 3.11 or newer: every package pinned and hashed by
# requirements.lock, then the packages of the workspace as editable installs; then, where there is a C
# compiler, the AMQP engine of requirements-amqp.lock.
# Costs nothing when the stamps say that all of it is in place; a changed lock or another
# interpreter makes the environment anew, a changed pyproject.toml only reinstalls the workspace.
# PYTHON= names the interpreter, VENV= the directory.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/workspace.sh

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

# A realm without AMQP serves everything else, so nothing that goes wrong here ends the set-up.
install_amqp() {
  say "building python-qpid-proton, the AMQP engine"
  if "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
    --no-build-isolation --require-hashes -r requirements-amqp.lock >>"$log" 2>&1; then
    rm -f "$log"
  else
    say "without AMQP: python-qpid-proton cannot be built. It needs a C compiler and Python's headers (apt-get install gcc python3-dev); its output is in $log"
  fi
}

is_stamped() { [ "$(cat "$venv/.$1" 2>/dev/null || true)" = "$2" ]; }

python="$(find_python)"
packages="$( ("$python" -c 'import sys; print(sys.version)' && cat requirements-build.lock requirements-uv.lock requirements.lock) | cksum)"
# What could not be built is tried again with another compiler, not at every `make`.
amqp="$(cksum <requirements-amqp.lock) ${CC:-} $(command -v cc gcc clang || true)"
if is_stamped packages "$packages" && is_stamped project "$project" && is_stamped amqp "$amqp"; then
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
  quietly install_locked "$venv" requirements.lock --no-build-isolation
  printf '%s' "$packages" >"$venv/.packages"
fi
if ! is_stamped project "$project"; then
  say "installing the $(wc -w <<<"$members" | tr -d ' ') packages of the workspace"
  # An environment from before has all of them as one distribution: two owners of one module would
  # not do, nor would two of one command.
  quietly "$venv/bin/python" -m pip uninstall --disable-pip-version-check --no-input --yes \
    penstock penstock-realm
  install --no-deps "${editable[@]}"
  printf '%s' "$project" >"$venv/.project"
fi
if ! is_stamped amqp "$amqp"; then
  install_amqp
  printf '%s' "$amqp" >"$venv/.amqp"
else
  rm -f "$log"
fi
say "done in $SECONDS s"
