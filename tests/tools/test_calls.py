"""A call that was interrupted goes on where it was; another one, and one of changed files, is refused."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from own_networks import mlp, saved

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools import align_checkpoints, compare_checkpoints
from nfn_monomial.tools.calls import UNFINISHED, Call
from nfn_monomial.tools.checkpoints import alignments, families
from nfn_monomial.tools.predictors import Predictor
from nfn_monomial.tools.predictors.tasks import Generalization


@pytest.fixture
def networks(tmp_path: Path) -> list[Path]:
    return [saved(tmp_path / "nets" / f"{i}.safetensors", mlp(i)) for i in range(4)]


def call_of(folder: Path, files: list[Path], **arguments: Any) -> Call:
    return Call(folder / "out", "compare", {"seed": 0} | arguments, files, leaves=["table.md"])


def ended(call: Call, by: BaseException, work: Callable[[Call], object]) -> None:
    """It does some work, then ends in an error."""
    with call:
        work(call)
        raise by


def first_piece(call: Call) -> None:
    call.put("first", [0.1], {"x": torch.arange(3.0).log()})


def interrupted(call: Call, work: Callable[[Call], object] = first_piece) -> None:
    with pytest.raises(KeyboardInterrupt):
        ended(call, KeyboardInterrupt(), work)


def test_the_same_call_has_what_it_had_finished(networks: list[Path], tmp_path: Path) -> None:
    interrupted(call_of(tmp_path, networks))
    with call_of(tmp_path, networks) as call:
        stated, tensors = call.piece("first", lambda: pytest.fail("it is there"))
        assert stated == [0.1]
        assert torch.equal(tensors["x"], torch.arange(3.0).log())
        assert call.get("second") is None
        (path,) = call.claim(["table.md"], {})
        path.touch()
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["table.md"]
    with pytest.raises(InvalidValueError, match=r"table\.md is there already: give another --out, or --force"):
        call_of(tmp_path, networks)


def test_another_call_is_refused_in_words(networks: list[Path], tmp_path: Path) -> None:
    interrupted(call_of(tmp_path, networks))
    with pytest.raises(InvalidValueError, match=r"an interrupted call of compare .* other arguments \(seed\): repeat"):
        call_of(tmp_path, networks, seed=1)
    with pytest.raises(InvalidValueError, match="other work to do"):
        Call(tmp_path / "out", "align", {"seed": 0}, networks)
    before, changed = networks[1].stat(), bytearray(networks[1].read_bytes())
    changed[-1] ^= 1
    networks[1].write_bytes(changed)  # as large as before, and as old
    os.utime(networks[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InvalidValueError, match=r"other contents of \S*1.safetensors: repeat"):
        call_of(tmp_path, networks)
    with Call(tmp_path / "out", "align", {}, networks, force=True) as call:
        assert call.get("first") is None
        call.put("second", None, {})
        assert [path.name for path in (tmp_path / "out" / UNFINISHED).glob("*.piece")] == ["second.piece"]


@pytest.mark.parametrize("name", ["first.piece", "call.json"])
def test_damage_is_never_taken_for_finished_work(name: str, networks: list[Path], tmp_path: Path) -> None:
    interrupted(call_of(tmp_path, networks))
    path = tmp_path / "out" / UNFINISHED / name
    path.write_bytes(path.read_bytes()[:-9])
    if name == "call.json":
        with pytest.raises(InvalidValueError, match=r"call.json .*give another --out, or --force"):
            call_of(tmp_path, networks)
    else:
        assert call_of(tmp_path, networks).get("first") is None


def test_a_piece_of_another_call_is_not_taken(networks: list[Path], tmp_path: Path) -> None:
    interrupted(call_of(tmp_path, networks))
    kept = (tmp_path / "out" / UNFINISHED / "first.piece").read_bytes()
    with Call(tmp_path / "other", "compare", {"seed": 1}, networks) as other:
        other.put("second", None, {})
        (tmp_path / "other" / UNFINISHED / "first.piece").write_bytes(kept)
        assert other.get("first") is None
        assert other.get("second") == (None, {})


def test_files_of_others_are_not_replaced_by_a_call_that_goes_on(networks: list[Path], tmp_path: Path) -> None:
    interrupted(call_of(tmp_path, networks))
    (tmp_path / "out" / "table.md").write_text("a user's")
    with pytest.raises(InvalidValueError, match="is there already"):
        call_of(tmp_path, networks)


def test_an_error_leaves_nothing(networks: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="no such thing"):
        ended(call_of(tmp_path, networks), InvalidValueError("no such thing"), first_piece)
    assert not (tmp_path / "out").exists()


class Counted:
    """A function that counts its calls, and is interrupted at one of them."""

    def __init__(self, function: Any, at: int | None = None) -> None:
        self.function, self.at, self.calls = function, at, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.calls == self.at:
            raise KeyboardInterrupt
        self.calls += 1
        return self.function(*args, **kwargs)


WORK: Any = {
    "distances": (
        families,
        "align",
        lambda paths, call: compare_checkpoints(paths[0].parent, activation="relu", call=call),
        4,
        6,
    ),
    "scores": (
        alignments,
        "mean_of",
        lambda paths, call: align_checkpoints(*paths, activation="relu", call=call),
        24,
        33,
    ),
}
"""What is kept -> module and function that make it, the command, when it is interrupted, calls in all."""


@pytest.mark.parametrize("name", WORK)
def test_finished_work_is_not_done_again(
    name: str, networks: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, function, command, at, count = WORK[name]
    whole = Counted(getattr(module, function))
    monkeypatch.setattr(module, function, whole)
    expected = command(networks, Call()).to_json()
    assert whole.calls == count

    first = Counted(whole.function, at)
    monkeypatch.setattr(module, function, first)
    interrupted(Call(tmp_path / "out", "own", {}, networks), functools.partial(command, networks))
    second = Counted(whole.function)
    monkeypatch.setattr(module, function, second)
    with Call(tmp_path / "out", "own", {}, networks) as call:
        found = command(networks, call)
    assert found.to_json() == expected
    redone = {"scores": at % 11}.get(name, 0)  # of the line that was under way
    assert second.calls == count - at + redone


def test_predictions_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nfn_monomial.tools.predictors.models.EVALUATION_BATCH", 2)
    torch.manual_seed(0)
    pairs = ((1, 16), (16, 16), (16, 16))
    for i in range(5):
        layers = [part for a, b in pairs for part in (torch.nn.Conv2d(a, b, 3), torch.nn.ReLU())]
        module = torch.nn.Sequential(
            *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 10)
        )
        saved(tmp_path / "nets" / f"{i}.safetensors", module.state_dict())
    predictor = Predictor.load()
    expected = [p.answer for p in predictor.predict([tmp_path / "nets"])]
    first = Counted(Generalization.answer, 2)
    monkeypatch.setattr(Generalization, "answer", lambda *given: first(*given))
    interrupted(Call(tmp_path / "out", "predict"), lambda call: predictor.predict([tmp_path / "nets"], call=call))
    second = Counted(first.function)
    monkeypatch.setattr(Generalization, "answer", lambda *given: second(*given))
    with Call(tmp_path / "out", "predict") as call:
        found = [p.answer for p in predictor.predict([tmp_path / "nets"], call=call)]
    assert second.calls == 1
    assert all(map(torch.equal, found, expected))
