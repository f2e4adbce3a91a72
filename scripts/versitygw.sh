#!/bin/sh
# See that the S3 server of the tests is there: built once by Go, into the cache. Without Go the tests use moto instead.
#   usage: scripts/versitygw.sh
set -eu
version=v1.8.0
cache=${LAKEWARDEN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/lakewarden}/bin
server=$cache/versitygw-$version

if [ -x "$server" ]; then exit 0; fi
if ! command -v go >/dev/null; then
    echo "no Go here: the S3 tests run on moto, which checks no credentials" >&2
    exit 0
fi

echo "building versitygw $version, the S3 server of the tests ..."
mkdir -p "$cache"
scratch=$(mktemp -d "$cache/.build-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
if ! GOBIN=$scratch go install "github.com/versity/versitygw/cmd/versitygw@$version" 2>"$scratch/log"; then
    tail -n 5 "$scratch/log" >&2
    echo "versitygw could not be built: the S3 tests run on moto, which checks no credentials" >&2
    exit 0
fi
# By one rename: whoever looks sees the whole program or none.
mv "$scratch/versitygw" "$server"
