"""What a definition is made of: example inputs by position and by keyword."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nfn_monomial.running import answers
from nfn_monomial.tools.definitions.define import Definition, define, read_definition


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, factor: float | None = None, mask: Tensor | None = None) -> Tensor:
        x = self.first(x).relu()
        return self.last(x if mask is None else x * mask) * (1 if factor is None else factor)


class ByName(Masked):
    def forward(self, *, mask: Tensor, **more: Any) -> Any:  # type: ignore[override]
        return super().forward(more["x"], more.get("factor"), mask)


class OfADict(Masked):
    def forward(self, batch: dict[str, Tensor]) -> Any:  # type: ignore[override]
        return super().forward(batch["x"], None, batch["mask"])


def given() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"mask": torch.rand(5, 4, generator=generator), "x": torch.randn(5, 3, generator=generator)}


def check(definition: Definition, expected: Tensor) -> None:
    module = copy.deepcopy(definition.template())
    tensors = dict(module.named_parameters())
    torch.testing.assert_close(answers(module, tensors, definition.inputs)[0], expected)
    assert definition.read == set(definition.shapes) == {"first.weight", "first.bias", "last.weight", "last.bias"}
    assert not isinstance(definition.normal_form, str)
    assert definition.space.group_dimension == 4
    moved = definition.space.sample(scale_range=(0.1, 10)).act({name: t.detach() for name, t in tensors.items()})
    torch.testing.assert_close(answers(module, moved, definition.inputs)[0], expected)


KINDS: list[tuple[Callable[[], nn.Module], Callable[[], Any]]] = [
    (Masked, given),
    (Masked, lambda: ((given()["x"],), {"mask": given()["mask"]})),
    (Masked, lambda: (given()["x"], None, given()["mask"])),
    (ByName, given),
    (OfADict, given),
]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch, where a program is copied
@pytest.mark.parametrize(("kind", "inputs"), KINDS)
def test_inputs_by_keyword(kind: Callable[[], nn.Module], inputs: Callable[[], Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = kind()
    arguments = given()
    with torch.no_grad():
        expected = module(arguments) if kind is OfADict else module(**arguments)
        definition = define(module, inputs())
        check(definition, expected)
        torch.testing.assert_close(module(arguments) if kind is OfADict else module(**arguments), expected)
    if kind is not OfADict:
        keywords = {"args": (arguments["x"],), "kwargs": {"mask": arguments["mask"]}}
        keywords = keywords if kind is Masked else {"args": (), "kwargs": arguments}
        torch.export.save(torch.export.export(kind(), **keywords), tmp_path / "net.pt2")  # type: ignore[arg-type]
        program = read_definition(str(tmp_path / "net.pt2"))
        with torch.no_grad():
            check(program, program.template()(*program.inputs))


def test_a_function_beside_a_class_gives_arguments_by_keyword(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    text = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.only = nn.Linear(3, 2)

    def forward(self, *, ids, scale):
        return self.only(ids) * scale

def example_inputs():
    return {"scale": torch.ones(2), "ids": torch.randn(4, 3)}
"""
    path.write_text(text, encoding="utf-8")
    definition = read_definition(f"{path}:Net")
    assert [t.shape for t in definition.inputs] == [(4, 3), (2,)] or [t.shape for t in definition.inputs] == [
        (2,),
        (4, 3),
    ]
    module = definition.template()
    assert answers(module, dict(module.named_parameters()), definition.inputs)[0].shape == (4, 2)
