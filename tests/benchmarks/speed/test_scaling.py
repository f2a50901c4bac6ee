"""How costs grow: slopes say what they claim, what is too large is left out, what was measured stays measured."""

from pathlib import Path

import pytest
from matplotlib.axes import Axes

from nfn_monomial.benchmarks.settings.measurements import ScalingConfig
from nfn_monomial.benchmarks.speed import memory, scaling
from nfn_monomial.benchmarks.speed.contenders import DENSE, GRAPH, PNA
from nfn_monomial.benchmarks.speed.layers import CORE
from nfn_monomial.benchmarks.speed.scaling import (
    KEPT,
    RECOMPUTED,
    Point,
    Scaling,
    measure_scaling,
    scaling_report,
)

TINY = ScalingConfig((2, 4), (2, 3), 4, (1, 6), 8, channels=4, repeats=1)


def test_every_size_is_measured_and_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, sizes = scaling._cell, []

    def cell(config: ScalingConfig, axis: str, n: int, before: list[Point]) -> list[Point]:
        if len(sizes) == 4:
            sizes.append((axis, n))
            raise KeyboardInterrupt
        sizes.append((axis, n))
        return real(config, axis, n, before)

    monkeypatch.setattr(scaling, "_cell", cell)
    with pytest.raises(KeyboardInterrupt):
        measure_scaling(TINY, tmp_path)
    told: list[tuple[int, int]] = []
    found = measure_scaling(TINY, tmp_path, lambda done, total: told.append((done, total)))
    order = [("width", 2), ("width", 4), ("depth", 2), ("depth", 3), ("blocks", 1), ("blocks", 6)]
    assert sizes == [*order[:5], *order[4:]]
    assert told == [(n, 6) for n in range(1, 7)]
    assert [p.contender for p in found.points] == [*[CORE, DENSE, GRAPH, PNA] * 4, *[KEPT, RECOMPUTED] * 2]
    assert all(p.step_ms > 0 and p.peak_bytes > 0 for p in found.points)
    edges = {(p.axis, p.size): p.amount for p in found.points}
    assert edges == {
        ("width", 2): 10, ("width", 4): 28, ("depth", 2): 12, ("depth", 3): 28, ("blocks", 1): 1, ("blocks", 6): 6
    }  # fmt: skip
    assert measure_scaling(TINY, tmp_path).points == found.points, "nothing is measured twice"
    assert len(sizes) == 7
    blocks = found.lines("blocks")
    assert blocks[RECOMPUTED][-1].peak_bytes < blocks[KEPT][-1].peak_bytes
    report = scaling_report(found)
    assert list(report.figures) == ["scaling.png"]
    assert len(report.tables) == 3
    measure_scaling(ScalingConfig((2,), (), 4, (), 8, channels=2, repeats=1), tmp_path)
    assert len(sizes) == 8, "of another configuration nothing is kept"


def test_what_is_too_large_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: 0.0)
    found = measure_scaling(ScalingConfig((2, 4), (), 4, (), 8, channels=2, repeats=1), tmp_path)
    assert {p.size for p in found.points if not p.skipped} == {2}, "the first is tried: nothing is known of it"
    assert [p.contender for p in found.points if p.skipped] == [CORE, DENSE, GRAPH, PNA]
    some = Point("width", 8, PNA, 80, skipped="needs 9.0 GiB, 8.0 GiB are free")
    notes = Scaling([some], TINY).slope_table("width").notes
    assert notes[1] == f"{PNA} left out at width 8: needs 9.0 GiB, 8.0 GiB are free."


SIZES = (10, 100, 1000, 10000)


def test_slopes_are_one_for_linear_growth_and_two_for_quadratic() -> None:
    points = [Point("width", n, "linear", n, 3.0 * n, 5 * n) for n in SIZES]
    points += [Point("width", n, "quadratic", n, 3.0 * n * n, 5 * n) for n in SIZES]
    points += [Point("depth", n, "linear", n, 3.0 * n * n, 5 * n) for n in SIZES]
    found = Scaling(points, TINY)
    assert found.slopes("width") == {"linear": pytest.approx((1, 1)), "quadratic": pytest.approx((2, 1))}
    assert found.slopes("depth") == {"linear": pytest.approx((2, 1))}
    assert found.slope_table("width").cells[1][:5] == ("quadratic", "2.00", "1.00", "10000", "10,000")


def test_recomputing_is_held_against_keeping() -> None:
    points = [Point("blocks", 4, KEPT, 4, 10.0, 8 << 20), Point("blocks", 4, RECOMPUTED, 4, 13.0, 2 << 20)]
    (line,) = Scaling(points, TINY).recompute_table().cells
    assert line == ("4", "10.0", "13.0", "1.30x", "8.0", "2.0", "0.25x")


def test_figure() -> None:
    points = [Point("width", n, name, n, f * n, 2**20 * n) for name, f in ((DENSE, 1.0), (PNA, 3.0)) for n in SIZES]
    time, space = Scaling(points, TINY).draw().axes
    assert [(ax.get_xlabel(), ax.get_ylabel()) for ax in (time, space)] == [
        ("edges of one network", "milliseconds of a training step"),
        ("edges of one network", "peak MiB of a training step"),
    ]

    def lines(ax: Axes) -> dict[object, list[float]]:
        return {line.get_label(): list(line.get_ydata()) for line in ax.get_lines()}

    assert lines(time) == {
        f"{DENSE} (slope 1.00)": [*SIZES], f"{PNA} (slope 1.00)": [3 * n for n in SIZES],
        "linear": [SIZES[0], SIZES[-1]],
    }  # fmt: skip
    assert list(lines(space).values())[:2] == [[*SIZES]] * 2
    assert (time.get_xscale(), time.get_yscale()) == ("log", "log")


def test_something_is_asked_for() -> None:
    with pytest.raises(ValueError, match="widths, depths and blocks are all empty"):
        ScalingConfig((), (), 4, ())
