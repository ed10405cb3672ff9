#!/usr/bin/env bash
# Compile envs/*.in into hash-pinned envs/*.txt for every Python and platform the pins allow.
# torch, torchvision and what their wheels bring (CUDA, triton) stay out: torch.txt pins the pair.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools" && "$tools/bin/pip" install --quiet uv

compile() {
    "$tools/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --custom-compile-command "make pins" -c envs/torch.txt "$@"
}

all=$(compile envs/main.in --no-annotate --no-header 2>/dev/null || true)
skip=(--no-emit-package torch --no-emit-package torchvision)
for name in $(grep -oE '^(nvidia|cuda|triton)[a-z0-9-]*' <<<"$all" | sort -u); do
    skip+=(--no-emit-package "$name")
done
compile "${skip[@]}" envs/main.in -o envs/main.txt
compile "${skip[@]}" -c envs/main.txt envs/dev.in -o envs/dev.txt
compile "${skip[@]}" -c envs/main.txt envs/slurm.in -o envs/slurm.txt
