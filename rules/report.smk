"""The record that proves what went into the checkpoint, and the page to look at.

Config: all of it is recorded. Inputs: energon/manifest.json, models/{model}/import.json,
train/{run}/export.json, completed.json, metrics.jsonl; the audit's summary, table and plots.
Outputs: provenance.json, report/index.html.
"""

import json

# What is built; where it lies and how it was fetched (a mirror, a proxy, time limits) is not.
RECORDED = {
    **{key: BUILD[key] for key in sorted(BUILD) if key != "root"},
    "metadata": {key: BUILD["metadata"][key] for key in ("repo", "revision", "columns")},
    "download": json.loads(content_json(BUILD["download"])),
}


rule report:
    input:
        "<root>/provenance.json",
        "<root>/report/index.html",


rule write_provenance:
    input:
        manifest="<root>/energon/manifest.json",
        model=f"<root>/models/{MODEL['name']}/import.json",
        export=f"<root>/train/{BUILD['train']['run']}/export.json",
    output:
        provenance="<root>/provenance.json",
    log:
        "<root>/logs/write_provenance/write_provenance.log",
    benchmark:
        "<root>/benchmarks/write_provenance/write_provenance.tsv"
    localrule: True
    resources:
        mem_mb=500,
        runtime=30,
    params:
        code=digest("write_provenance"),
        config=json.dumps(RECORDED, sort_keys=True),
        model=MODEL["name"],
        run=BUILD["train"]["run"],
    shell:
        """
        {PY} {SCRIPTS}/write_provenance.py \
            --config {params.config:q} \
            --model {params.model:q} \
            --run {params.run:q} \
            --provenance {output.provenance:q} \
            >{log:q} 2>&1
        """


rule write_report:
    input:
        provenance="<root>/provenance.json",
        audit="<root>/audit/summary.json",
        evidence=["<root>/audit/failures.tsv", "<root>/audit/outcomes.svg", "<root>/audit/shapes.svg"],
        metrics=f"<root>/train/{BUILD['train']['run']}/metrics.jsonl",
        completed=f"<root>/train/{BUILD['train']['run']}/completed.json",
    output:
        page="<root>/report/index.html",
    log:
        "<root>/logs/write_report/write_report.log",
    benchmark:
        "<root>/benchmarks/write_report/write_report.tsv"
    localrule: True
    resources:
        mem_mb=1000,
        runtime=30,
    params:
        code=digest("write_report"),
        run=BUILD["train"]["run"],
    shell:
        """
        {PY} {SCRIPTS}/write_report.py \
            --provenance {input.provenance:q} \
            --run {params.run:q} \
            --page {output.page:q} \
            >{log:q} 2>&1
        """
