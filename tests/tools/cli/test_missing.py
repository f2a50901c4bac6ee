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
from versions_of_torch import since_2_13

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
IMAGES = "error: these images come with scikit-learn: pip install 'nfn-monomial[bench]' ended with 2"


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


@since_2_13  # which imports less of itself
def test_what_is_missing_is_named_and_the_shipped_predictor_answers_without_it(tmp_path: Path) -> None:
    convolutions = [m for c in (1, 16, 16) for m in (nn.Conv2d(c, 16, 3, stride=2, padding=1), nn.ReLU())]
    net = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    torch.save(net.state_dict(), tmp_path / "net.pt")
    said, modules = run(f"{BENCH},matplotlib", f"predict {tmp_path / 'net.pt'}", "compare a b")
    assert "predicted test accuracy" in said
    assert "error: nfn_monomial.tools.compare_checkpoints needs the package matplotlib" in said
    assert "nfn_monomial.tools.predictors.answers" in modules
    assert not modules & {"sympy", "torch._dynamo", "torch_geometric"}


def test_commands_for_own_networks_need_nothing_of_the_experiments(tmp_path: Path) -> None:
    nets = [nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)) for _ in range(12)]
    (tmp_path / "runs").mkdir()
    for i, net in enumerate(nets):
        torch.save(net.state_dict(), tmp_path / "runs" / f"{i}.pt")
    table = [f"{i},{float(net[0].weight.sum().detach())}" for i, net in enumerate(nets)]
    (tmp_path / "runs.csv").write_text("\n".join(["name,sum", *table]))
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef net():\n    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))\n"
    )
    runs, net = tmp_path / "runs", f"--net {tmp_path / 'net.py'}:net --input 4,2"
    lines = [
        f"symmetries {runs / '0.pt'} {net} --out {tmp_path / 'symmetries'}",
        f"compare {runs / '0.pt'} {runs / '1.pt'} {net} --out {tmp_path / 'compare'}",
        f"align {runs / '0.pt'} {runs / '1.pt'} {net} --merge 0.5 --out {tmp_path / 'align'}",
        f"balance {runs / '0.pt'} {net} --out {tmp_path / 'balance'}",
        f"train {runs} {net} --targets {tmp_path / 'runs.csv'} --column sum --models stats --epochs 1 --out {tmp_path}",
        f"predict {runs} --predictor {tmp_path / 'predictor.safetensors'}",
    ]
    said, _ = run(BENCH, *lines, "zoo make")
    assert said.count("ended with 0") == len(lines), said
    assert "predicted sum" in said
    assert IMAGES in said


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
