"""What is said where packages are missing: in one line, how to install them. The tools need few."""

import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import torch
from invoking import plain
from torch import nn

from nfn_monomial.tools import __main__ as main_module
from nfn_monomial.tools.experiments import EXTRAS

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CODE = """
import shlex, sys
missing, *lines = sys.stdin.read().splitlines()
for name in missing.split(","):
    sys.modules[name] = None
from nfn_monomial.tools.__main__ import main
for line in lines:
    sys.argv[1:] = shlex.split(line)
    try:
        main()
    except SystemExit as end:
        print("ended with", end.code)
    sys.stdout.flush()
print("imported:", *(name for name, module in sys.modules.items() if module))
"""
BENCH = ",".join({*EXTRAS["bench"]} - {"PIL"})  # which comes with matplotlib
NEEDED = "error: this needs the package {}: pip install 'nfn-monomial[bench]' ended with 2"


def run(missing: str, *lines: str) -> tuple[str, set[str]]:
    """What commands say where these packages are missing, and what is imported at their end."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], input="\n".join((missing, *lines)), text=True, check=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    said, _, modules = plain(done.stdout).partition("imported:")
    return said, set(modules.split())


def test_without_the_command_line_it_is_named() -> None:
    said, _ = run("typer", "compare a b")
    assert "error: nfn-monomial needs the package typer: pip install 'nfn-monomial[tools]'" in said


def test_what_is_missing_is_named_and_the_shipped_predictor_answers_without_it(tmp_path: Path) -> None:
    convolutions = [m for c in (1, 16, 16) for m in (nn.Conv2d(c, 16, 3, stride=2, padding=1), nn.ReLU())]
    net = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    torch.save(net.state_dict(), tmp_path / "net.pt")
    said, modules = run(f"{BENCH},matplotlib", f"predict {tmp_path / 'net.pt'}", "demo", "zoo make", "compare a b")
    assert "predicted test accuracy" in said
    assert said.count(NEEDED.format("lightning_fabric")) == 2
    assert "error: nfn_monomial.tools.compare_checkpoints needs the package matplotlib" in said
    assert "nfn_monomial.tools.predictors.answers" in modules
    assert not modules & {"sympy", "torch._dynamo", "torch_geometric"}


def test_a_fault_of_ours_is_no_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nfn_monomial.tools.cli.application", None)
    with pytest.raises(ModuleNotFoundError):
        main_module.main()


def test_all_packages_of_the_extras_are_known() -> None:
    """By their names on the index, as pyproject.toml has them."""
    index = {name: {d.lower() for d in found} for name, found in packages_distributions().items()}
    for extra, packages in EXTRAS.items():
        asked = {text.partition(">")[0] for text in PROJECT["optional-dependencies"][extra]} - {"nfn-monomial[tools]"}
        assert {d for name in packages for d in index[name]} >= asked, extra
        assert len(packages) == len(asked)
