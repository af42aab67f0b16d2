#!/usr/bin/env bash
# Resolve the newest versions of everything that pyproject.toml names, in a throw-away environment; torch stays pinned.
set -euo pipefail
out=$1
torch=$(grep '^torch==' "$out")
dir=$(mktemp -d)
trap 'rm -rf "$dir" build' EXIT
python3 -m venv "$dir/venv"
pip() { "$dir/venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }
echo "$torch" >"$dir/pins"
pip install -qq --upgrade pip setuptools
pip install -qq -c "$dir/pins" --group dev '.[torch,plot]'
{
    echo "# Versions that development and CI use; constraints, not requirements. Remade by \`make lock\`."
    pip list --format=freeze --exclude zipplan | sed 's/+.*//'
} >"$dir/new"
mv "$dir/new" "$out"
