"""The commands in ``commands.toml`` make the committed results: their configurations are those of the folders."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from nfn_monomial.benchmarks.cli.options import configured
from nfn_monomial.benchmarks.experiments import EXPERIMENTS
from nfn_monomial.benchmarks.settings.training import RUNTIME

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
COMMANDS = tomllib.loads((RESULTS / "commands.toml").read_text(encoding="utf-8"))["results"]
FOLDERS = [name for name in COMMANDS if name != "demo" and (RESULTS / name / "config.json").exists()]
ELSEWHERE = {("predict-fresh", "recipe"), ("predict-fresh200", "recipe")}
"""What those who made a folder had otherwise: recipes that were shipped later, read from the folder of the search."""


def asked(command: str) -> dict[str, Any]:
    """The configuration that a command asks for, as JSON has it."""
    words = shlex.split(command.replace("\\\n", " "))
    name, *rest = words[2:] if words[1] == "bench" else words[1:]
    pairs = list(zip(rest[::2], rest[1::2], strict=True))
    options = dict(pairs)
    numbers = {key: int(options[f"--{key}"]) for key in ("seeds", "seed") if f"--{key}" in options}
    assignments = [value for key, value in pairs if key == "--set"]
    preset, models = options.get("--preset", "small"), options.get("--models", "")
    config = configured(
        EXPERIMENTS[name].presets, preset, assignments, models=models, device=options.get("--device"), **numbers
    )
    read: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return read


def differences(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Names of settings that both have, and that differ."""
    for key in set(a) & set(b) - set(RUNTIME):
        if isinstance(a[key], dict) and isinstance(b[key], dict):
            yield from differences(a[key], b[key], f"{prefix}{key}.")
        elif a[key] != b[key]:
            yield prefix + key


@pytest.mark.parametrize("name", FOLDERS)
def test_the_registered_command_is_that_of_the_folder(name: str) -> None:
    config = json.loads((RESULTS / name / "config.json").read_text(encoding="utf-8"))["config"]
    found = {(name, key) for key in differences(asked(COMMANDS[name]["command"]), config)}
    assert found <= ELSEWHERE, f"other settings in {name}: {sorted(found)}"


def test_another_number_of_seeds_is_seen() -> None:
    config = json.loads((RESULTS / "paper-zoo" / "config.json").read_text(encoding="utf-8"))["config"]
    command = COMMANDS["paper-zoo"]["command"]
    assert "--seeds 2" in command
    assert list(differences(asked(command.replace("--seeds 2", "--seeds 1")), config)) == ["seeds"]
    assert len(FOLDERS) > 20
