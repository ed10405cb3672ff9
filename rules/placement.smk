"""Look before you submit, and leave word of who runs here.

Config: none of its own. Inputs, outputs: none; `snakemake placement` prints what would run where.
Environment: SLURM_ARRAY_TASK_ID and _COUNT give the share of shards that `shard_share` builds.
"""

from shardwright.runs import record_run
from shardwright.slurm import share_of_array


onstart:
    # For scripts/unlock.py: Snakemake's lock does not say whose it is.
    record_run(Path(), workflow.executor_plugin.name)


rule shard_share:
    input:
        expand("<root>/audit/{shard}.json", shard=share_of_array(list(SHARDS))),


# It makes no file, so it runs whenever it is asked for: no code digest, no benchmark.
rule placement:
    log:
        "<root>/logs/placement.log",
    localrule: True
    params:
        # The options of this very run, and the folder its relative paths count from.
        options=lambda wc: sys.argv[1:],
        called_in=lambda wc: os.environ.get("PWD", ".") if "--directory" in sys.argv else ".",
    shell:
        """
        SHARDWRIGHT_CALLED_IN={params.called_in:q} {PY} {SCRIPTS}/placement.py \
            {params.options:q} 2>&1 | tee {log:q}
        """
