"""Names and patterns stand for exactly the modules that are meant; the command prints YAML, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import decoders
import fibres
import pytest
import torch
from invoking import invoke, said
from torch import Tensor, nn
from torch.nn import functional as F

from nfn_monomial import WeightSpace
from nfn_monomial.fibre import normal_form
from nfn_monomial.tools.quantisers import recipe_of
from nfn_monomial.tools.quantisers.names import named

BLOCKS = [(f"layers.{n}.norm", [f"layers.{n}.attn.q", f"layers.{n}.attn.k"]) for n in range(12)]
PATHS = [path for one, others in BLOCKS for path in (one, *others)]


@pytest.mark.parametrize(
    ("lines", "others", "found"),
    [
        (BLOCKS, [], [("re:.*norm$", ("re:.*q$", "re:.*k$"))]),
        (BLOCKS, ["norm"], [(r"re:.*\d+\.norm$", ("re:.*q$", "re:.*k$"))]),
        (BLOCKS, ["last.norm", "attn.q"], [(r"re:.*\d+\.norm$", (r"re:.*\d+\.attn\.q$", "re:.*k$"))]),
        (BLOCKS[:1], PATHS[3:], [("layers.0.norm", ("layers.0.attn.q", "layers.0.attn.k"))]),
        ([("last.norm", ["head"])], PATHS, [(r"re:.*last\.norm$", ("re:.*head$",))]),
        # What stands in one block is read in the other: no pattern says which belong together.
        ([(BLOCKS[0][0], BLOCKS[1][1]), (BLOCKS[1][0], BLOCKS[0][1])], [],
         [("layers.0.norm", ("layers.1.attn.q", "layers.1.attn.k")),
          ("layers.1.norm", ("layers.0.attn.q", "layers.0.attn.k"))]),
    ],
)  # fmt: skip
def test_a_pattern_stands_for_exactly_what_is_meant(
    lines: list[tuple[str, list[str]]], others: list[str], found: list[tuple[str, tuple[str, ...]]]
) -> None:
    paths = [*dict.fromkeys([*others, *PATHS, *(path for one, rest in lines for path in (one, *rest))])]
    assert [line[:2] for line in named(lines, paths)] == found


class Mixed(nn.Module):
    """A layer with experts behind one without, whose norms have the same name."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.start, self.end = nn.Linear(3, decoders.WIDTH), nn.Linear(decoders.WIDTH, 2)
        self.layers = nn.ModuleList(nn.Module() for _ in range(2))
        for layer, inner in zip(self.layers, (decoders.MLP(), decoders.Experts()), strict=True):
            layer.norm, layer.mlp = nn.LayerNorm(decoders.WIDTH), inner

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        for layer in self.layers:
            x = x + layer.mlp(layer.norm(x))
        return self.end(x)


def test_blocks_that_differ_are_named_one_by_one() -> None:
    module, inputs = Mixed().eval(), (torch.randn(4, 5, 3),)
    space = WeightSpace.from_module(module, inputs)
    recipe = recipe_of(module, inputs, space, lambda: "not asked", "awq")
    dense, mixture = "layers.0.mlp", "layers.1.mlp"
    assert recipe.arguments["mappings"] == [
        {"smooth_layer": "layers.0.norm", "balance_layers": [f"{dense}.gate_proj", f"{dense}.up_proj"]},
        {"smooth_layer": "re:.*up_proj$", "balance_layers": ["re:.*down_proj$"]},
        {
            "smooth_layer": "layers.1.norm",
            "balance_layers": [
                f"{mixture}.gate",
                *(f"{mixture}.experts.{n}.{w}" for n in range(3) for w in ("w1", "w3")),
            ],
        },
        {"smooth_layer": "re:.*w3$", "balance_layers": ["re:.*w2$"]},
    ]


