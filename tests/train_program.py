"""One rank of a run on the tiny model and synthetic batches; started through scripts/run_ranks.py.

train_program.py FOLDER JSON   (JSON: train settings that differ, plus `moe`, `nan_at`, `slow_s`)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "scripts"), str(Path(__file__).resolve().parent)]

from shardwright.errors import run_cli  # noqa: E402
from shardwright.launch import EXIT_STOPPED  # noqa: E402
from train_helpers import SyntheticLoader, make_batch, settings, tiny_model  # noqa: E402


def main() -> int:
    """Train; write `trained-<world size>.pt` with the trained tensors of the whole model."""
    import torch

    from shardwright.training import loop, parallel, setup
    from shardwright.training.stop import StopRequest

    folder, changed = Path(sys.argv[1]), json.loads(sys.argv[2])
    moe, nan_at, slow_s = changed.pop("moe", False), changed.pop("nan_at", -1), changed.pop("slow_s", 0)
    parameters = changed.pop("parameters", "").split()
    asked = settings(**changed)
    stop = StopRequest(asked["sigterm_grace_s"])
    ranks = parallel.start_ranks("cpu", asked["nodes"] * asked["ranks_per_node"])
    parallel.make_deterministic(asked["seed"], ranks.device, True)
    run = setup.build_run(
        asked,
        tiny_model(moe),
        asked["adapter_targets"].split(),
        parameters,
        lambda: SyntheticLoader(
            ranks.rank, ranks.world_size, asked["micro_batch_size"], nan_at=nan_at, slow_s=slow_s
        ),
        lambda: [make_batch(1000 + n, 2) for n in range(3)],
        ranks,
        folder,
        stop,
    )
    try:
        loop.train(run)
    except loop.Stopped as stopped:
        print(stopped, flush=True)
        return EXIT_STOPPED
    trained = {
        name: parallel.whole(p.detach()).clone()
        for name, p in parallel.unwrapped(run.model).named_parameters()
        if p.requires_grad
    }
    if ranks.is_first:
        torch.save(trained, folder / f"trained-{ranks.world_size}.pt")
    return 0


if __name__ == "__main__":
    run_cli(main)
