"""Read real batches of both splits as training will, and compare them with what lies in the tars.

Config: data, train.micro_batch_size, train.packing. Inputs: energon/manifest.json, models/{model}/import.json.
Output: loader_check.json.
"""

import json


rule check_loader:
    input:
        manifest="<root>/energon/manifest.json",
        model=f"<root>/models/{MODEL['name']}/import.json",
    output:
        report="<root>/loader_check.json",
    log:
        "<root>/logs/check_loader/check_loader.log",
    benchmark:
        "<root>/benchmarks/check_loader/check_loader.tsv"
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        code=digest("check_loader"),
        limits=json.dumps(BUILD["data"], sort_keys=True),
        micro_batch_size=BUILD["train"]["micro_batch_size"],
        packing=BUILD["train"]["packing"],
    shell:
        """
        {PY} {SCRIPTS}/check_loader.py \
            --manifest {input.manifest:q} \
            --import-report {input.model:q} \
            --limits {params.limits:q} \
            --micro-batch-size {params.micro_batch_size:q} \
            --packing {params.packing:q} \
            --report {output.report:q} \
            2>&1 | tee {log:q}
        """
