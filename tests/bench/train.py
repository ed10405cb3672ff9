"""How fast training is, against the plainest loop on the same model and batches; prints ratios of one run.

    python tests/bench/train.py --manifest results/example/energon/manifest.json \
        --import-report results/example/models/tiny/import.json [--steps 20] [--accelerator gpu]

Both loops train LoRA adapters on the same recorded batches with the same optimizer settings. The plain
loop is what one writes with transformers and peft: model(**batch, labels=labels).loss, backward, step.
The loader is measured alone at 0 and 2 workers, then the whole program's share of waiting for data.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).resolve().parents[2] / "scripts"),
    str(Path(__file__).resolve().parents[1]),
]

TARGETS = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
PEAK_TFLOPS = {"H200": 989, "H100": 989, "A100": 312, "B200": 2250}  # dense bf16


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--import-report", type=Path, required=True)
    parser.add_argument("--limits", type=json.loads, default=None, help="data section, JSON")
    parser.add_argument("--accelerator", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--micro-batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each loop; medians are printed")
    return parser.parse_args(argv)


def plain_loop(model: Any, batches: list[dict[str, Any]], device: Any, autocast: Any) -> Callable[[], None]:
    """The plainest loop: the model's own loss over all positions, AdamW, clipping."""
    import torch

    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def run() -> None:
        model.train()
        for batch in batches:
            inputs = {
                k: v.to(device) for k, v in batch.items() if torch.is_tensor(v) and k != "num_supervised"
            }
            with autocast():
                loss = model(**inputs, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return run


def timed(work: Callable[[], None], device: Any) -> tuple[float, float]:
    """Seconds that `work` takes, by the clock and of this process's CPU."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()
    start, cpu = time.perf_counter(), time.process_time()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, time.process_time() - cpu


def loader_rate(feed: Any, settings: dict[str, Any], workers: int, num_batches: int) -> float:
    """Samples per second of the train loader alone, after its first two batches."""
    from shardwright.training.sources import Feed

    alone = Feed(feed.sources, feed.processor, settings | {"loader_workers": workers})
    batches = iter(alone.train(0, 1))
    for _ in range(2):
        next(batches)
    start = time.perf_counter()
    num = sum(len(next(batches)["uids"]) for _ in range(num_batches))
    return num / (time.perf_counter() - start)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    args = parse(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from shardwright.training import loading, loop, parallel, setup
    from shardwright.training.sources import Feed, Sources
    from shardwright.training.stop import StopRequest
    from shardwright.vlm.models import load_processor
    from train_helpers import settings as make_settings
    from vlm_helpers import limits as default_limits

    limits = args.limits or vars(default_limits(seq_length=512, max_pixels=16384))
    settings = make_settings(
        accelerator=args.accelerator,
        dtype=args.dtype,
        micro_batch_size=args.micro_batch_size,
        global_batch_size=args.micro_batch_size,
        adapter_targets=TARGETS,
        steps=args.steps * (args.rounds + 1),
        deterministic=False,
        max_drop_share=1,
    )
    ranks = parallel.start_ranks(args.accelerator, 1)
    parallel.make_deterministic(0, ranks.device, False)
    sources = Sources(args.manifest, args.import_report, limits, TARGETS.split(), [])
    feed = Feed(sources, load_processor(sources.import_dir), settings)
    batches = list(itertools.islice(feed.train(0, 1), args.steps))

    with tempfile.TemporaryDirectory() as folder:
        model = loading.open_model(settings, sources.import_dir, ranks)
        run = setup.build_run(settings, model, feed, ranks, Path(folder), StopRequest())
        other = setup.prepare_model(
            loading.open_model(settings, sources.import_dir, ranks), settings, TARGETS.split(), []
        )
        counter = itertools.count()
        run.model.train()

        def ours() -> None:
            for batch in batches:
                loop.train_step(run, next(counter), [batch])

        plain = plain_loop(other, batches, ranks.device, lambda: loop.computing(run))
        timed(ours, ranks.device), timed(plain, ranks.device)
        times = {"ours": [], "plain": []}
        for _ in range(args.rounds):
            times["ours"].append(timed(ours, ranks.device))
            times["plain"].append(timed(plain, ranks.device))
        seconds = {name: statistics.median(wall for wall, _ in pairs) for name, pairs in times.items()}
        cpu = {name: statistics.median(used for _, used in pairs) for name, pairs in times.items()}
        tokens = sum(int(batch["attention_mask"].sum()) for batch in batches)
        for name, value in seconds.items():
            print(f"{name}: {args.steps / value:.2f} steps/s, {tokens / value:,.0f} tokens/s")
        print(
            f"ours / plain: {seconds['plain'] / seconds['ours']:.2f} times as fast by the clock, "
            f"{cpu['plain'] / cpu['ours']:.2f} times by CPU time, same model and batches"
        )
        if ranks.device.type == "cuda":
            _print_mfu(run.model, tokens / seconds["ours"])
        rates = {workers: loader_rate(feed, settings, workers, args.steps) for workers in (0, 2)}
        for workers, rate in rates.items():
            print(f"loader alone, {workers} workers: {rate:.1f} samples/s")
        waits = {
            workers: _wait_share(run, feed, settings, workers, args.steps, counter) for workers in (0, 2)
        }
        for workers, share in waits.items():
            print(f"whole step, {workers} workers: {100 * share:.0f} % of the time waiting for data")


def _wait_share(
    run: Any, feed: Any, settings: dict[str, Any], workers: int, steps: int, counter: Any
) -> float:
    from shardwright.training import loop
    from shardwright.training.sources import Feed

    batches = iter(Feed(feed.sources, feed.processor, settings | {"loader_workers": workers}).train(0, 1))
    next(batches)
    waited, start = 0.0, time.perf_counter()
    for _ in range(steps):
        began = time.perf_counter()
        micro = loop.next_micro_batches(batches, run)
        waited += time.perf_counter() - began
        loop.train_step(run, next(counter), micro)
    return waited / (time.perf_counter() - start)


def _print_mfu(model: Any, tokens_per_s: float) -> None:
    """Model FLOPs utilisation: what the model needs, not what checkpointing computes twice."""
    import torch

    from shardwright.training.cost import flops_per_token

    name = torch.cuda.get_device_name()
    peak = next((value for key, value in PEAK_TFLOPS.items() if key in name), None)
    achieved = tokens_per_s * flops_per_token(model, recomputed=False) / 1e12
    print(f"{achieved:.1f} TFLOP/s" + (f", {100 * achieved / peak:.1f} % of {name}'s {peak}" if peak else ""))


if __name__ == "__main__":
    main()
