"""Import the model, check the loader (draft: C1 owns this file)."""


rule model:
    input:
        expand("<root>/models/{model}/import.json", model=["tiny"]),
