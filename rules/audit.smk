"""Audit each raw shard, sum the audits, and hold the sum against its gates.

Config: audit, metadata.columns, samples.total. Inputs: raw/{shard}.tar, .parquet, _stats.json.
Outputs: audit/{shard}.json, audit/{shard}.samples.parquet, audit/totals.json, audit/failures.tsv,
audit/outcomes.svg, audit/shapes.svg, audit/summary.json. The summary exists only when every gate
passed; the evidence belongs to the jobs before it, so it stays on disk when a gate fails.
"""


rule audit:
    input:
        "<root>/audit/summary.json",


rule audit_shard:
    input:
        tar="<root>/raw/{shard}.tar",
        parquet="<root>/raw/{shard}.parquet",
        stats="<root>/raw/{shard}_stats.json",
    output:
        samples="<root>/audit/{shard}.samples.parquet",
        report="<root>/audit/{shard}.json",
    log:
        "<root>/logs/audit_shard/{shard}.log",
    benchmark:
        "<root>/benchmarks/audit_shard/{shard}.tsv"
    resources:
        mem_mb=1000,
        runtime=60,
    params:
        code=digest("audit_shard"),
        rows=lambda wc: SHARDS[wc.shard].stop - SHARDS[wc.shard].start,
        columns=BUILD["metadata"]["columns"],
    shell:
        """
        {PY} {SCRIPTS}/audit_shard.py \
            --shard {wildcards.shard:q} \
            --tar {input.tar:q} \
            --parquet {input.parquet:q} \
            --stats {input.stats:q} \
            --rows {params.rows:q} \
            --columns {params.columns:q} \
            --threads {threads:q} \
            --samples {output.samples:q} \
            --report {output.report:q} \
            >{log:q} 2>&1
        """


rule audit_totals:
    input:
        reports=expand("<root>/audit/{shard}.json", shard=SHARDS),
    output:
        failures="<root>/audit/failures.tsv",
        totals="<root>/audit/totals.json",
    log:
        "<root>/logs/audit_totals/audit_totals.log",
    benchmark:
        "<root>/benchmarks/audit_totals/audit_totals.tsv"
    localrule: True
    resources:
        mem_mb=500,
        runtime=30,
    params:
        code=digest("audit_totals"),
        num_shards=len(SHARDS),
    shell:
        """
        {PY} {SCRIPTS}/audit_totals.py \
            --folder "$(dirname {input.reports[0]:q})" \
            --num-shards {params.num_shards:q} \
            --failures {output.failures:q} \
            --totals {output.totals:q} \
            >{log:q} 2>&1
        """


rule plot_audit:
    input:
        totals="<root>/audit/totals.json",
    output:
        outcomes="<root>/audit/outcomes.svg",
        shapes="<root>/audit/shapes.svg",
    log:
        "<root>/logs/plot_audit/plot_audit.log",
    benchmark:
        "<root>/benchmarks/plot_audit/plot_audit.tsv"
    localrule: True
    resources:
        mem_mb=500,
        runtime=10,
    params:
        code=digest("plot_audit"),
    shell:
        """
        {PY} {SCRIPTS}/plot_audit.py \
            --totals {input.totals:q} \
            --outcomes {output.outcomes:q} \
            --shapes {output.shapes:q} \
            >{log:q} 2>&1
        """


rule audit_summary:
    input:
        totals="<root>/audit/totals.json",
        evidence=["<root>/audit/failures.tsv", "<root>/audit/outcomes.svg", "<root>/audit/shapes.svg"],
    output:
        summary="<root>/audit/summary.json",
    log:
        "<root>/logs/audit_summary/audit_summary.log",
    benchmark:
        "<root>/benchmarks/audit_summary/audit_summary.tsv"
    localrule: True
    resources:
        mem_mb=500,
        runtime=10,
    params:
        code=digest("audit_summary"),
        rows=sum(pin.rows for pin in PINS.values()),
        total=BUILD["samples"]["total"],
        usual_percent=BUILD["audit"]["usual_percent"],
        dominant_share=BUILD["audit"]["dominant_share"],
    shell:
        """
        {PY} {SCRIPTS}/audit_summary.py \
            --totals {input.totals:q} \
            --rows {params.rows:q} \
            --total {params.total:q} \
            --usual-percent={params.usual_percent:q} \
            --dominant-share {params.dominant_share:q} \
            --summary {output.summary:q} \
            2>&1 | tee {log:q}
        """
