"""What the fork server imports once for all ranks."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "scripts")]

import megatron.energon  # noqa: F401
import peft  # noqa: F401
import torch.distributed.checkpoint  # noqa: F401
import transformers.models.qwen3_vl.modeling_qwen3_vl  # noqa: F401

import shardwright.training.session
import shardwright.vlm.loader  # noqa: F401
