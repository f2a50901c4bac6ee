"""Files appear whole or not at all; folders for results are folders."""

import os
from pathlib import Path

import pytest
from lightning_fabric.utilities import rank_zero_only

from nfn_monomial.tools.files import partial_path, results_folder, write_atomically, write_json


@pytest.mark.parametrize("where", ["write", "replace"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    path = tmp_path / "deep" / "file.json"
    write_atomically(path, b"old")

    def full(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        if where == "write":
            patch.setattr(Path, "write_bytes", full)
        else:
            patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="no space left"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]
    write_atomically(path, memoryview(b"new"))
    assert path.read_bytes() == b"new"


def test_a_write_that_was_cut_off_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "values.json"
    partial_path(path).write_bytes(b"{")
    write_json(path, {"a": [1]})
    assert path.read_bytes() == b'{\n  "a": [\n    1\n  ]\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_only_the_main_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    write_atomically(tmp_path / "file", b"")
    assert not list(tmp_path.iterdir())


def test_a_folder_for_results_is_not_in_a_file(tmp_path: Path) -> None:
    assert results_folder(str(tmp_path / "not" / "there")) == tmp_path / "not" / "there"
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "a" / "b"):
        with pytest.raises(ValueError, match="file is a file: give a folder for the results"):
            results_folder(path)
