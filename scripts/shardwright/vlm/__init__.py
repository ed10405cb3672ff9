"""Vision-language models: import, encoding, packing, loading."""
