"""Fetch the pinned parquets of URLs and verify them.

Config: metadata. Inputs: the hub or a mirror folder.
Outputs: metadata/{name}.parquet and its receipt metadata/{name}.json (bytes, rows, sha256, schema).
"""


rule metadata:
    input:
        expand("<root>/metadata/{name}.json", name=PINS),


rule fetch_metadata:
    output:
        parquet="<root>/metadata/{name}.parquet",
        receipt="<root>/metadata/{name}.json",
    log:
        "<root>/logs/fetch_metadata/{name}.log",
    benchmark:
        "<root>/benchmarks/fetch_metadata/{name}.tsv"
    resources:
        mem_mb=2000,
        runtime=120,
    params:
        code=digest("fetch_metadata"),
        repo=BUILD["metadata"]["repo"],
        revision=BUILD["metadata"]["revision"],
        source=BUILD["metadata"]["source"],
        columns=BUILD["metadata"]["columns"],
        attempts=BUILD["metadata"]["attempts"],
        rows=lambda wc: PINS[wc.name].rows,
        bytes=lambda wc: PINS[wc.name].bytes,
        sha256=lambda wc: PINS[wc.name].sha256,
    shell:
        """
        {PY} {SCRIPTS}/fetch_metadata.py \
            --source {params.source:q} \
            --repo {params.repo:q} \
            --revision {params.revision:q} \
            --columns {params.columns:q} \
            --attempts {params.attempts:q} \
            --rows {params.rows:q} \
            --bytes {params.bytes:q} \
            --sha256 {params.sha256:q} \
            --parquet {output.parquet:q} \
            --receipt {output.receipt:q} \
            > {log:q} 2>&1
        """
