"""The table of docs/which-model.md: ``python docs/which_model.py`` asks every registered model, and writes the answers.

A model's class says what it sees and whether it reads mixed architectures (`Model.sees`, `Model.mixed`). Which networks
it reads is tried on small ones, and the symmetry that it claims to respect is measured on them in float64.
"""

from __future__ import annotations

import re

import torch
from tables import RESULTS, ROOT, plain, read_tables
from torch import Tensor

from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.benchmarks.models.catalogue import model_names
from nfn_monomial.errors import MonomialError
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.predictors.architectures import Architecture, PlainCNN
from nfn_monomial.tools.predictors.models import Model, NetworkInfo, build_model, model_class

PAGE = ROOT / "docs" / "which-model.md"
TABLE = re.compile(r"(<!-- models -->\n).*?(<!-- end of models -->)", re.DOTALL)
SIZE = (1, 8, 8)
CHAINS = [PlainCNN((1, n, n), (3, 3), (2, 1), (1, 1), (5, 3), ("relu",) * 3) for n in (4, 6)]
NORMS = ResidualCNN(1, (3, 4), (1, 2), (2, 3, 4), normalised=True, activations=("relu",), classes=3)
ATTENTION = Transformer(1, 8, 4, 4, (2,), 2, (3,), ("relu",), 3)
EXACT = {"group": "group", "permutations": "permutations", "nothing": "nothing"}


def built(name: str, architecture: Architecture) -> tuple[Model, dict[str, Tensor]] | None:
    """Returns a model of networks of this architecture and four of them; None if it refuses them."""
    space = architecture.space
    info = NetworkInfo(space, architecture.activation, architecture.module, SIZE)
    networks = random_networks(space, 4, generator=torch.Generator().manual_seed(0))
    networks = {key: t.abs() + 0.1 if key.endswith("running_var") else t for key, t in networks.items()}
    try:
        model = build_model(name, info, seed=0).double()
        model.fit_inputs(model.prepare_groups([(networks, space)]))
    except MonomialError:
        return None
    return model.eval(), networks


@torch.no_grad()
def reads(name: str, architecture: Architecture) -> bool:
    """Returns True if a model reads networks of this architecture, and respects the symmetry that it claims."""
    pair = built(name, architecture)
    if pair is None:
        return False
    model, networks = pair
    space = architecture.space
    group = space if model.invariant_under == "group" else space.restricted("permutation")
    moved = group.sample(4, scale_range=(1, 100), generator=torch.Generator().manual_seed(1)).act(networks)
    both = {key: torch.cat((tensor, moved[key])) for key, tensor in networks.items()}
    before, after = model(model.prepare_groups([(both, space)])).chunk(2)
    return model.invariant_under == "nothing" or bool((after - before).abs().max() < 1e-8 * before.std())


@torch.no_grad()
def reads_any_width(name: str) -> bool:
    """Returns True if a model of networks of one width answers about networks of another."""
    narrow = built(name, CHAINS[0])
    assert narrow is not None
    wide = random_networks(CHAINS[1].space, 4, generator=torch.Generator().manual_seed(0))
    try:
        return bool(narrow[0](narrow[0].prepare_groups([(wide, CHAINS[1].space)])).isfinite().all())
    except (MonomialError, RuntimeError):
        return False


def costs() -> dict[str, tuple[str, str]]:
    """Label -> parameters, and the time of a training step as a multiple of HNP's, of the committed measurement."""
    tables = read_tables((ROOT / RESULTS / "cost" / "table.md").read_text(encoding="utf-8"))
    table = next(t for t in tables if "relu networks in batches of 64" in t.above)
    lines = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    return {plain(line["model"]): (line["params"], line["time / HNP"]) for line in lines}


def line(name: str) -> str:
    """Returns the table's line of a model that predicts a property of networks."""
    model = model_class(name)
    yes = [reads_any_width(name), model.mixed, reads(name, NORMS) and reads(name, ATTENTION)]
    sees = "runs them" if model.sees == "functions" else "weights"
    answers = ["yes" if answer else "no" for answer in yes]
    cells = (f"`{name}`", model.label, sees, EXACT[model.invariant_under], *answers, *costs().get(model.label, "--"))
    return "| " + " | ".join(cells) + " |"


def table() -> str:
    """Returns the table of all models."""
    header = ("name", "in tables", "sees", "exact under", "any width", "mixed", "norms, attention", "params", "time")
    heads = ["| " + " | ".join(cells) + " |" for cells in (header, ("---",) * len(header))]
    return "\n".join([*heads, *map(line, model_names("generalization"))])


def written(page: str) -> str:
    """Returns the page with the table of today."""
    return TABLE.sub(lambda m: f"{m[1]}\n{table()}\n\n{m[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
