#!/usr/bin/env bash
# A Chromium for the tests of the web console: the one that is here, or Debian's where one may
# install it. Never fails: without a browser those tests are left out, with a line that says so.
set -uo pipefail

say() { printf 'browser: %s\n' "$*"; }

for name in chromium chromium-browser google-chrome google-chrome-stable; do
  if command -v "$name" >/dev/null; then
    say "$name"
    exit 0
  fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  say "installing chromium"
  export DEBIAN_FRONTEND=noninteractive
  timeout 120 apt-get update -qq >/dev/null 2>&1
  if timeout 300 apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1; then
    say "chromium"
    exit 0
  fi
fi
say "none, and none could be installed: the tests of the web console are left out"
exit 0
