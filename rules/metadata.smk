"""Fetch the pinned parquets of URLs and verify them.

Config: metadata. Inputs: the hub or a mirror folder.
Outputs: metadata/{name}.parquet and its receipt metadata/{name}.json (bytes, rows, sha256, columns).
"""

# Not in params: another mirror or more patience must not fetch finished files again.
METADATA_SOURCE = BUILD["metadata"]["source"]
METADATA_SUBFOLDER = BUILD["metadata"]["subfolder"]
METADATA_ATTEMPTS = BUILD["metadata"]["attempts"]


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
        columns=BUILD["metadata"]["columns"],
        rows=lambda wc: PINS[wc.name].rows,
        bytes=lambda wc: PINS[wc.name].bytes,
        sha256=lambda wc: PINS[wc.name].sha256,
    shell:
        """
        {PY} {SCRIPTS}/fetch_metadata.py \
            --source {METADATA_SOURCE:q} \
            --subfolder={METADATA_SUBFOLDER:q} \
            --repo {params.repo:q} \
            --revision {params.revision:q} \
            --columns {params.columns:q} \
            --attempts {METADATA_ATTEMPTS:q} \
            --rows {params.rows:q} \
            --bytes {params.bytes:q} \
            --sha256 {params.sha256:q} \
            --parquet {output.parquet:q} \
            --receipt {output.receipt:q} \
            2>&1 | tee {log:q}
        """
