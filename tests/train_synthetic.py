"""One rank of a run on the tiny model and synthetic batches (see train_ranks)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardwright.launch import EXIT_STOPPED
from train_helpers import SyntheticFeed, settings, tiny_model

FEED_KEYS = ("parameters", "num_val", "nan_at", "empty", "drops", "slow_s")


def train_scenarios(scenarios: dict[str, dict[str, Any]], folder: Path) -> int:
    """Train each scenario to the end below `folder`; write `trained.pt`: the whole trained tensors.

    Args:
        scenarios: By name, train settings that differ, `moe`, and arguments of SyntheticFeed.
        folder: Where each scenario's state goes, by name.
    """
    import torch

    from shardwright.training import loop, parallel, setup
    from shardwright.training.stop import StopRequest

    stop = StopRequest()
    ranks = None
    for name, changed in scenarios.items():
        changed = dict(changed)
        feed = {key: changed.pop(key) for key in FEED_KEYS if key in changed}
        moe = changed.pop("moe", False)
        asked = settings(**changed)
        ranks = ranks or parallel.start_ranks("cpu", asked["ranks_per_node"])
        parallel.make_deterministic(asked["seed"], ranks.device, True)
        run = setup.build_run(
            asked, tiny_model(moe), SyntheticFeed(asked, **feed), ranks, folder / name, stop
        )
        try:
            loop.train(run)
        except loop.Stopped as stopped:
            print(stopped, flush=True)
            return EXIT_STOPPED
        trained = {
            key: parallel.whole(p.detach()).clone()
            for key, p in parallel.unwrapped(run.model).named_parameters()
            if p.requires_grad
        }
        if ranks.is_first:
            torch.save(trained, folder / name / "trained.pt")
    return 0
