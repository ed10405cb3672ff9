"""Fetch the pinned files of the model repository and verify each one.

Config: model (its file under config/models/: repo, revision, source, files). Inputs: the hub or a
mirror folder. Output: models/{model}/hub.json, the receipt; the files are in models/{model}/hub/,
which Snakemake does not own, so a killed fetch keeps what it has.
"""

from shardwright.file_pins import table_digest

# Not in params: another mirror or more patience must not run a finished fetch again.
MODEL_SOURCE = MODEL["source"]
MODEL_ATTEMPTS = MODEL["attempts"]


rule fetch_model:
    output:
        receipt="<root>/models/{model}/hub.json",
    log:
        "<root>/logs/fetch_model/{model}.log",
    benchmark:
        "<root>/benchmarks/fetch_model/{model}.tsv"
    threads: 4
    resources:
        mem_mb=2000,
        runtime=1440,
    params:
        code=digest("fetch_model"),
        repo=MODEL["repo"],
        revision=MODEL["revision"],
        files=MODEL["files"],
        table=table_digest(MODEL["files"]),
        folder=subpath(output.receipt, strip_suffix=".json"),
    shell:
        """
        {PY} {SCRIPTS}/fetch_model.py \
            --source {MODEL_SOURCE:q} \
            --repo {params.repo:q} \
            --revision {params.revision:q} \
            --files={params.files:q} \
            --attempts {MODEL_ATTEMPTS:q} \
            --threads {threads:q} \
            --folder {params.folder:q} \
            --receipt {output.receipt:q} \
            2>&1 | tee {log:q}
        """
