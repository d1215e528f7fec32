#!/usr/bin/env bash
# Builds what is released into dist/: a wheel and a source distribution of each package, the list of
# components of the image, checksums and the notes of the version; then installs penstock-realm, and
# penstock-client alone, from the wheels into environments of their own, away from the checkout, and
# uses them. The build is that of requirements-build.lock and reaches no network; the check installs
# the run-time dependencies in the versions of requirements.lock. TRY= names the Python of the check,
# such as a newer one.
set -euo pipefail
cd "$(dirname "$0")/.."

venv="$(cd "${VENV:-.venv}" && pwd)"
dist="$PWD/dist"
say() { printf 'wheel: %s\n' "$*"; }
die() {
  printf 'wheel: %s\n' "$*" >&2
  exit 1
}

version="$("$venv/bin/python" -c 'import penstock; print(penstock.__version__)')"
say "building the packages of $version"
rm -rf "$dist"
# Two builds of one commit are the same bytes.
SOURCE_DATE_EPOCH="$(git log -1 --format=%ct 2>/dev/null || echo 315532800)"
export SOURCE_DATE_EPOCH
for package in packages/*/; do
  (cd "$package" && "$venv/bin/python" -m hatchling build -d "$dist" -t sdist -t wheel >/dev/null)
done
"$venv/bin/python" scripts/changelog.py --notes "$version" >"$dist/notes-$version.md"
"$venv/bin/python" -m scripts.sbom "$dist/penstock-image-$version.cdx.json"
wheel="$dist/penstock_realm-$version-py3-none-any.whl"
[ -f "$wheel" ] || die "there is no $wheel: $(ls "$dist")"

try="${TRY:-$venv/bin/python}"
say "trying the wheels with $("$try" --version)"
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
grep -oE '^[A-Za-z0-9._-]+==[^ ;]+' requirements.lock >"$place/versions.txt"
install() {
  "$try" -m venv "$place/$1"
  "$place/$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
    --constraint "$place/versions.txt" --find-links "$dist" "$2==$version"
}
install venv penstock-realm
told="$(cd "$place" && venv/bin/penstock --version)"
[ "$told" = "penstock $version" ] || die "the wheel says '$told', not 'penstock $version'"
(cd "$place" && venv/bin/python - <<'PYTHON'
import penstock

with penstock.Realm("data") as realm, realm.connect() as session:
    session.channels.create("orders").publish(b"first")
    assert session.channels.get("orders").info().events == 1
PYTHON
) || die "a realm of the wheels does not work"

install client penstock-client
(cd "$place" && client/bin/python - <<'PYTHON'
from importlib.util import find_spec

import penstock

assert find_spec("penstock_server") is None
try:
    penstock.connect("penstock://127.0.0.1:1", reconnect_timeout=0)
except penstock.CannotConnect:
    pass
try:
    penstock.Realm
except ModuleNotFoundError as error:
    assert "pip install penstock-realm" in str(error)
PYTHON
) || die "the client alone does not work"

(cd "$dist" && sha256sum -- * >SHA256SUMS)
say "dist/ has $(cd "$dist" && ls | tr '\n' ' ')"
