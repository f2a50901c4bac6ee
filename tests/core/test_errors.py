"""Wrong calls of every public name of the core: an error of ours, or an answer that means something.

A new public name needs a `Call`: in `calls_of_layers` what is built on spaces, in `calls_of_spaces` all else.
"""

import copy
import gc
import weakref

import calls_of_layers
import calls_of_spaces
import pytest
import torch
from calls_of_layers import TEMPLATE_NETS
from calls_of_spaces import MATRIX, NET, NETS, PACKED, RELU, SINE, SINES
from wrong_calls import faults, uncovered

import nfn_monomial
from nfn_monomial import (
    EquivariantLinear,
    GroupElement,
    MonomialError,
    MonomialMatrix,
    ProbeFeatures,
)

CALLS = calls_of_spaces.CALLS | calls_of_layers.CALLS
TAKES = calls_of_spaces.TAKES | calls_of_layers.TAKES
MODULES = (
    nfn_monomial,
    nfn_monomial.alignment,
    nfn_monomial.nn,
    nfn_monomial.models,
    nfn_monomial.canonical,
    nfn_monomial.fibre,
    nfn_monomial.read,
    nfn_monomial.basis,
    nfn_monomial.space,
)


# Records that are answers, and no arguments:
RESULTS = (
    "Alignment", "CommonFrame", "Comparison", "End", "FibreComparison", "Kinship", "LayerDistance", "Link",
    "NodeKinship", "Piece", "SharedScale", "SharedTurn",
)  # fmt: skip


def test_wrong_calls_are_errors_of_ours_or_mean_something():
    count, found = faults(CALLS, TAKES)
    assert not found, "\n".join(found)
    assert count > 10_000


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_is_called_wrongly(module):
    assert set(uncovered(module, CALLS)) <= set(RESULTS)


LINEAR = EquivariantLinear(RELU, 1, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MATRIX.act(torch.ones(2, 3, dtype=torch.int64), 1), "torch.int64 would be rounded; convert"),
        (lambda: RELU.sample(sizes={"h2": 4}), "sizes= has h2; nodes of"),
        (lambda: RELU.sample(2).act(SINE.pack(SINES)), "cannot act on features of another space"),
        (lambda: ProbeFeatures(NET, 2)({n: x * torch.nan for n, x in TEMPLATE_NETS.items()}), "0.weight holds 12 NaN"),
        (lambda: RELU.pack({**NETS, "bias.0": None}), "bias.0 must be a dense tensor, found None"),
        (lambda: LINEAR(PACKED), "the networks are torch.float64, the parameters of the layer torch.float32"),
        (
            lambda: copy.deepcopy(LINEAR).to("meta")(PACKED.map(torch.Tensor.float)),
            "the networks are on cpu, the parameters",
        ),
        (lambda: MonomialMatrix.random(6, "relu", blocks=4), "6 neurons do not lie evenly in 4 blocks"),
    ],
)
def test_messages_name_what_and_why(call, message):
    with pytest.raises(MonomialError, match=message):
        call()


def test_autocast_sees_to_dtypes_itself():
    with torch.autocast("cpu", torch.bfloat16):
        assert LINEAR(PACKED.map(torch.Tensor.bfloat16)).tensors[0].dtype is torch.bfloat16


def test_elements_of_a_smaller_group_act_on_features():
    for smaller in (RELU.restricted("permutation"), RELU.uncharged()):
        element = RELU.restricted("permutation").sample(2, generator=torch.Generator().manual_seed(0))
        found = GroupElement(smaller, element.matrices).act(PACKED)
        expected = RELU.pack(element.act(NETS))
        assert all(torch.equal(a, b) for a, b in zip(found.tensors, expected.tensors, strict=True))


def test_what_calls_is_freed_when_it_returns():
    def calls() -> weakref.ref[torch.Tensor]:
        large = torch.ones(3)
        RELU.sample(2, generator=torch.Generator())
        return weakref.ref(large)

    gc.disable()
    try:
        assert calls()() is None
    finally:
        gc.enable()
