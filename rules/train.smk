"""Train the imported model on the dataset, then export what was trained.

Config: train, model. Inputs: energon/manifest.json, loader_check.json, models/{model}/import.json.
Outputs: train/{run}/checkpoint/, metrics.jsonl, resolved_config.yaml, completed.json;
train/{run}/export/, export.json.
train/{run}/state/ is the running state: no rule owns it, so nothing deletes it.
"""

import json

from shardwright.training.batching import deciding, plan_batches

TRAIN = BUILD["train"]

# Not in params: a setting that alters no weight must not delete and redo a finished run.
TRAIN_JSON = json.dumps(TRAIN, sort_keys=True)
TRAIN_GPUS = TRAIN["ranks_per_node"] if TRAIN["accelerator"] == "gpu" else 0

try:
    plan_batches(TRAIN)
except BuildError as error:
    raise WorkflowError(str(error)) from None


rule checkpoint:
    input:
        f"<root>/train/{TRAIN['run']}/export.json",


rule train_model:
    input:
        manifest="<root>/energon/manifest.json",
        loader_check="<root>/loader_check.json",
        model=f"<root>/models/{MODEL['name']}/import.json",
    output:
        checkpoint=directory("<root>/train/{run}/checkpoint"),
        metrics="<root>/train/{run}/metrics.jsonl",
        config="<root>/train/{run}/resolved_config.yaml",
        completed="<root>/train/{run}/completed.json",
    log:
        "<root>/logs/train_model/{run}.log",
    benchmark:
        "<root>/benchmarks/train_model/{run}.tsv"
    wildcard_constraints:
        run=re.escape(TRAIN["run"]),
    threads: TRAIN["ranks_per_node"] * (1 + TRAIN["loader_workers"])
    resources:
        nodes=TRAIN["nodes"],
        container="",
        mem_mb=8000,
        runtime=120,
    params:
        code=digest("train_model"),
        settings=json.dumps(deciding(TRAIN), sort_keys=True),
        limits=json.dumps(BUILD["data"], sort_keys=True),
        targets=TRAIN["adapter_targets"] or MODEL["adapter_targets"],
        parameters="" if TRAIN["adapter_targets"] else MODEL["adapter_parameters"],
        state=lambda wc, output: str(Path(output.completed).parent / "state"),
    shell:
        # tee ignores the signals, so that the last words of a stopped run reach the log.
        """
        {PY} {SCRIPTS}/run_ranks.py \
            --nodes {TRAIN[nodes]:q} \
            --ranks-per-node {TRAIN[ranks_per_node]:q} \
            --expect-gpus {TRAIN_GPUS:q} \
            --grace-s {TRAIN[sigterm_grace_s]:q} \
            --lock {params.state:q}.lock \
            --container={resources.container:q} \
            -- \
            {SCRIPTS}/train_model.py \
            --manifest {input.manifest:q} \
            --import-report {input.model:q} \
            --settings {TRAIN_JSON:q} \
            --limits {params.limits:q} \
            --targets={params.targets:q} \
            --target-parameters={params.parameters:q} \
            --state {params.state:q} \
            --checkpoint {output.checkpoint:q} \
            --metrics {output.metrics:q} \
            --resolved-config {output.config:q} \
            --completed {output.completed:q} \
            2>&1 | (
            trap '' TERM INT HUP USR1
            exec tee {log:q}
        )
        """


rule export_checkpoint:
    input:
        completed="<root>/train/{run}/completed.json",
        checkpoint="<root>/train/{run}/checkpoint",
        model=f"<root>/models/{MODEL['name']}/import.json",
    output:
        folder=directory("<root>/train/{run}/export"),
        report="<root>/train/{run}/export.json",
    log:
        "<root>/logs/export_checkpoint/{run}.log",
    benchmark:
        "<root>/benchmarks/export_checkpoint/{run}.tsv"
    wildcard_constraints:
        run=re.escape(TRAIN["run"]),
    threads: 8
    resources:
        mem_mb=8000,
        runtime=120,
    params:
        code=digest("export_checkpoint"),
    shell:
        """
        {PY} {SCRIPTS}/export_checkpoint.py \
            --completed {input.completed:q} \
            --checkpoint {input.checkpoint:q} \
            --import-report {input.model:q} \
            --export {output.folder:q} \
            --report {output.report:q} \
            >{log:q} 2>&1
        """
