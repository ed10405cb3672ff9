#!/usr/bin/env bash
# Make .venv-slurm: a small environment that sees all of .venv and adds the Slurm executor plugin.
# It is apart because the plugin slows every start of Snakemake, most where no controller answers.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf .venv-slurm
.venv/bin/python -m venv --without-pip .venv-slurm
packages=$(cd .venv/lib/python3.*/site-packages && pwd -P)
relative=${packages#"$(pwd -P)"/}
# A relative line counts from the folder of the .pth file; addsitedir also reads .venv's own .pth files.
target=.venv-slurm/lib/$(basename "$(dirname "$packages")")/site-packages
echo "import os, site, sys; site.addsitedir(os.path.join(sys.prefix, '..', '$relative'))" >"$target/main_env.pth"
.venv-slurm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r envs/slurm.txt
printf '#!%s\nimport sys\n\nfrom snakemake.cli import main\n\nsys.exit(main())\n' \
    "$(pwd)/.venv-slurm/bin/python" >.venv-slurm/bin/snakemake
chmod 755 .venv-slurm/bin/snakemake
.venv-slurm/bin/python -m compileall -q "$target" || true
touch .venv-slurm/.ready
