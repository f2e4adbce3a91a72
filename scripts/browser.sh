#!/bin/sh
# See that the console's tests have a browser; install Debian's Chromium where we may, else say that they are skipped.
set -eu

command -v chromium >/dev/null 2>&1 && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing Chromium ..."
    apt-get update -qq || true
    apt-get install -y -qq --no-install-recommends chromium >/dev/null || true
fi

command -v chromium >/dev/null 2>&1 || echo "no chromium: the console's browser tests are skipped"
