"""Train and export (draft: C2 owns this file)."""


rule checkpoint:
    input:
        "<root>/train/lora/completed.json",
