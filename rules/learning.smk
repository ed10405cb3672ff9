"""Ask the base and the trained model about held-out pictures: is the trained one right more often?

Config: train.learning_facts, data. Inputs: energon/manifest.json, models/{model}/import.json,
train/{run}/export/. Output: train/{run}/learning_check.json, only asked for by the target `learned`;
beside it learning_check.evidence.json with every answer, which stays when the check fails.
"""


rule learned:
    input:
        f"<root>/train/{TRAIN['run']}/learning_check.json",


rule learning_check:
    input:
        manifest="<root>/energon/manifest.json",
        model=f"<root>/models/{MODEL['name']}/import.json",
        export="<root>/train/{run}/export",
    output:
        report="<root>/train/{run}/learning_check.json",
    log:
        "<root>/logs/learning_check/{run}.log",
    benchmark:
        "<root>/benchmarks/learning_check/{run}.tsv"
    wildcard_constraints:
        run=re.escape(TRAIN["run"]),
    threads: 2
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        code=digest("learning_check"),
        limits=json.dumps(BUILD["data"], sort_keys=True),
        facts=TRAIN["learning_facts"],
    shell:
        """
        {PY} {SCRIPTS}/learning_check.py \
            --manifest {input.manifest:q} \
            --import-report {input.model:q} \
            --merged {input.export:q}/merged \
            --limits {params.limits:q} \
            --facts {params.facts:q} \
            --report {output.report:q} \
            2>&1 | tee {log:q}
        """
