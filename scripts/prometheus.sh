#!/bin/sh
# See that Prometheus and promtool are there, for the tests of metrics and alerts; installed where we may, else those tests are skipped.
#   usage: scripts/prometheus.sh
set -eu

if command -v promtool >/dev/null && command -v prometheus >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing Prometheus, for the tests of metrics ..."
    apt-get update -qq || true
    # Only the programs are wanted: in this runlevel Debian starts no service it installs.
    if RUNLEVEL=1 apt-get install -y -qq --no-install-recommends prometheus >/dev/null; then exit 0; fi
fi
echo "no Prometheus here: tests of metrics that need promtool are skipped" >&2
