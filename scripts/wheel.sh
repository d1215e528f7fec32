#!/usr/bin/env bash
# Builds what is released into dist/: wheel, source distribution, checksums and the notes of the
# version; then installs the wheel into an environment of its own, away from the checkout, and
# asks it for its version. The build is that of requirements-build.lock and reaches no network;
# the check installs the run-time dependencies in the versions of requirements.lock.
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
wheel="$dist/penstock_realm-$version-py3-none-any.whl"
[ -f "$wheel" ] || die "there is no $wheel: $(ls "$dist")"

say "trying the wheel in an environment of its own"
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
grep -oE '^[A-Za-z0-9._-]+==[^ ;]+' requirements.lock >"$place/versions.txt"
"$venv/bin/python" -m venv "$place/venv"
"$place/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
  --constraint "$place/versions.txt" --find-links "$dist" "penstock-realm==$version"
told="$(cd "$place" && venv/bin/penstock --version)"
[ "$told" = "penstock $version" ] || die "the wheel says '$told', not 'penstock $version'"
(cd "$place" && venv/bin/python - <<'PYTHON'
import penstock

with penstock.Realm("data") as realm, realm.connect() as session:
    session.channels.create("orders").publish(b"first")
    assert session.channels.get("orders").info().events == 1
PYTHON
) || die "a realm of the wheel does not work"

(cd "$dist" && sha256sum -- * >SHA256SUMS)
say "dist/ has $(cd "$dist" && ls | tr '\n' ' ')"
