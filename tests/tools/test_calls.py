"""Finished work is kept, and taken up again by the same call and code only."""

import functools
import importlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric.utilities import rank_zero_only
from own_networks import mlp, saved

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools import align_checkpoints, compare_checkpoints
from nfn_monomial.tools.calls import UNFINISHED, Call
from nfn_monomial.tools.files import write_json
from nfn_monomial.tools.predictors import Predictor
from nfn_monomial.tools.store import Store, code_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def networks(tmp_path: Path) -> list[Path]:
    return [saved(tmp_path / "nets" / f"{i}.safetensors", mlp(i)) for i in range(4)]


def call_of(folder: Path, files: list[Path], **arguments: Any) -> Call:
    return Call(folder / "out", "compare", {"seed": 0} | arguments, files, leaves=["table.md"])


def first_piece(call: Call) -> None:
    call.put("first", [0.1], {"x": torch.arange(3.0).log()})


def ended(call: Call, by: BaseException, work: Callable[[Call], object] = first_piece) -> None:
    """It does some work, then ends in an error."""

    def run() -> None:
        with call:
            work(call)
            raise by

    with pytest.raises(type(by)):
        run()


def test_the_same_call_has_what_it_had_finished(networks: list[Path], tmp_path: Path) -> None:
    ended(call_of(tmp_path, networks), KeyboardInterrupt())
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
    ended(call_of(tmp_path, networks), KeyboardInterrupt())
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


def test_damage_and_files_of_others_are_never_taken_for_finished_work(networks: list[Path], tmp_path: Path) -> None:
    ended(call_of(tmp_path, networks), KeyboardInterrupt())
    unfinished = tmp_path / "out" / UNFINISHED
    (unfinished / "first.piece").write_bytes((unfinished / "first.piece").read_bytes()[:-9])
    assert call_of(tmp_path, networks).get("first") is None
    (tmp_path / "out" / "table.md").write_text("a user's")
    with pytest.raises(InvalidValueError, match="is there already"):
        call_of(tmp_path, networks)
    (unfinished / "call.json").write_bytes((unfinished / "call.json").read_bytes()[:-9])
    with pytest.raises(InvalidValueError, match=r"call.json .*give another --out, or --force"):
        call_of(tmp_path, networks)


def test_an_error_leaves_nothing(networks: list[Path], tmp_path: Path) -> None:
    ended(call_of(tmp_path, networks), InvalidValueError("no such thing"))
    assert not (tmp_path / "out").exists()


def predicted(paths: list[Path], call: Call) -> list[float]:
    """By the predictor that ships, of five networks of its kind, two at once."""
    predictor = Predictor.load()
    folder = paths[0].parent / "cnns"
    for i in range(5):
        torch.manual_seed(i)
        state = {name: torch.randn(shape) for name, shape in predictor.task.infos[0].space.shapes().items()}
        saved(folder / f"{i}.safetensors", state)
    return [float(p.answer) for p in predictor.predict([folder], call=call)]


WORK: Any = {
    "distances": (lambda paths, call: compare_checkpoints(*paths[:3], activation="relu", call=call).to_json(), 1),
    "scores": (lambda paths, call: align_checkpoints(*paths[:2], activation="relu", call=call).to_json(), 24),
    "answers": (predicted, 4),
}
"""What is kept -> the command, and after how many steps it is interrupted."""


@pytest.mark.parametrize("name", WORK)
def test_a_command_that_was_interrupted_goes_on(
    name: str, networks: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nfn_monomial.tools.predictors.models.EVALUATION_BATCH", 2)
    command, steps = WORK[name]
    expected = command(networks, Call())

    def stop(done: int, total: int) -> None:
        if done > steps:
            raise KeyboardInterrupt

    call = Call(tmp_path / "out", "own", {}, networks, progress=stop)
    ended(call, KeyboardInterrupt(), functools.partial(command, networks))
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / UNFINISHED).glob("*.piece")}
    assert times
    with Call(tmp_path / "out", "own", {}, networks) as call:
        assert command(networks, call) == expected
        again = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / UNFINISHED).glob("*.piece")}
    kept = [piece for piece in times if again[piece] == times[piece]]
    assert len(kept) == len(times) - (name == "distances"), "all but the row that was under way"


def test_all_code_of_the_package_counts(tmp_path: Path) -> None:
    """A score that is computed otherwise is another result, wherever in the package that is."""
    tree = tmp_path / "nfn_monomial"
    for room, place in {"nfn_monomial": "", "adapters": "adapters", "benchmarks": "benchmarks"}.items():
        shutil.copytree(ROOT / room, tree / place, ignore=shutil.ignore_patterns("results"), dirs_exist_ok=True)
    scores = tree / "benchmarks" / "studies" / "predict.py"
    code = "import nfn_monomial.tools.store as s; print(s.__file__, s.code_of()); s._package.cache_clear()"
    lines = (
        f"{code}; p = s.Path({str(scores)!r}); p.write_text(p.read_text().replace('\"tau\": ', '\"tau\": -')); {code}"
    )
    done = subprocess.run(
        [sys.executable, "-c", lines], env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    where, first, _, changed = done.stdout.split()
    assert Path(where).is_relative_to(tree)
    assert first == code_of() != changed, "wherever the package lies"


def test_torch_and_a_users_own_file_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    codes = [code_of()]
    for name, width in (("first", 1), ("again", 1), ("other", 2)):
        text = f"class Base:\n    width = {width}\n\n\nclass Mine(Base):\n    pass\n"
        (tmp_path / f"written_{name}.py").write_text(text, encoding="utf-8")
        codes.append(code_of(importlib.import_module(f"written_{name}").Mine))
    monkeypatch.setattr(torch, "__version__", "9.9")
    codes.append(code_of())
    assert codes[1] == codes[2]
    assert len(set(codes)) == 4
    with caplog.at_level(logging.WARNING):
        code_of(type("Typed", (), {"__module__": "typed_into_a_console"}))
    assert "the source of typed_into_a_console is not known" in caplog.text


def test_pieces_of_another_key_or_name_and_damaged_ones_are_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Store(tmp_path, {"seed": 0})
    kept.put("one", [1, {"a": (1, 2)}], {"x": torch.ones(2)})
    stated, tensors = Store(tmp_path, {"seed": 0}).piece("one", lambda: pytest.fail("it is there"))
    assert (stated, tensors["x"].tolist()) == ([1, {"a": [1, 2]}], [1, 1])
    assert Store(tmp_path, {"seed": 1}).get("one") is None
    path = tmp_path / "one.piece"
    shutil.copy(path, tmp_path / "two.piece")
    assert kept.get("two") is None
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9")
        assert Store(tmp_path, {"seed": 0}).get("one") is None
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert kept.get("one") is None
    assert caplog.text.count("it is made again") == 4
    kept.put("one", 2, {})
    assert kept.get("one") == (2, {})
    kept.clear()
    assert not list(tmp_path.iterdir())


def test_only_the_main_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "deep" / "values.json", {"a": [1]})
    assert (tmp_path / "deep" / "values.json").read_bytes() == b'{\n  "a": [\n    1\n  ]\n}\n'
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    write_json(tmp_path / "values.json", {})
    assert [entry.name for entry in tmp_path.iterdir()] == ["deep"]
