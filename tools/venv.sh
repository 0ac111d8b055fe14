#!/usr/bin/env bash
# Makes the virtual environment that every make target works in: tools/venv.sh DIR
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: tools/venv.sh DIR}

needs='OneFlow 0.9.0 has wheels for CPython 3.7 to 3.10 on Linux x86_64 only; autoglobal needs 3.9 or 3.10 of these.'
howto='Get one with your package manager, "uv python install 3.10" or "pyenv install 3.10", or name one: make PYTHON=/path/to/python3.10 ...'

fail() { printf '%s\n' "$@" >&2; exit 1; }

[ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || fail "This is $(uname -s) $(uname -m). $needs"

# A candidate counts only if it *runs*: the shim of a version manager can be on
# PATH and still fail, and a distribution's Python can come without venv.
usable() {
    command -v "$1" >/dev/null 2>&1 || return 1
    "$1" -c 'import sys, venv, ensurepip
assert sys.implementation.name == "cpython" and (3, 9) <= sys.version_info[:2] <= (3, 10)' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        usable "$PYTHON" && { echo "$PYTHON"; return 0; }
        fail "PYTHON=$PYTHON is no CPython 3.9 or 3.10 with venv and ensurepip that runs. $needs" "$howto"
    fi
    local candidate root
    for candidate in python3.10 python3.9; do
        usable "$candidate" && { echo "$candidate"; return 0; }
    done
    root=${PYENV_ROOT:-$(pyenv root 2>/dev/null || echo "$HOME/.pyenv")}
    for candidate in "$root"/versions/3.10*/bin/python3.10 "$root"/versions/3.9*/bin/python3.9 \
        "$(uv python find --no-python-downloads 3.10 2>/dev/null || true)" \
        "$(uv python find --no-python-downloads 3.9 2>/dev/null || true)"; do
        [ -n "$candidate" ] && usable "$candidate" && { echo "$candidate"; return 0; }
    done
    fail "No usable Python found. $needs" "$howto"
}

python=$(find_python)
echo "Setting up $venv with $("$python" --version) (once; OneFlow and its CUDA libraries are about 4 GB on disk)"
rm -rf "$venv"
"$python" -m venv "$venv"
export PIP_DISABLE_PIP_VERSION_CHECK=1
"$venv/bin/python" -m pip install --quiet --upgrade pip
# One name for what isolated builds may use in new pips, the other in older ones.
export PIP_BUILD_CONSTRAINT=tools/build-constraints.txt PIP_CONSTRAINT=tools/build-constraints.txt
"$venv/bin/python" -m pip install --quiet --editable '.[oneflow,test,lint,bench]'
touch "$venv/.ready"
