"""Each pass alone, on a residual block: what is tied, what is demanded, and both in words."""

import contextlib
import dataclasses
import io
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nfn_monomial.symmetry import Symmetry
from nfn_monomial.trace import Equations, Gauges, Ties, demand, program_of, tie
from nfn_monomial.trace.graph import Program

PAGE = Path(__file__).parents[3] / "docs" / "any-network.md"


class Residual(nn.Module):
    """A stream of 4 channels, and one branch of 5 neurons that reads it and adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.up, self.down, self.leave = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.enter(x)
        return self.leave(stream + self.down(torch.relu(self.up(stream))))


class Heads(nn.Module):
    """Two heads of three channels, and a parameter that is the concatenation of two."""

    def __init__(self) -> None:
        super().__init__()
        self.qk, self.out = nn.Linear(3, 12), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (part.unflatten(-1, (2, 3)).transpose(-3, -2) for part in self.qk(x).chunk(2, -1))
        return self.out((q @ k.mT).softmax(-1).mean(-3))


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of(Residual(), torch.ones(2, 3))


@pytest.fixture(scope="module")
def ties(program: Program) -> Ties:
    return tie(program)


def classes(ties: Ties, name: str) -> list[int]:
    """The classes that a parameter's dimensions run over, for one without sums and products."""
    return [ties.find(dim[0].indices[0].atom) for dim in ties.parameters[name].dims]


def test_a_residual_connection_ties_its_stream_and_nothing_else(ties: Ties) -> None:
    stream = classes(ties, "enter.bias")[0]
    assert (
        classes(ties, "up.weight")[1] == classes(ties, "down.weight")[0] == classes(ties, "leave.weight")[1] == stream
    )
    assert classes(ties, "up.weight")[0] == classes(ties, "down.weight")[1] != stream
    assert ties.cause(stream) is None
    assert ties.cause(classes(ties, "enter.weight")[1]) == ("x", "input")
    assert ties.cause(classes(ties, "leave.bias")[0]) == ("y", "output")
    assert ties.parents == {}


def test_ties_are_printed_as_sums_of_products_of_index_sets(ties: Ties) -> None:
    assert str(ties).splitlines()[2:6] == [
        "up.weight     (up, enter)",
        "up.bias       (up)",
        "down.weight   (enter, up)",
        "down.bias     (enter)",
    ]
    assert str(ties).splitlines()[-1] == "x             size 3, FIXED by x: input"
    heads = str(tie(program_of(Heads(), torch.ones(2, 4, 3)))).splitlines()
    assert "qk.bias     (qk*qk_2 + qk*qk_2)" in heads
    assert "qk_2        size 3, nested in qk" in heads


def test_the_first_pass_demands_nothing_and_the_second_changes_no_ties(program: Program) -> None:
    ties = tie(program)
    before = str(ties)
    first, second = demand(program, ties), demand(program, ties)
    assert first.demands == second.demands
    assert str(ties) == before == str(tie(program))
    with pytest.raises(dataclasses.FrozenInstanceError):
        ties.parents = {}  # type: ignore[misc]


def test_equations_name_the_operation_that_demands_them(program: Program, ties: Ties) -> None:
    lines = str(demand(program, ties)).splitlines()
    assert "up: linear: enter.weight[0] + up.weight[1] = 0 in scale and sign" in lines
    assert "relu: up.weight[0] = 0 in sign (positively homogeneous, not odd)" in lines
    assert "add: enter.weight[0] = down.weight[0] in scale and sign" in lines
    assert "y: leave.weight[0] = 0 in scale and sign (output)" in lines


def test_solutions_of_the_equations_are_the_gauges(program: Program, ties: Ties) -> None:
    equations = demand(program, ties)
    by_class = Gauges(ties, equations).by_class
    (stream,), (neurons,) = (by_class[classes(ties, name)[0]] for name in ("enter.bias", "up.bias"))
    assert (stream.symmetry, neurons.symmetry) == (Symmetry.MONOMIAL, Symmetry.SCALE)
    charges = {str(equations.unknowns[u]): q for u, q in neurons.charges.items()}
    assert charges == {"up.weight[0]": 1, "up.bias[0]": 1, "down.weight[1]": -1}


def test_an_equation_less_is_a_gauge_more(program: Program, ties: Ties) -> None:
    equations = demand(program, ties)
    outputs = classes(ties, "leave.bias")[0]
    assert Gauges(ties, equations).by_class[outputs] == []
    free = Equations(equations.unknowns, [d for d in equations.demands if d.operation != "y"])
    assert [gauge.symmetry for gauge in Gauges(ties, free).by_class[outputs]] == [Symmetry.MONOMIAL]


def test_the_page_prints_these_gauges() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## How a residual block gets its gauges\n")[1]
    code, printed = (re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)[0] for kind in ("python", "text"))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {"__name__": "page"})
    assert out.getvalue().endswith(f"\n\n{printed}")
    steps = section.split(f"```text\n{printed}")[0]
    for said in re.findall(r"`([\w.]+\[\d\][^`]*)`", steps):
        assert said in out.getvalue(), said
