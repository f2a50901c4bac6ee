"""The application: help and completion that do not wait for torch, version, errors in one line."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from commands import leaves

from nfn_monomial.benchmarks.cli import options
from nfn_monomial.benchmarks.cli.settings import SET_BY_OPTION
from nfn_monomial.benchmarks.experiments import EXPERIMENTS
from nfn_monomial.tools.cli import application

COMMANDS = dict(leaves(typer.main.get_command(application.app)))
WITHOUT_TORCH = """
import contextlib, io, sys
from nfn_monomial.tools.__main__ import main
for line in sys.stdin.read().splitlines():
    sys.argv = ["nfn-monomial", *line.split()]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main()
        except SystemExit as end:
            assert not end.code, line
    assert out.getvalue(), line
    assert "torch" not in sys.modules, line
print("done")
"""


def in_a_process(code: str, lines: str = "", **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], input=lines, capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_and_version_do_not_import_torch() -> None:
    asked = [" ".join(path) + " --help" for path in COMMANDS] + ["--help", "zoo --help", "--version"]
    assert in_a_process(WITHOUT_TORCH, "\n".join(asked)) == "done\n"


def test_completion_does_not_import_torch() -> None:
    code = WITHOUT_TORCH.replace("    assert out.getvalue(), line\n", "    print(out.getvalue(), file=sys.stderr)\n")
    words = {"_NFN_MONOMIAL_COMPLETE": "complete_bash", "COMP_WORDS": "nfn-monomial pre", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], input="\n", capture_output=True, text=True, env=os.environ | words, check=True
    )
    assert done.stdout == "done\n"
    assert "predict-generalization" in done.stderr


def test_commands_stand_in_three_groups() -> None:
    """``train`` and ``predict`` with those for one's own networks."""
    groups: dict[str, list[str]] = {}
    for name, command in typer.main.get_command(application.app).commands.items():  # type: ignore[attr-defined]
        groups.setdefault(command.rich_help_panel, []).append(name)
    assert list(groups) == ["Your networks", "Experiments", "Data"]
    assert groups["Your networks"] == ["symmetries", "compare", "align", "balance", "predict", "train"]
    assert groups["Data"] == ["zoo", "inr"]


def walk(config: Any, prefix: str = "") -> Iterator[str]:
    for name, value in vars(config).items():
        if hasattr(value, "__dataclass_fields__"):
            yield from walk(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_what_has_an_option_is_set_by_it_alone() -> None:
    for presets in (e.presets for e in EXPERIMENTS.values()):
        for key in set(walk(presets["small"])) & set(SET_BY_OPTION):
            with pytest.raises(ValueError, match=f"--set {key}=1: use {SET_BY_OPTION[key]}"):
                options.configured(presets, assignments=[f"{key}=1"])
    keys = {key for e in EXPERIMENTS.values() for key in walk(e.presets["small"])}
    assert set(SET_BY_OPTION) <= keys, "each is a key of some experiment"


def test_configured() -> None:
    presets = EXPERIMENTS["predict-generalization"].presets
    config = options.configured(
        presets,
        "paper",
        ["training.epochs=3", "scales=10,1e6"],
        models="np, hnp",
        seeds=2,
        seed=5,
        devices=2,
        precision=None,
    )
    assert (config.models, config.seeds, config.scales) == (("np", "hnp"), (5, 6), (10.0, 1e6))
    assert (config.training.epochs, config.training.devices, config.training.precision) == (3, 2, "32-true")
    assert options.configured(presets, seed=3).seeds == (3, 4), "as many as the preset has"
    assert options.configured(EXPERIMENTS["cost"].presets, device="cuda").device == "cuda"
    with pytest.raises(ValueError, match="unknown preset 'large': choose from small, tuned, paper"):
        options.configured(presets, "large")
