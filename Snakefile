"""Shardwright: from pinned parquet checksums to a fine-tuned vision-language checkpoint.

Config: config/config.yaml (the example build) unless the given config names its own `build`.
Named targets: metadata, raw, audit, dataset, model, checkpoint, learned, report; `all` is the whole build.
"""

import sys
from pathlib import Path

from snakemake.utils import min_version

min_version("9.27")

sys.path.insert(0, str(Path(workflow.basedir) / "scripts"))

if "build" not in config:

    configfile: Path(workflow.basedir) / "config/config.yaml"


include: "rules/common.smk"
include: "rules/metadata.smk"
include: "rules/download.smk"
include: "rules/audit.smk"
include: "rules/dataset.smk"
include: "rules/index.smk"
include: "rules/fetch_model.smk"
include: "rules/model.smk"
include: "rules/loader.smk"
include: "rules/train.smk"
include: "rules/learning.smk"
include: "rules/report.smk"
include: "rules/placement.smk"


rule all:
    default_target: True
    input:
        rules.dataset.input,
        rules.checkpoint.input,
        rules.report.input,
