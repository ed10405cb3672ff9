"""Look before you submit, and leave word of who runs here.

Config: none of its own. Inputs, outputs: none; `snakemake placement` prints what would run where.
Environment: SLURM_ARRAY_TASK_ID and _COUNT give the share of shards that `shard_share` builds.
"""

from shardwright.runs import is_locked, record_run
from shardwright.slurm import share_of_array

# For scripts/unlock.py: Snakemake's lock does not say whose it is. It is taken before the jobs are planned,
# which may take minutes, so the record is made now, by whoever finds no lock; the executor is known later.
if workflow.is_main_process and not is_locked(Path()) and not {"-n", "--dry-run", "--nolock"} & set(sys.argv):
    record_run(Path())


onstart:
    if workflow.execution_settings.lock:
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
