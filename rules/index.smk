"""Index the tars for Energon and describe the set.

Config: samples; metadata.repo, metadata.revision. Inputs: energon/*.tar, index/*, plan/summary.json,
audit/summary.json, metadata/*.json. Outputs: energon/.nv-meta/, index/index.json, energon/manifest.json.
"""

from shardwright.manifest import META_FILES


rule index_dataset:
    input:
        plan=ancient("<root>/plan/summary.json"),
        tars=[f"<root>/energon/{tar.split}-shard-{tar.part}.tar" for tar in TARS],
        tar_indexes=[f"<root>/energon/{tar.split}-shard-{tar.part}.tar.idx" for tar in TARS],
        members=[f"<root>/index/{tar.stem}.parquet" for tar in TARS],
        receipts=[f"<root>/index/{tar.stem}.json" for tar in TARS],
    output:
        meta=expand("<root>/energon/.nv-meta/{name}", name=META_FILES),
        receipt="<root>/index/index.json",
    log:
        "<root>/logs/index_dataset/index_dataset.log",
    benchmark:
        "<root>/benchmarks/index_dataset/index_dataset.tsv"
    threads: 4
    resources:
        mem_mb=4000,
        runtime=240,
    params:
        code=digest("index_dataset"),
        dataset=lambda wc, input: str(Path(input.tars[0]).parent),
    shell:
        """
        {PY} {SCRIPTS}/index_dataset.py \
            --plan {input.plan:q} \
            --dataset {params.dataset:q} \
            --receipt {output.receipt:q} \
            --threads {threads:q} \
            >{log:q} 2>&1 </dev/null
        """


rule write_manifest:
    input:
        metadata=expand("<root>/metadata/{name}.json", name=PINS),
        audit="<root>/audit/summary.json",
        plan="<root>/plan/summary.json",
        index="<root>/index/index.json",
        meta=expand("<root>/energon/.nv-meta/{name}", name=META_FILES),
    output:
        manifest="<root>/energon/manifest.json",
    log:
        "<root>/logs/write_manifest/write_manifest.log",
    benchmark:
        "<root>/benchmarks/write_manifest/write_manifest.tsv"
    localrule: True
    resources:
        mem_mb=1000,
        runtime=60,
    params:
        code=digest("write_manifest"),
        repo=BUILD["metadata"]["repo"],
        revision=BUILD["metadata"]["revision"],
        prompt=BUILD["samples"]["prompt"],
        validation_fraction=BUILD["samples"]["validation_fraction"],
    shell:
        """
        {PY} {SCRIPTS}/write_manifest.py \
            --metadata {input.metadata:q} \
            --audit {input.audit:q} \
            --plan {input.plan:q} \
            --index {input.index:q} \
            --repo {params.repo:q} \
            --revision {params.revision:q} \
            --prompt={params.prompt:q} \
            --validation-fraction {params.validation_fraction:q} \
            --manifest {output.manifest:q} \
            >{log:q} 2>&1
        """
