"""Download, resize and pack one shard of URLs a job.

Config: download, metadata.columns, example_server. Inputs: metadata/{name}.parquet and receipt.
Outputs: raw/{shard}.tar, raw/{shard}.parquet, raw/{shard}_stats.json (img2dataset's triple).
"""


rule raw:
    input:
        expand("<root>/raw/{shard}_stats.json", shard=SHARDS),


rule download_shard:
    input:
        receipt=lambda wc: f"<root>/metadata/{SHARDS[wc.shard].name}.json",
        parquet=ancient(lambda wc: f"<root>/metadata/{SHARDS[wc.shard].name}.parquet"),
    output:
        tar="<root>/raw/{shard}.tar",
        parquet="<root>/raw/{shard}.parquet",
        stats="<root>/raw/{shard}_stats.json",
    log:
        "<root>/logs/download_shard/{shard}.log",
    benchmark:
        "<root>/benchmarks/download_shard/{shard}.tsv"
    params:
        code=digest("download_shard"),
        start=lambda wc: SHARDS[wc.shard].start,
        stop=lambda wc: SHARDS[wc.shard].stop,
    shell:
        """
        {PY} {SCRIPTS}/download_shard.py \
            --parquet {input.parquet:q} \
            --shard {wildcards.shard:q} \
            --start {params.start:q} \
            --stop {params.stop:q} \
            --tar {output.tar:q} \
            --rows {output.parquet:q} \
            --stats {output.stats:q} \
            2>&1 | tee {log:q}
        """
