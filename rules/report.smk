"""The page to look at and the record that proves what went into the checkpoint."""


rule report:
    input:
        "<root>/provenance.json",
