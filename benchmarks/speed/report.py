"""Ratios of the graph side of the layer benchmark, as tables, figure and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.table import Table

from .graphs import DENSE, FLOOR, GraphTiming, floor
from .layers import NETWORKS, machine
from .scaling import Scaling

__all__ = ["Ratios", "as_markdown", "ratios", "rich_tables", "write"]


@dataclass(frozen=True)
class Ratios:
    """Of one setting, each forward, for a training step, and (contenders) for the step's memory.

    ``slower``: how many times what the tied dense layer needs the other contenders need. ``over_larger`` and
    ``over_sum``: how many times the larger of the floor's two times the tied dense layer takes, and how many times
    their sum.
    """

    network: str
    batch: int
    slower: dict[str, tuple[float, float, float]]
    over_larger: tuple[float, float]
    over_sum: tuple[float, float]


def ratios(timings: Sequence[GraphTiming]) -> list[Ratios]:
    """The ratios of every setting in which the tied dense layer ran."""
    found = []
    for network, batch in dict.fromkeys((t.network, t.batch) for t in timings):
        rows = {t.contender: t for t in timings if (t.network, t.batch) == (network, batch) and not t.skipped}
        if DENSE not in rows:
            continue
        dense, floor = rows[DENSE], [rows[name] for name in FLOOR]
        slower = {
            name: (t.forward_ms / dense.forward_ms, t.step_ms / dense.step_ms, t.peak_bytes / dense.peak_bytes)
            for name, t in rows.items()
            if name not in FLOOR
        }
        forward, step = [f.forward_ms for f in floor], [f.step_ms for f in floor]
        larger = dense.forward_ms / max(forward), dense.step_ms / max(step)
        found.append(
            Ratios(network, batch, slower, larger, (dense.forward_ms / sum(forward), dense.step_ms / sum(step)))
        )
    return found


def _cells(t: GraphTiming, of: dict[tuple[str, int], Ratios]) -> list[str]:
    """Milliseconds, memory and the three ratios as text, with - for what there is not."""
    if t.skipped:
        return ["-"] * 6
    memory = f"{t.peak_bytes / 2**20:.1f}" if t.peak_bytes else "-"
    setting = of.get((t.network, t.batch))
    slower = setting.slower.get(t.contender) if setting else None
    return [f"{t.forward_ms:.2f}", f"{t.step_ms:.2f}", memory, *([f"{r:.1f}x" for r in slower] if slower else "---")]


def as_markdown(timings: Sequence[GraphTiming], scaling: Scaling | None = None) -> str:
    """A table of medians and ratios, one of the distance to the floor, and the slopes of the scaling."""
    of = {(r.network, r.batch): r for r in ratios(timings)}
    lines = [
        "| network | batch | layer | parameters | forward ms | step ms | step MiB "
        "| times the tied dense layer: forward | step | memory |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for t in timings:
        name = f"{t.contender} (skipped: {t.skipped})" if t.skipped else t.contender
        cells = [t.network, str(t.batch), name, str(t.parameters or "-"), *_cells(t, of)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "The tied dense layer against what it cannot avoid: copying the features (memory moved once forward, 2.5 times "
        "in a step) and its bare matrix products.",
        "",
        "| network | batch | times the larger: forward | step | times the sum: forward | step |",
        "|---|---|---|---|---|---|",
    ]
    for r in of.values():
        cells = [r.network, str(r.batch), *(f"{x:.2f}x" for x in (*r.over_larger, *r.over_sum))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *(["", scaling.as_markdown()] if scaling else [])]) + "\n"


def rich_tables(timings: Sequence[GraphTiming]) -> list[Table]:
    """One table a setting, narrow enough for a terminal."""
    tables: dict[tuple[str, int], Table] = {}
    of = {(r.network, r.batch): r for r in ratios(timings)}
    for t in timings:
        key = t.network, t.batch
        if key not in tables:
            caption = None
            if key in of:
                larger, added = of[key].over_larger[1], of[key].over_sum[1]
                caption = f"{DENSE}, step: {larger:.1f}x the larger of copying and products, {added:.1f}x their sum"
            tables[key] = Table(
                title=f"{t.network}, batch {t.batch}", caption=caption, box=box.SIMPLE_HEAD, title_justify="left"
            )
            for i, column in enumerate(("layer", "fwd ms", "step ms", "MiB", "fwd", "step", "memory")):
                tables[key].add_column(column, justify="right" if i else "left", no_wrap=True)
        tables[key].add_row(t.contender + (" (too large)" if t.skipped else ""), *_cells(t, of))
    return list(tables.values())


def write(
    timings: Sequence[GraphTiming], scaling: Scaling | None, out: Path, device: str, width: int
) -> dict[str, Path]:
    """Write ``graphs.json``, ``graphs.md`` and, with a scaling, ``graphs.png`` into ``out``; their paths."""
    out.mkdir(parents=True, exist_ok=True)
    paths = {"table": out / "graphs.md", "data": out / "graphs.json"}
    record = {
        "machine": machine(device),
        "width": width,
        "timings": [asdict(t) for t in timings],
        "ratios": [asdict(r) for r in ratios(timings)],
        "floor": [
            {"network": network, "batch": batch, **floor(NETWORKS[network](), batch, width)}
            for network, batch in dict.fromkeys((t.network, t.batch) for t in timings)
        ],
        "scaling": scaling and scaling.as_dict(),
    }
    paths["data"].write_text(json.dumps(record, indent=1))
    paths["table"].write_text(as_markdown(timings, scaling))
    if scaling:
        paths["figure"] = out / "graphs.png"
        paths["figure"].write_bytes(scaling.draw())
    return paths
