"""The commands in ``commands.toml`` make the committed results: their configurations are those of the folders."""

from __future__ import annotations

import itertools
import json
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from scripts import script

from nfn_monomial.benchmarks.cli.options import configured
from nfn_monomial.benchmarks.experiments import EXPERIMENTS
from nfn_monomial.benchmarks.settings.training import RUNTIME
from nfn_monomial.benchmarks.studies.predict import recipes_of

remake = script("remake")
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
COMMANDS = tomllib.loads((RESULTS / "commands.toml").read_text(encoding="utf-8"))["results"]
FOLDERS = [name for name in COMMANDS if name != "demo" and (RESULTS / name / "config.json").exists()]


def configuration(command: str) -> Any:
    """What a command asks for."""
    words = shlex.split(command.replace("\\\n", " "))
    name, *rest = words[2:] if words[1] == "bench" else words[1:]
    pairs = list(zip(rest[::2], rest[1::2], strict=True))
    options = dict(pairs)
    numbers = {key: int(options[f"--{key}"]) for key in ("seeds", "seed") if f"--{key}" in options}
    assignments = [value for key, value in pairs if key == "--set"]
    preset, models = options.get("--preset", "small"), options.get("--models")
    return configured(
        EXPERIMENTS[name].presets, preset, assignments, models=models, device=options.get("--device"), **numbers
    )


def asked(command: str) -> dict[str, Any]:
    """The same as JSON has it."""
    read: dict[str, Any] = json.loads(json.dumps(asdict(configuration(command))))
    return read


def kept(name: str, file: str = "config.json") -> Any:
    """What a committed folder says of itself."""
    return json.loads((RESULTS / name / file).read_text(encoding="utf-8"))


def differences(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Names of settings that differ, or that one alone has."""
    for key in (set(a) | set(b)) - set(RUNTIME):
        if isinstance(a.get(key), dict) and isinstance(b.get(key), dict):
            yield from differences(a[key], b[key], f"{prefix}{key}.")
        elif key not in a or key not in b or a[key] != b[key]:
            yield prefix + key


@pytest.mark.parametrize("name", FOLDERS)
def test_the_registered_command_is_that_of_the_folder(name: str) -> None:
    found = list(differences(asked(COMMANDS[name]["command"]), kept(name)["config"]))
    assert not found, f"other settings in {name}: {sorted(found)}"


@pytest.mark.parametrize("name", FOLDERS)
def test_the_data_are_those_of_the_folder(name: str) -> None:
    data = kept(name)["data"].get("path")
    asked_for = [*remake.data_of(COMMANDS[name]["command"])]
    assert not asked_for or data == ", ".join(asked_for)


@pytest.mark.parametrize("name", FOLDERS)
def test_the_data_are_split_as_in_the_folder(name: str) -> None:
    def options(command: str) -> set[str]:
        words = shlex.split(command.replace("\\\n", " "))
        return {value for key, value in itertools.pairwise(words) if key == "--data-option"}

    assert options(COMMANDS[name]["command"]) == options(kept(name)["command"])


@pytest.mark.parametrize("name", [name for name in FOLDERS if kept(name)["config"].get("recipe")])
def test_recipes_are_those_that_the_folder_was_trained_by(name: str) -> None:
    recipes = recipes_of(configuration(COMMANDS[name]["command"]))
    trained = {settings["model"]: settings for settings in kept(name, "results.json")["settings"]}
    for model, settings in trained.items():
        if model in recipes:
            recipe = recipes[model]
            assert settings["loss"] == recipe.loss
            assert recipe.training.items() <= settings["training"].items(), model
            assert dict(recipe.options).items() <= settings["options"].get("model", {}).items(), model


def test_other_commands_are_seen() -> None:
    command, config = COMMANDS["edit-dilate"]["command"], kept("edit-dilate")["config"]
    assert "--seeds 3" in command
    assert list(differences(asked(command.replace("--seeds 3", "--seeds 1")), config)) == ["seeds"]
    assert list(differences(asked(command), {**config, "more": 1})) == ["more"]
    assert list(differences(asked(command), {k: v for k, v in config.items() if k != "task"})) == ["task"]
    assert len(FOLDERS) >= 10
