"""Import the fetched model into the form that training reads.

Config: model (its file under config/models/: class, dtype, ranks). Input: models/{model}/hub.json.
Outputs: models/{model}/import/ (weights, config, processor) and models/{model}/import.json.
"""


rule model:
    input:
        expand("<root>/models/{model}/import.json", model=MODEL["name"]),


rule import_model:
    input:
        hub="<root>/models/{model}/hub.json",
    output:
        folder=directory("<root>/models/{model}/import"),
        report="<root>/models/{model}/import.json",
    log:
        "<root>/logs/import_model/{model}.log",
    benchmark:
        "<root>/benchmarks/import_model/{model}.tsv"
    resources:
        container="",
        mem_mb=8000,
        runtime=240,
    params:
        code=digest("import_model"),
        kind=MODEL["class"],
        dtype=MODEL["dtype"],
        gpus=MODEL["ranks"],
    shell:
        """
        {PY} {SCRIPTS}/run_ranks.py \
            --expect-gpus {params.gpus:q} \
            --container={resources.container:q} \
            -- \
            {SCRIPTS}/import_model.py \
            --hub {input.hub:q} \
            --class {params.kind:q} \
            --dtype {params.dtype:q} \
            --gpus {params.gpus:q} \
            --target {output.folder:q} \
            --report {output.report:q} \
            >{log:q} 2>&1
        """
