"""Kinds of matrices on nodes: candidates by charges, survivors by gradients, and the matrices that they give."""

import functools

import pytest
import torch
from fibres import CASES, generic
from torch import Tensor, nn

from nfn_monomial import Axis, Symmetry, WeightSpace, normal_form
from nfn_monomial.fibre.kinds import Linear, Rotary, Rotation, Turn, fold, places_of, stacked
from nfn_monomial.fibre.slopes import Slopes
from nfn_monomial.space.nodes import Node
from nfn_monomial.space.packing import pieces
from nfn_monomial.space.places import Place
from nfn_monomial.verify import Point


class Bottleneck(nn.Module):
    """Two linear maps, and between them nothing, or what commutes with signs, scales and permutations alone."""

    def __init__(self, linear: bool) -> None:
        super().__init__()
        self.first, self.second, self.linear = nn.Linear(5, 3), nn.Linear(3, 6), linear

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out: Tensor = self.second(h if self.linear else h * h.abs() / h.abs().mean(1, keepdim=True))
        return out


@pytest.mark.parametrize("linear", [True, False])
def test_a_candidate_by_charges_acts_if_it_survives_all_gradients(linear: bool) -> None:
    module, inputs = Bottleneck(linear), torch.randn(2, 7, 5)
    space = WeightSpace.from_module(module, inputs)
    (candidate,) = Linear.candidates(space, places_of(space))
    assert {place.writes for place in candidate.places} == {True, False}
    generator = torch.Generator().manual_seed(0)
    points = [point for point, _ in Point.of(module, (inputs,)).neighbours(generator, 3)]
    slopes = Slopes(space, points, {})
    assert slopes.survivors([candidate]) == [candidate] * linear


@functools.cache
def made(name: str) -> tuple[list[Turn], WeightSpace, dict[str, Tensor]]:
    """Matrices on the space of normal forms, and random pieces of networks there, some of which are moved already."""
    torch.manual_seed(0)
    module = CASES[name].module()
    form = normal_form(module, CASES[name].inputs())
    state = generic(module, torch.Generator().manual_seed(0))
    tensors = {n: t[None].double() for n, t in form({n: state[n] for n in form.whole.parameters}).items()}
    x = pieces(form.space, {n: t + torch.randn_like(t) for n, t in tensors.items()}, form.space.sizes())
    return form.turns, form.space, x


NAMES = ["attention", "grouped queries", "rms norm", "layer norm", "rotary", "Llama, two pairs"]


@pytest.mark.parametrize("name", NAMES)
def test_random_matrices_come_with_their_inverse(name: str) -> None:
    turns, space, _ = made(name)
    assert turns
    for turn in turns:
        centred = isinstance(turn, Rotation) and turn.centred
        if not centred:  # on a space that has one coordinate more
            matrix, inverse = turn.random(space, 2, torch.Generator().manual_seed(0))
            one = torch.eye(matrix.shape[-1], dtype=torch.float64).expand_as(matrix)
            torch.testing.assert_close(matrix @ inverse.mT, one, rtol=0, atol=1e-10)


def test_centred_rotations_leave_the_mean_alone() -> None:
    space = WeightSpace({"h": (Symmetry.PERMUTATION, 4)}, {"w": (Axis("h"), 3)})
    rotation, inverse = Rotation("h", (), True).random(space, 2, None)
    torch.testing.assert_close(rotation @ torch.ones(4, 1).double(), torch.ones(2, 4, 1).double())
    torch.testing.assert_close(rotation, torch.linalg.inv(inverse).mT)


@pytest.mark.parametrize("name", NAMES)
def test_the_nearest_matrix_finds_the_one_that_moved_rows(name: str) -> None:
    turns, _, x = made(name)
    for turn in turns:
        rows = stacked(x, turn.places)
        product = torch.randn(rows.shape[-2], rows.shape[-2], dtype=torch.float64).expand(*rows.shape[:-1], -1)
        orthogonal = turn.nearest(product)
        torch.testing.assert_close(turn.nearest((orthogonal @ rows) @ rows.mT), orthogonal, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_the_normal_form_is_reached_and_stays(name: str) -> None:
    turns, _, x = made(name)
    for turn in turns:
        once = turn.moved(x, *turn.normal(x))
        twice = turn.moved(once, *turn.normal(once))
        for piece in {place.piece for place in turn.places}:
            torch.testing.assert_close(twice[piece].abs(), once[piece].abs(), rtol=0, atol=1e-8)
        if isinstance(turn, Linear):
            grams = [(rows := stacked(once, turn.side(writes))) @ rows.mT for writes in (True, False)]
            torch.testing.assert_close(*grams, rtol=0, atol=1e-8)
        if isinstance(turn, Rotary):
            sizes = [stacked(once, turn.side(writes)).square().sum() for writes in (True, False)]
            torch.testing.assert_close(*sizes)


def test_matrices_act_along_an_axis_in_each_item_that_it_is_nested_in() -> None:
    place = Place("w", Axis("inner", 1), (0, 2))
    x, matrix = torch.randn(5, 2, 3, 4), torch.randn(5, 2, 6, 4)
    torch.testing.assert_close(place.turned(x, matrix), torch.einsum("bhmn,bhrn->bhrm", matrix, x))
    torch.testing.assert_close(place.scaled(x, matrix[:, :, 0]), x * matrix[:, :, 0, None])


def test_what_is_left_of_the_charges_leaves_a_folded_gain_alone() -> None:
    """A norm's gain on a stream: ``d_k = d_0^...`` takes it over, and readers that were divided by it no longer are."""
    monomial = Symmetry.MONOMIAL
    space = WeightSpace(
        {"in": (Symmetry.FIXED, 3), "h": Node((Symmetry.PERMUTATION, monomial, monomial), 4)},
        {
            "writer": (Axis("h", (0, 0, 1)), Axis("in")),
            "gain": (Axis("h", (0, 1, -1)),),
            "reader": (Axis("in"), Axis("h", (0, -1, 0))),
        },
    )
    gains, charges = fold(space, places_of(space)["h"])
    ((place, gauge, powers),) = [gain for gain in gains if gain.place.piece == "gain"]
    assert (place.piece, gauge) == ("gain", 1)
    assert {other.piece: power for other, power in powers} == {"reader": 1}
    left = {place.charge: now for place, (now, _) in charges.items()}
    assert left == {(0, 0, 1): (0, 0, 1), (0, 1, -1): (0, 0, 0), (0, -1, 0): (0, 0, -1)}
