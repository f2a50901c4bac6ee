"""Finished work is taken for finished only if this code made it, of this, and nobody has changed it."""

import importlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nfn_monomial.tools import store
from nfn_monomial.tools.store import Store, code_of

ROOT = Path(__file__).parents[2]
SOURCE = "class Base:\n    width = {width}\n\n\nclass Mine(Base):\n    pass\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that can be imported, and are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("written_")]:
        del sys.modules[name]


def test_all_code_of_the_package_counts(tmp_path: Path) -> None:
    """A score that is computed otherwise is another result, wherever in the package that is."""
    tree = tmp_path / "nfn_monomial"
    shutil.copytree(ROOT / "nfn_monomial", tree)
    for room in ("adapters", "benchmarks"):
        shutil.copytree(ROOT / room, tree / room, ignore=shutil.ignore_patterns("results"))

    def code() -> str:
        command = "import nfn_monomial.tools.store as s; print(s.__file__, s.code_of())"
        where, found = subprocess.run(
            [sys.executable, "-c", command], env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path,
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        assert Path(where).is_relative_to(tree)
        return found

    first = code()
    assert code() == first == code_of(), "wherever the package lies"
    scores = tree / "benchmarks" / "studies" / "predict.py"
    text = scores.read_text(encoding="utf-8")
    assert '"tau": ' in text
    scores.write_text(text.replace('"tau": ', '"tau": -'), encoding="utf-8")
    assert code() != first


def test_torch_and_a_users_own_file_count(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, width in (("first", 1), ("again", 1), ("other", 2)):
        (modules / f"written_{name}.py").write_text(SOURCE.format(width=width), encoding="utf-8")
    first, again, other = (
        code_of(importlib.import_module(f"written_{name}").Mine) for name in ("first", "again", "other")
    )
    assert first == again
    assert len({first, other, code_of()}) == 3
    before = code_of()
    monkeypatch.setattr(store.torch, "__version__", "9.9")
    assert code_of() != before


def test_what_is_in_no_file_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        code_of(type("Typed", (), {"__module__": "typed_into_a_console"}))
    assert "the source of typed_into_a_console is not known" in caplog.text


def test_pieces_are_kept_as_they_were_made(tmp_path: Path) -> None:
    kept = Store(tmp_path / "new", {"seed": 0})
    assert kept.get("one") is None
    made = kept.piece("one", lambda: ([0.1, {"a": (1, 2)}], {"x": torch.arange(3.0).log()}))
    stated, tensors = Store(tmp_path / "new", {"seed": 0}).piece("one", lambda: pytest.fail("it is there"))
    assert stated == made[0] == [0.1, {"a": [1, 2]}]
    assert torch.equal(tensors["x"], made[1]["x"])
    kept.clear()
    assert kept.get("one") is None


def test_pieces_of_another_key_or_name_and_damaged_ones_are_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Store(tmp_path, {"seed": 0})
    kept.put("one", 1, {"x": torch.ones(2)})
    assert Store(tmp_path, {"seed": 1}).get("one") is None
    path = tmp_path / "one.piece"
    shutil.copy(path, tmp_path / "two.piece")
    assert kept.get("two") is None
    monkeypatch.setattr(store, "code_of", lambda: "changed")
    assert Store(tmp_path, {"seed": 0}).get("one") is None
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert kept.get("one") is None
    assert caplog.text.count("it is made again") == 4
    json.dumps(kept.put("one", 2, {})[0])
    assert kept.get("one") == (2, {})