def test_scales_without_a_line_of_this_kind_are_told() -> None:
    class Convolutions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv1d(2, 4, 1), nn.Conv1d(4, 3, 1), nn.Linear(3, 2)
            self.row = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.b(F.relu(self.a(x)) * self.row[:, None]).mT)

    module, inputs = Convolutions(), (torch.randn(3, 2, 5),)
    space = WeightSpace.from_module(module, inputs)
    recipe = recipe_of(module, inputs, space, lambda: "not asked", "awq")
    assert recipe.arguments == {"mappings": []}
    told = {(found.smooth, found.balance, found.reason) for found in recipe.left_out}
    assert told == {
        (("a",), ("b",), "b is no nn.Linear"),
        (("row",), ("b",), "b is no nn.Linear"),
        (("b",), ("c",), "b is no norm or nn.Linear"),
    }
    assert all(found.error < 1e-12 for found in recipe.left_out)


SOURCE = """
import torch
from torch import nn

def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)), torch.randn(4, 3)
"""


def test_the_command_prints_yaml_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(SOURCE, encoding="utf-8")
    asked = ["symmetries", "--net", "net.py:small", "--format"]
    result = invoke(*asked, "smoothquant", "--out", "out")
    assert result.exit_code == 0, result.output
    text = Path("out/mappings.yaml").read_text(encoding="utf-8")
    lines = [re.sub(r"error \S+", "error #", line) for line in text.splitlines() if line[0] != "#"]
    assert lines == [
        "default_stage:", "  default_modifiers:", "    SmoothQuantModifier:", "      mappings:",
        '        - [["2"], "0"]  # tested error #',
    ]  # fmt: skip
    assert invoke(*asked, "smoothquant").stdout == text
    found = json.loads(invoke(*asked, "awq", "--json").stdout)
    assert found["recipe"] == {"AWQModifier": {"mappings": [{"smooth_layer": "0", "balance_layers": ["2"]}]}}
    torch.save(nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)).state_dict(), "net.pt")
    near = json.loads(invoke("symmetries", "net.pt", *asked[1:], "awq", "--json").stdout)
    assert (near["checkpoint"], near["recipe"]) == ("net.pt", found["recipe"])
    assert "--format gptq: expected smoothquant, awq, spinquant" in said(*asked, "gptq", code=2)


def test_what_cannot_be_run_cannot_be_tested(tmp_path: Path) -> None:
    torch.save({"0.weight": torch.ones(4, 1, 3, 3), "1.weight": torch.ones(2, 4, 3, 3)}, tmp_path / "net.pt")
    told = said("symmetries", tmp_path / "net.pt", "--activation", "relu", "--format", "awq", code=2)
    assert "--format awq tests every line, but" in told


class Normed(nn.Module):
    """A stream with an RMS norm whose gain has a name of its own, or that pixels are put into."""

    def __init__(self, start: nn.Module, gain: str = "weight") -> None:
        super().__init__()
        self.start, self.norm = start, decoders.RMSNorm()
        if gain != "weight":
            self.norm = fibres.RMSNorm(decoders.WIDTH)
        self.mlp, self.head = decoders.MLP(), nn.Linear(decoders.WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        x = x.flatten(2).mT if x.ndim == 4 else x
        x = self.norm(x + self.mlp(x))
        return self.head(x)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Normed(nn.Linear(4, decoders.WIDTH), "gain"), "norm has no weight, but a gain of another name"),
        (lambda: Normed(nn.Linear(4, decoders.WIDTH)), "found 0, 0 and 3"),
        (lambda: Normed(nn.Conv2d(4, decoders.WIDTH, 2)), "start, which writes to the stream, is no nn.Linear"),
    ],
)
def test_streams_that_spinquant_does_not_know_are_named(make: Callable[[], Normed], reason: str) -> None:
    torch.manual_seed(0)
    module = make()
    inputs = (torch.randn(2, 4, 3, 3) if isinstance(module.start, nn.Conv2d) else torch.randn(2, 5, 4),)
    space = WeightSpace.from_module(module, inputs)
    with pytest.raises(ValueError, match="no SpinQuant mapping") as error:
        recipe_of(module, inputs, space, lambda: normal_form(module, inputs), "spinquant")
    assert reason in str(error.value)


def test_weights_that_are_computed_have_no_line() -> None:
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(6, 2))
    module, inputs = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), normed), (torch.randn(4, 3),)
    recipe = recipe_of(module, inputs, WeightSpace.from_module(module, inputs), lambda: "not asked", "awq")
    assert recipe.arguments == {"mappings": []}
