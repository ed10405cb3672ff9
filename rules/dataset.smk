"""Select the samples and write them as tars; the target `dataset` is both, indexed and described.

Config: samples; metadata.repo, metadata.revision. Inputs: raw/{shard}.tar, audit/{shard}.samples.parquet.
Outputs: plan/{split}-{part}.parquet, plan/summary.json, energon/{split}-shard-{part}.tar and .tar.idx,
index/{split}-{part}.json and .parquet.

`select_samples` is a checkpoint for one reason: when it has run, Snakemake looks again at the jobs that
read its output, so that only the tars whose part of the plan changed are written again. The inputs of
those jobs are known from the start, and a dry run lists them all.
"""

from shardwright.manifest import META_FILES
from shardwright.plan_digest import exclude_digest, part_digest


rule dataset:
    input:
        [f"<root>/energon/{tar.split}-shard-{tar.part}.tar" for tar in TARS],
        [f"<root>/energon/{tar.split}-shard-{tar.part}.tar.idx" for tar in TARS],
        [f"<root>/index/{tar.stem}.json" for tar in TARS],
        [f"<root>/index/{tar.stem}.parquet" for tar in TARS],
        expand("<root>/energon/.nv-meta/{name}", name=META_FILES),
        "<root>/index/index.json",
        "<root>/energon/manifest.json",


checkpoint select_samples:
    input:
        gates="<root>/audit/summary.json",
        totals="<root>/audit/totals.json",
        samples=expand("<root>/audit/{shard}.samples.parquet", shard=SHARDS),
    output:
        plan=[f"<root>/plan/{tar.stem}.parquet" for tar in TARS],
        summary="<root>/plan/summary.json",
    log:
        "<root>/logs/select_samples/select_samples.log",
    benchmark:
        "<root>/benchmarks/select_samples/select_samples.tsv"
    resources:
        mem_mb=4000,
        runtime=240,
    params:
        code=digest("select_samples"),
        total=BUILD["samples"]["total"],
        validation_fraction=BUILD["samples"]["validation_fraction"],
        per_tar=BUILD["samples"]["per_tar"],
        exclude=BUILD["samples"]["exclude"],
        excluded=exclude_digest(BUILD["samples"]["exclude"]),
        num_train=sum(tar.split == "train" for tar in TARS),
        num_val=sum(tar.split == "val" for tar in TARS),
        num_shards=len(SHARDS),
        audit=lambda wc, input: str(Path(input.totals).parent),
    shell:
        """
        {PY} {SCRIPTS}/select_samples.py \
            --audit {params.audit:q} \
            --num-shards {params.num_shards:q} \
            --total {params.total:q} \
            --validation-fraction {params.validation_fraction:q} \
            --per-tar {params.per_tar:q} \
            --exclude={params.exclude:q} \
            --num-train {params.num_train:q} \
            --num-val {params.num_val:q} \
            --summary {output.summary:q} \
            >{log:q} 2>&1
        """


rule convert_tar:
    input:
        plan=ancient("<root>/plan/{split}-{part}.parquet"),
    output:
        tar="<root>/energon/{split}-shard-{part}.tar",
        tar_index="<root>/energon/{split}-shard-{part}.tar.idx",
        members="<root>/index/{split}-{part}.parquet",
        receipt="<root>/index/{split}-{part}.json",
    log:
        "<root>/logs/convert_tar/{split}-{part}.log",
    benchmark:
        "<root>/benchmarks/convert_tar/{split}-{part}.tsv"
    resources:
        mem_mb=1000,
        runtime=60,
    params:
        code=digest("convert_tar"),
        content=lambda wc: part_digest(BUILD["root"], f"{wc.split}-{wc.part}"),
        repo=BUILD["metadata"]["repo"],
        revision=BUILD["metadata"]["revision"],
        prompt=BUILD["samples"]["prompt"],
        raw=lambda wc, input: str(Path(input.plan).parent.parent / "raw"),
    shell:
        """
        {PY} {SCRIPTS}/convert_tar.py \
            --plan {input.plan:q} \
            --raw {params.raw:q} \
            --repo {params.repo:q} \
            --revision {params.revision:q} \
            --prompt={params.prompt:q} \
            --tar {output.tar:q} \
            --members {output.members:q} \
            --receipt {output.receipt:q} \
            >{log:q} 2>&1
        """
