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
        scenarios: By name, train settings that differ, arguments of SyntheticFeed, and `kind` of the
            model or `import_dir`, an import folder that each rank opens as the real program does.
        folder: Where each scenario's state goes, by name.
    """
    import torch

    from shardwright.training import loading, loop, parallel, setup
    from shardwright.training.stop import StopRequest

    stop = StopRequest()
    ranks = None
    for name, changed in scenarios.items():
        changed = dict(changed)
        feed = {key: changed.pop(key) for key in FEED_KEYS if key in changed}
        kind, import_dir = changed.pop("kind", "Qwen3VL"), changed.pop("import_dir", None)
        asked = settings(**changed)
        ranks = ranks or parallel.start_ranks("cpu", asked["ranks_per_node"])
        parallel.make_deterministic(asked["seed"], ranks.device, True)
        synthetic = SyntheticFeed(asked, import_dir=import_dir, **feed)
        model = loading.open_model(asked, import_dir, ranks) if import_dir else tiny_model(kind)
        run = setup.build_run(asked, model, synthetic, ranks, folder / name, stop)
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
