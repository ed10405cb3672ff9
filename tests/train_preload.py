"""What the fork server imports once for all ranks."""

import importlib
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "scripts")]

for name in (
    "peft",
    "torch.distributed.checkpoint",
    "transformers.models.qwen3_vl.modeling_qwen3_vl",
    "shardwright.training.session",
    "shardwright.vlm.encoder",
    "shardwright.vlm.loader",
):
    importlib.import_module(name)
