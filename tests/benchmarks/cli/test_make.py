"""The commands that make data."""

from pathlib import Path

import pytest
from invoking import said


@pytest.mark.parametrize("command", ["zoo", "inr"])
@pytest.mark.parametrize("device", ["foo", "cuda:9", "mps"])
def test_devices(command: str, device: str, tmp_path: Path) -> None:
    assert f"device '{device}' is " in said(command, "make", "--out", tmp_path / "zoo", "--device", device, code=2)
    assert not (tmp_path / "zoo").exists()


@pytest.mark.parametrize("option", ["--networks", "--fits", "--steps"])
def test_numbers_below_one_are_named_as_they_were_given(option: str, tmp_path: Path) -> None:
    commands = ("inr", "zoo") if option == "--networks" else ("inr",)
    for command in commands:
        text = said(command, "make", option, 0, "--out", tmp_path / "out", code=2)
        assert f"Invalid value for '{option}'" in text
    assert not (tmp_path / "out").exists()
