"""What would run where: read from Snakemake's own dry run, so that it cannot differ from the run."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

HEAD = re.compile(r"^(local)?(?:rule|checkpoint) (\w+):$")
FIELD = re.compile(r"^    (threads|resources|output|jobid): (.*)$")
COLUMNS = ("rule", "jobs", "partition", "nodes", "GPUs/node", "CPUs", "memory", "time", "other")


@dataclass(frozen=True)
class Place:
    """What one job asks for. Empty strings stand for what only the run itself knows, or for none."""

    rule: str
    local: bool
    partition: str
    nodes: str
    gpus: str
    cpus: str
    mem_mb: str
    minutes: str
    account: str
    other: str


def _gpus_per_node(resources: dict[str, str], nodes: str) -> str:
    if "gpu" in resources:
        return str(int(resources["gpu"]) // int(nodes))
    found = re.fullmatch(r"gpu(?::\w+)??:(\d+)", resources.get("gres", ""))
    return found.group(1) if found else ""


def _place(rule: str, local: bool, fields: dict[str, str]) -> Place:
    pairs = (item.partition("=") for item in fields.get("resources", "").split(", "))
    resources = {key: value for key, _, value in pairs if value and value != "<TBD>"}
    nodes = resources.get("nodes", "1")
    local = local or "slurm_partition" not in resources
    others = [resources.get("slurm_extra", ""), resources.get("container", "")]
    return Place(
        rule,
        local,
        resources.get("slurm_partition", "") if not local else "",
        nodes,
        _gpus_per_node(resources, nodes) if not local else "",
        fields.get("threads", "1"),
        resources.get("mem_mb", ""),
        resources.get("runtime", ""),
        resources.get("slurm_account", ""),
        " ".join(filter(None, others)) if not local else "",
    )


def read_dry_run(text: str) -> list[Place]:
    """Read each job's place from the text of a dry run; rules that only gather targets are left out."""
    places: list[Place] = []
    rule, local, fields = "", False, {}
    for line in [*text.splitlines(), "localrule end_of_text:"]:
        head, field = HEAD.match(line), FIELD.match(line)
        if head:
            if "output" in fields:
                places.append(_place(rule, local, fields))
            rule, local, fields = head.group(2), bool(head.group(1)), {}
        elif field:
            fields.setdefault(field.group(1), field.group(2))
    return places


def _time(minutes: str) -> str:
    return f"{int(minutes) // 60}:{int(minutes) % 60:02d}" if minutes else ""


def _memory(mem_mb: str) -> str:
    return f"{int(mem_mb) / 1000:g} GB" if mem_mb else ""


def render(places: list[Place]) -> str:
    """Return the table, one line a rule (more where its jobs ask for different things), and the sums."""
    rows = [COLUMNS]
    for place, count in Counter(places).items():
        where = "this machine" if place.local else place.partition
        rows.append(
            (
                *(place.rule, str(count), where, place.nodes, place.gpus or "-", place.cpus),
                *(_memory(place.mem_mb) or "-", _time(place.minutes) or "-", place.other),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in [*lines, "", *_sums(places)])


def _sums(places: list[Place]) -> list[str]:
    submitted = [place for place in places if not place.local]
    if not submitted:
        return [f"{len(places)} jobs, all on this machine; nothing is submitted."]
    gpu_hours = sum(
        int(place.gpus) * int(place.nodes) * int(place.minutes or 0) / 60 for place in submitted if place.gpus
    )
    return [
        f"{len(submitted)} jobs to submit, {len(places) - len(submitted)} on this machine; "
        f"at most {gpu_hours:g} GPU hours for each attempt (time limits, not estimates)."
    ]
