"""Data sets made part by part: what is ours, what is missing, and who may interrupt."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from nfn_monomial.benchmarks.make.jobs import Place, Tick, make_parts, progress_bar

CPU = torch.device("cpu")
PLACE = Place(
    "heap",
    "heap.json",
    ("b_*.bin", "a.bin"),
    lambda folder: json.loads((folder / "heap.json").read_text(encoding="utf-8")),
)
STATED = {"kind": "heap", "config": {"seed": 3, "sizes": [1, 2]}}


def heap(folder: Path, stated: dict[str, Any]) -> dict[str, str]:
    for name in ("b_1.bin", "a.bin", "notes.txt"):
        (folder / name).write_text(name, encoding="utf-8")
    (folder / "heap.json").write_text(json.dumps(stated), encoding="utf-8")
    return contents(folder)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())}


# --- the folder ----------------------------------------------------------------------------------------------------


def test_a_free_folder_is_neither_made_nor_changed(tmp_path: Path) -> None:
    assert PLACE.claim(tmp_path / "a" / "b", STATED, overwrite=False) is None
    assert not (tmp_path / "a").exists()
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    assert PLACE.claim(tmp_path, STATED, overwrite=True) is None
    assert contents(tmp_path) == {"notes.txt": "mine"}


def test_the_same_data_set_is_kept_unless_told(tmp_path: Path) -> None:
    before = heap(tmp_path, STATED | {"finished": True})
    assert PLACE.claim(tmp_path, STATED, overwrite=False) == STATED | {"finished": True}
    assert contents(tmp_path) == before
    assert PLACE.claim(tmp_path, STATED, overwrite=True) is None
    assert contents(tmp_path) == {"notes.txt": "notes.txt"}


@pytest.mark.parametrize(
    ("there", "message"),
    [
        (STATED | {"config": {"seed": 4, "sizes": [1, 2]}}, "configuration: seed is 4 there, 3 asked for; pass"),
        (STATED | {"config": {"seed": 3, "sizes": []}}, r"configuration: sizes is \[\] there, \[1, 2\] asked for; "),
        (
            {"kind": "pile", "config": {"seed": 3, "sizes": [1, 2], "more": 1}},
            "kind is 'pile' there, 'heap' asked for; more is 1 there, None asked for; pass",
        ),
        ({"config": None}, r"kind is None .*; seed is None there, 3 asked for; sizes is None there"),
    ],
)
def test_another_data_set_is_refused_unless_told(tmp_path: Path, there: dict[str, Any], message: str) -> None:
    before = heap(tmp_path, there)
    with pytest.raises(ValueError, match=rf"holds a heap of another .*{message}.*--overwrite"):
        PLACE.claim(tmp_path, STATED, overwrite=False)
    assert contents(tmp_path) == before
    assert PLACE.claim(tmp_path, STATED, overwrite=True) is None
    assert contents(tmp_path) == {"notes.txt": "notes.txt"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_not_ours_is_left_alone(tmp_path: Path, overwrite: bool) -> None:
    heap(tmp_path, STATED)
    (tmp_path / "heap.json").unlink()
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"holds b_1\.bin, a\.bin but no heap\.json.*choose another folder"):
        PLACE.claim(tmp_path, STATED, overwrite)
    assert contents(tmp_path) == before
    for path in (tmp_path / "a.bin", tmp_path / "a.bin" / "deep"):
        with pytest.raises(ValueError, match=r"a\.bin is a file: give a folder"):
            PLACE.claim(path, STATED, overwrite)


def test_data_are_deleted_before_the_file_that_makes_them_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heap(tmp_path, STATED)
    unlink, gone = Path.unlink, []

    def noted(path: Path) -> None:
        gone.append(path.name)
        unlink(path)

    monkeypatch.setattr(Path, "unlink", noted)
    PLACE.claim(tmp_path, STATED, overwrite=True)
    assert gone == ["b_1.bin", "a.bin", "heap.json"]


# --- the parts -----------------------------------------------------------------------------------------------------


class Store:
    """Parts in a dict; ``begun``: the order in which they were made."""

    def __init__(self, **found: str) -> None:
        self.parts = {int(number): value for number, value in found.items()}
        self.begun: list[int] = []

    def read(self, number: int) -> str | None:
        return self.parts.get(number)

    def make(self, number: int, tick: Tick) -> None:
        self.begun.append(number)
        tick(0)
        self.parts[number] = f"part {number}"


def test_missing_parts_are_made_longest_first() -> None:
    store, calls = Store(**{"1": "kept"}), []
    found, made = make_parts(
        [2, 9, 4, 3], store.read, store.make, device=CPU, workers=1, progress=lambda *news: calls.append(news)
    )
    assert found == ["part 0", "kept", "part 2", "part 3"]
    assert made == store.begun == [2, 3, 0]
    assert calls == [(9, 18), (13, 18), (16, 18), (18, 18)]
    again, made = make_parts([2, 9, 4, 3], store.read, lambda *_: pytest.fail("all are there"), device=CPU)
    assert (again, made) == (found, [])


def test_work_within_a_part_is_told_and_counted_once() -> None:
    calls: list[tuple[int, int]] = []
    store = Store()

    def make(number: int, tick: Tick) -> None:
        for units in (1, 0, 2):
            tick(units)
        store.make(number, tick)

    make_parts([5], store.read, make, device=CPU, progress=lambda *news: calls.append(news))
    assert calls == [(0, 5), (1, 5), (3, 5), (5, 5)]


def test_an_interruption_ends_all_workers_at_their_next_step() -> None:
    """Two parts are in work when one of them fails: the other, which would go on for ever, stops."""
    store, both = Store(), threading.Barrier(2, timeout=60)
    stopped: list[int] = []

    def make(number: int, tick: Tick) -> None:
        if number < 2:
            both.wait()
        if number == 0:
            raise KeyboardInterrupt
        try:
            while True:
                tick(0)
        finally:
            stopped.append(number)

    with pytest.raises(KeyboardInterrupt):
        make_parts([2, 2, 1, 1], store.read, make, device=CPU, workers=2)
    assert 1 in stopped
    assert not store.parts


def test_a_part_that_cannot_be_read_back() -> None:
    with pytest.raises(ValueError, match="part 1 was written but cannot be read back: is the disk full"):
        make_parts([1, 1], lambda number: None if number else "part", lambda number, tick: None, device=CPU)


def test_the_number_of_threads_is_restored() -> None:
    before, inside = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        store = Store()

        def make(number: int, tick: Tick) -> None:
            inside.append(torch.get_num_threads())
            store.make(number, tick)

        make_parts([1], store.read, make, device=CPU)
        assert torch.get_num_threads() == 2
        assert inside == [1]
    finally:
        torch.set_num_threads(before)


def test_progress_bar_shows_the_share_that_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with progress_bar("piling up") as progress:
        progress(0, 8)
        progress(2, 8)
    shown = capsys.readouterr().out
    assert "piling up" in shown
    assert "25%" in shown
