"""Select, convert, index (draft: B2 owns this file)."""


rule dataset:
    input:
        "<root>/energon/manifest.json",
