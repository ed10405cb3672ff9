#!/usr/bin/env bash
# Compile envs/download-datacomp.in (Python 3.10) into hash-pinned envs/download-datacomp.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools" && "$tools/bin/pip" install --quiet uv
"$tools/bin/uv" pip compile --quiet --python-version 3.10 --generate-hashes --no-emit-package opencv-python \
    --custom-compile-command "bash envs/compile-datacomp.sh" envs/download-datacomp.in -o envs/download-datacomp.txt
