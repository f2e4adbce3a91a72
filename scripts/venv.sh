#!/bin/sh
# Make the Python environment (or reuse it) and install the pinned packages and the project into it.
#   usage: scripts/venv.sh .venv
set -eu
venv=$1

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if usable "$candidate"; then echo "$candidate"; return; fi
    done
    echo "Python 3.11 or newer is needed: install it, or name one with PYTHON=/path/to/python3" >&2
    exit 1
}

# Debian splits ensurepip from Python; without it `python -m venv` makes an environment that has no pip.
need_ensurepip() {
    "$1" -c 'import ensurepip' 2>/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing python3-venv ..."
        apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null
    else
        echo "Python's venv module is incomplete: install python3-venv (apt-get install python3-venv)" >&2
        exit 1
    fi
}

if command -v uv >/dev/null; then
    usable "$venv/bin/python" || uv venv --quiet --clear --python "$(find_python)" "$venv"
    install() { uv pip install --quiet --python "$venv/bin/python" "$@"; }
else
    if ! usable "$venv/bin/python"; then
        python=$(find_python)
        need_ensurepip "$python"
        "$python" -m venv --clear "$venv"
    fi
    install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
fi

echo "installing Python packages into $venv ..."
install -r requirements/pinned.txt
# setuptools is among the pinned packages, so the build needs no environment of its own.
install --no-deps --no-build-isolation -e .
