"""Examples of the pages on own networks: ``python docs/own_networks.py FOLDER`` writes their file and networks there.

Without a folder the pages are written anew: after every block of a command what it prints, numbers as the machine
rounds them that writes them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from nfn_monomial import WeightSpace, normal_form
from nfn_monomial.tools.cli.application import app

DOCS = Path(__file__).parent
PAGE = DOCS / "own-networks.md"  # which has the file that all of them use
PAGES = [PAGE, *(DOCS / f"{name}.md" for name in ("compare", "families", "align", "balance"))]
IMAGES = DOCS / "images"
PICTURES = {
    "own-symmetries.svg": "results/symmetries/symmetries.svg",
    "own-compare.png": "results/compare/compare.png",
    "own-family.png": "results/family/family.png",
    "own-barrier.png": "results/align/barrier.png",
}
FAMILY = ("a", "a-moved", "a-tuned", "b", "c", "c-pruned")
COMMAND = re.compile(r"```sh\n(nfn-monomial [^\n]*)\n```\n\n```text\n.*?```", re.DOTALL)


def make_networks(folder: Path, page: str, epochs: int = 8) -> None:
    """Write digits.py as the page has it, and the networks of its examples."""
    code = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Digits" in code)
    (folder / "digits.py").write_text(code, encoding="utf-8")
    digits = _module(folder / "digits.py")
    (folder / "family").mkdir(exist_ok=True)
    for seed, name in enumerate("abc"):
        torch.manual_seed(seed)
        net = digits.Digits()
        _train(net, digits, epochs)
        space = WeightSpace.from_module(net, digits.example_inputs())
        generator = torch.Generator().manual_seed(seed)
        trained = {key: t.clone() for key, t in net.state_dict().items()}
        _train(net, digits, 1)
        variants = {
            name: trained,
            f"{name}-moved": space.sample(scale_range=(1, 100), generator=generator).act(trained),
            f"{name}-tuned": space.sample(scale_range=(1, 100), generator=generator).act(dict(net.state_dict())),
        }
        if name == "c":  # a copy without the smaller half of its weights
            pruned = {k: t * (t.abs() > t.abs().median()) if t.ndim > 1 else t for k, t in trained.items()}
            variants["c-pruned"] = pruned
        for variant, state in variants.items():
            _save(state, folder / f"{variant}.safetensors")
            if variant in FAMILY:
                shutil.copy(folder / f"{variant}.safetensors", folder / "family")

    torch.manual_seed(0)
    rows = digits.Rows().eval()
    form = normal_form(rows, digits.example_inputs())
    moved = form.sample(rows.state_dict(), generator=torch.Generator().manual_seed(0))
    _save(rows.state_dict(), folder / "rows.safetensors")
    _save(moved, folder / "rows-moved.safetensors")


def written(page: str, folder: Path) -> str:
    """The page with what its commands print in that folder."""

    def run(found: re.Match[str]) -> str:
        with contextlib.chdir(folder):
            done = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "110"}).invoke(app, shlex.split(found[1])[1:])
        if done.exit_code:
            raise RuntimeError(f"{found[1]}: {done.output}")
        text = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
        return f"```sh\n{found[1]}\n```\n\n```text\n{text}\n```"

    return COMMAND.sub(run, page)


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("digits", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _train(net: nn.Module, digits: Any, epochs: int) -> None:
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(1200).split(50):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(digits.IMAGES[batch]), digits.CLASSES[batch]).backward()
            optimiser.step()


def _save(state: dict[str, Tensor], path: Path) -> None:
    safetensors.torch.save_file({key: t.contiguous() for key, t in state.items()}, path)


def main() -> None:
    """Writes the networks into a folder; or pages and pictures."""
    if sys.argv[1:]:
        place = Path(sys.argv[1])
        place.mkdir(parents=True, exist_ok=True)
        make_networks(place, PAGE.read_text(encoding="utf-8"))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_networks(folder, PAGE.read_text(encoding="utf-8"))
        for page in PAGES:
            page.write_text(written(page.read_text(encoding="utf-8"), folder), encoding="utf-8")
        for name, path in PICTURES.items():
            shutil.copy(folder / path, IMAGES / name)


if __name__ == "__main__":
    main()
