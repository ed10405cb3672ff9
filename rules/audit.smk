"""Audit each raw shard, then the whole set against its gates.

Config: samples.total, download.min_success_rate. Inputs: raw/{shard}.tar, .parquet, _stats.json.
Outputs: audit/{shard}.json, audit/{shard}.samples.parquet, audit/summary.json, audit/failures.tsv.
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
    params:
        code=digest("audit_shard"),
        rows=lambda wc: SHARDS[wc.shard].stop - SHARDS[wc.shard].start,
    shell:
        """
        {PY} {SCRIPTS}/audit_shard.py \
            --tar {input.tar:q} \
            --parquet {input.parquet:q} \
            --stats {input.stats:q} \
            --rows {params.rows:q} \
            --samples {output.samples:q} \
            --report {output.report:q} \
            > {log:q} 2>&1
        """


rule audit_summary:
    input:
        reports=expand("<root>/audit/{shard}.json", shard=SHARDS),
    output:
        failures="<root>/audit/failures.tsv",
        summary="<root>/audit/summary.json",
    log:
        "<root>/logs/audit_summary/audit_summary.log",
    benchmark:
        "<root>/benchmarks/audit_summary/audit_summary.tsv"
    params:
        code=digest("audit_summary"),
        rows=sum(pin.rows for pin in PINS.values()),
        total=BUILD["samples"]["total"],
        num_shards=len(SHARDS),
        folder=lambda wc, input: str(Path(input.reports[0]).parent),
    shell:
        """
        {PY} {SCRIPTS}/audit_summary.py \
            --folder {params.folder:q} \
            --num-shards {params.num_shards:q} \
            --rows {params.rows:q} \
            --total {params.total:q} \
            --failures {output.failures:q} \
            --summary {output.summary:q} \
            2>&1 | tee {log:q}
        """
