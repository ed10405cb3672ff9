"""Download, resize and pack one shard of URLs a job; ask again for failures that may have passed.

Config: download, metadata.columns, example_server. Inputs: metadata/{name}.parquet and receipt.
Outputs: raw/{shard}.tar, raw/{shard}.parquet, raw/{shard}_stats.json (img2dataset's triple);
retry_failed: retries/{shard}.json, and the triple of each shard that gained pictures;
download_environment: envs/{environment}.txt, the `pip freeze` of the environment beside it.
"""

from shardwright.download.environment import environment_names
from shardwright.download.settings import content_json, fetching_json

# Not in params: fewer threads or longer deadlines must not download finished shards again.
FETCHING = fetching_json(BUILD["download"])
BESIDE_SERVER = f"{PY} {SCRIPTS}/with_example_server.py --" if BUILD["example_server"] else ""
ENVIRONMENTS = environment_names(BUILD["download"]["environment"], BUILD["download"]["environment_python"])


rule raw:
    input:
        expand("<root>/raw/{shard}_stats.json", shard=SHARDS),


rule download_environment:
    output:
        freeze="<root>/envs/{environment}.txt",
    log:
        "<root>/logs/download_environment/{environment}.log",
    benchmark:
        "<root>/benchmarks/download_environment/{environment}.tsv"
    resources:
        mem_mb=2000,
        runtime=60,
    params:
        code=digest("build_environment"),
        requirements=BUILD["download"]["environment"],
        python=BUILD["download"]["environment_python"],
    shell:
        """
        {PY} {SCRIPTS}/build_environment.py \
            --requirements {params.requirements:q} \
            --python {params.python:q} \
            --freeze {output.freeze:q} \
            >{log:q} 2>&1
        """


rule download_shard:
    input:
        receipt=lambda wc: f"<root>/metadata/{SHARDS[wc.shard].name}.json",
        metadata=ancient(lambda wc: f"<root>/metadata/{SHARDS[wc.shard].name}.parquet"),
        environment=ancient(expand("<root>/envs/{name}.txt", name=ENVIRONMENTS)),
    output:
        tar="<root>/raw/{shard}.tar",
        parquet="<root>/raw/{shard}.parquet",
        stats="<root>/raw/{shard}_stats.json",
    log:
        "<root>/logs/download_shard/{shard}.log",
    benchmark:
        "<root>/benchmarks/download_shard/{shard}.tsv"
    retries: 2
    resources:
        mem_mb=3000,
        runtime=300,
    params:
        # Only what decides samples and pixels: an edit to the live line must not download again.
        code=digest("shardwright/download/worker"),
        rows_code=digest("shardwright/download/rows"),
        columns=BUILD["metadata"]["columns"],
        content=content_json(BUILD["download"]),
        rows_per_shard=BUILD["download"]["rows_per_shard"],
        start=lambda wc: SHARDS[wc.shard].start,
        stop=lambda wc: SHARDS[wc.shard].stop,
    shell:
        """
        {BESIDE_SERVER} {PY} {SCRIPTS}/download_shard.py \
            --metadata {input.metadata:q} \
            --columns {params.columns:q} \
            --shard {wildcards.shard:q} \
            --start {params.start:q} \
            --stop {params.stop:q} \
            --rows-per-shard {params.rows_per_shard:q} \
            --content {params.content:q} \
            --fetching {FETCHING:q} \
            --environment {input.environment:q} \
            --tar {output.tar:q} \
            --parquet {output.parquet:q} \
            --stats {output.stats:q} \
            2>&1 | tee {log:q}
        """


rule retry_failed:
    input:
        expand("<root>/retries/{shard}.json", shard=SHARDS),


rule retry_shard:
    # Replaces its own input, and only when pictures were gained; wherever it is killed, the old triple
    # or the new one is there for the next program. The audit then reruns for exactly those shards.
    # Asked once, a shard is done: `snakemake retry_failed -R retry_shard` asks again.
    input:
        receipt=lambda wc: f"<root>/metadata/{SHARDS[wc.shard].name}.json",
        metadata=ancient(lambda wc: f"<root>/metadata/{SHARDS[wc.shard].name}.parquet"),
        environment=ancient(expand("<root>/envs/{name}.txt", name=ENVIRONMENTS)),
        tar="<root>/raw/{shard}.tar",
        parquet="<root>/raw/{shard}.parquet",
        stats="<root>/raw/{shard}_stats.json",
    output:
        report="<root>/retries/{shard}.json",
    log:
        "<root>/logs/retry_shard/{shard}.log",
    benchmark:
        "<root>/benchmarks/retry_shard/{shard}.tsv"
    resources:
        mem_mb=3000,
        runtime=300,
    params:
        code=digest("retry_shard"),
        columns=BUILD["metadata"]["columns"],
        content=content_json(BUILD["download"]),
        rows_per_shard=BUILD["download"]["rows_per_shard"],
        start=lambda wc: SHARDS[wc.shard].start,
        stop=lambda wc: SHARDS[wc.shard].stop,
    shell:
        """
        {BESIDE_SERVER} {PY} {SCRIPTS}/retry_shard.py \
            --metadata {input.metadata:q} \
            --columns {params.columns:q} \
            --shard {wildcards.shard:q} \
            --start {params.start:q} \
            --stop {params.stop:q} \
            --rows-per-shard {params.rows_per_shard:q} \
            --content {params.content:q} \
            --fetching {FETCHING:q} \
            --environment {input.environment:q} \
            --tar {input.tar:q} \
            --parquet {input.parquet:q} \
            --stats {input.stats:q} \
            --report {output.report:q} \
            2>&1 | tee {log:q}
        """
