"""Finished work is kept, and taken up again by the same call and code only."""

import importlib
import logging
import shutil
from pathlib import Path

import pytest
import torch
from lightning_fabric.utilities import rank_zero_only

from nfn_monomial.tools.files.atomic import write_json
from nfn_monomial.tools.store import Store, code_of

ROOT = Path(__file__).parents[2]


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
