#!/bin/sh
# See that Spark has a Java it can run on; install one where we may, else say what is missing.
#   usage: scripts/java.sh PYTHON
set -eu
python=$1

"$python" -m lakewarden.spark.java >/dev/null 2>&1 && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing Java 17 ..."
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless >/dev/null ||
        apt-get install -y -qq --no-install-recommends openjdk-21-jre-headless >/dev/null
fi

# Says in one line what is missing if there still is none.
"$python" -m lakewarden.spark.java >/dev/null
