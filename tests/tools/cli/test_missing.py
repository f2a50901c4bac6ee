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
import sys
missing, *arguments = sys.stdin.read().split()
for name in missing.split(","):
    sys.modules[name] = None
sys.argv[1:] = arguments
from nfn_monomial.tools.__main__ import main
main()
"""


def run(missing: str, arguments: str, code: int) -> str:
    """What a command says where these packages are missing."""
    done = subprocess.run([sys.executable, "-c", CODE], input=f"{missing} {arguments}", capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return plain(done.stdout + done.stderr)


@pytest.mark.parametrize(
    ("missing", "arguments", "code", "said"),
    [
        (
            "lightning_fabric",
            "params",
            2,
            "error: this needs the package lightning_fabric: pip install 'nfn-monomial[bench]' ",
        ),
        ("typer", "compare a b", 1, "error: nfn-monomial needs the package typer: pip install 'nfn-monomial[tools]' "),
        (
            "matplotlib",
            "compare a b",
            2,
            "error: nfn_monomial.tools.compare_checkpoints needs the package matplotlib",
        ),
    ],
)
def test_a_missing_package_is_named(missing: str, arguments: str, code: int, said: str) -> None:
    assert run(missing, arguments, code).startswith(said)


def test_tuning_says_that_it_needs_optuna(tmp_path: Path) -> None:
    said = run("optuna", f"tune --data {tmp_path} --out {tmp_path / 'out'}", 2)
    assert said == "error: this needs the package optuna: pip install 'nfn-monomial[bench]' "


BENCH = ",".join({*EXTRAS["bench"]} - {"PIL"})  # which comes with matplotlib


@pytest.mark.parametrize("command", ["demo", "zoo make", "params"])
def test_commands_of_the_experiments_say_what_to_install(command: str) -> None:
    line = "error: this needs the package lightning_fabric: pip install 'nfn-monomial[bench]' "
    assert run(BENCH, command, 2) == line


def test_the_shipped_predictor_answers_without_the_experiments(tmp_path: Path) -> None:
    convolutions = [m for c in (1, 16, 16) for m in (nn.Conv2d(c, 16, 3, stride=2, padding=1), nn.ReLU())]
    net = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    torch.save(net.state_dict(), tmp_path / "net.pt")
    assert "predicted test accuracy" in run(BENCH, f"predict {tmp_path / 'net.pt'}", 0)


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
