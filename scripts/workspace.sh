# The packages of the workspace and how locked packages are installed, for the scripts that make
# environments; sourced in the root of a checkout.

# Their folders, from the workspace table of pyproject.toml.
members="$(sed -n '/^members = \[/,/^\]/s/^  "\(.*\)",$/\1/p' pyproject.toml)"
# Changes with what any of them requires or registers.
project="$(for member in $members; do cat "$member/pyproject.toml"; done | cksum)"
# Arguments of `pip install`.
editable=()
for member in $members; do editable+=(--editable "$member"); done

# Install the packages of a lock file: install_locked ENVIRONMENT LOCK OPTION... uv downloads and
# unpacks several packages at the same time. It ignores pip's settings, so pip installs if it has an
# index or a proxy of its own, and if uv fails.
install_locked() {
  local bin="$1/bin" lock="$2"
  shift 2
  local pip=("$bin/python" -m pip install --quiet --disable-pip-version-check --no-input --require-hashes)
  if ! "$bin/python" -m pip config list | grep -qE 'index|proxy' &&
    "${pip[@]}" -r requirements-uv.lock &&
    "$bin/uv" pip install --quiet --no-config --python "$bin/python" --compile-bytecode \
      --require-hashes "$@" -r "$lock"; then
    return
  fi
  "${pip[@]}" "$@" -r "$lock"
}
