"""Look before you submit, and leave word of who runs here.

Config: none of its own. Inputs, outputs: none; `snakemake placement` prints what would run where.
Environment: SLURM_ARRAY_TASK_ID and _COUNT give the share of shards that `shard_share` builds.
"""

from shardwright.runs import record_run


onstart:
    # For scripts/unlock.py: Snakemake's lock does not say whose it is.
    record_run(Path(), "slurm" if "slurm" in str(type(workflow.executor_plugin.executor)) else "local")


def share_of_shards():
    """The shards of this task of a Slurm array (all of them outside one): every n-th."""
    number = int(os.environ.get("SLURM_ARRAY_TASK_ID", "1"))
    count = int(os.environ.get("SLURM_ARRAY_TASK_COUNT", "1"))
    return list(SHARDS)[number - 1 :: count]


rule shard_share:
    input:
        expand("<root>/audit/{shard}.json", shard=share_of_shards()),


rule placement:
    localrule: True
    params:
        # The options of this very run, and the folder its relative paths count from.
        options=lambda wc: sys.argv[1:],
        called_in=lambda wc: os.environ.get("PWD", ".") if "--directory" in sys.argv else ".",
    shell:
        """
        SHARDWRIGHT_CALLED_IN={params.called_in:q} {PY} {SCRIPTS}/placement.py \
            {params.options:q}
        """
