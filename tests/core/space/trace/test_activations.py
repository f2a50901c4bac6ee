"""One truth about activations: what their rules, their names and they themselves say of scales and signs."""

import pytest
import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace, symmetry_of
from nfn_monomial.nn.activation import _FUNCTIONS
from nfn_monomial.space.trace.operators import pointwise
from nfn_monomial.symmetry import _BY_NAME, Symmetry

X = torch.linspace(-3, 3, 200, dtype=torch.float64)
ARGUMENTS = {"threshold": (0.1, 2.0)}
CAUTIOUS = {"isnan", "isinf", "isfinite", "nan_to_num"}  # what they do with finite numbers alone is something else
KINDS = {
    name: kind
    for names, kind in (
        (pointwise._HOMOGENEOUS, "homogeneous"),
        (pointwise._ODD, "odd"),
        (pointwise._EVEN, "even"),
        (pointwise._ANY_ZERO, "any"),
        (pointwise._ANY, "any"),
        ("abs", "absolute"),
    )
    for name in names.split()
}
COMMUTES = {
    "homogeneous": Symmetry.SCALE, "absolute": Symmetry.SCALE, "odd": Symmetry.SIGN, "linear": Symmetry.MONOMIAL,
    "even": Symmetry.PERMUTATION, "any": Symmetry.PERMUTATION,
}  # fmt: skip
"""What a kind of function commutes with. Even ones let rows flip besides, which no column has to take back."""


def kind_of(function) -> str:
    """What a function does with factors of its argument, seen at numbers."""

    def alike(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)

    y, mirrored = function(X).double(), function(-X).double()
    homogeneous = all(alike(function(c * X).double(), c * y) for c in (0.3, 2.7, 11.0))
    if homogeneous:
        return "linear" if alike(mirrored, -y) else "absolute" if alike(mirrored, y) else "homogeneous"
    return "odd" if alike(mirrored, -y) else "even" if alike(mirrored, y) else "any"


@pytest.mark.parametrize("name", sorted(KINDS.keys() - CAUTIOUS))
def test_rules_say_what_functions_do(name):
    function = getattr(torch.ops.aten, name, None) or getattr(nn.functional, name)
    assert kind_of(lambda x: function(x, *ARGUMENTS.get(name, ()))) == KINDS[name]


@pytest.mark.parametrize("name", sorted(KINDS.keys() & _BY_NAME.keys()))
def test_names_commute_with_what_rules_say(name):
    assert symmetry_of(name) is COMMUTES[KINDS[name]]


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_functions_for_layers_are_what_their_names_say(name):
    function = _FUNCTIONS[name]
    assert symmetry_of(name) is COMMUTES[kind_of(function)]
    if not isinstance(function, nn.Module):
        assert symmetry_of(function) is symmetry_of(name)


@pytest.mark.parametrize("name", ["abs", "cos", "square"])
def test_a_traced_network_has_the_flips_of_rows_besides(name):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(getattr(torch, name)(self.a(x)))

    node = WeightSpace.from_module(Net(), torch.randn(5, 2)).nodes["a"]
    chain = WeightSpace.mlp([2, 4, 1], name).nodes["h1"]
    assert chain.symmetry <= node.symmetry
    assert node.flips
    assert not chain.flips
