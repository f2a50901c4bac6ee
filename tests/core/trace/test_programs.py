"""Programs with more than tensors of known sizes: branches, masks, numbers read from tensors, rules that do not fit."""

import pytest
import torch
from derived_groups import Of, permutations, scalings
from deriving import derive
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.trace.operators import OPERATORS

VECTOR = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def between(function, **parts) -> nn.Module:
    """``b(function(s, a(x)))`` over 6 neurons."""
    return Of(lambda s, x: s.b(function(s, s.a(x))), a=nn.Linear(4, 6), b=nn.Linear(6, 3), **parts)


def test_control_flow_without_a_rule_is_reported():
    def function(s, x):
        rows = torch.while_loop(lambda n, h: n < 3, lambda n, h: (n + 1, h.tanh()), (torch.tensor(0), s.a(x)))
        return s.b(rows[1])

    found = derive(Of(function, a=nn.Linear(4, 6), b=nn.Linear(6, 3)), VECTOR)
    assert permutations(found) == []
    assert found.origin.unknown == ("while_loop",)


def test_a_dynamic_batch_is_that_of_the_example():
    module = between(lambda s, h: h.relu().view(h.shape[0], 2, 3).flatten(1)).eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (VECTOR,), dynamic_shapes=((({0: batch},),)), strict=False)
    assert scalings(derive(program)) == 6
    assert WeightSpace.from_module(program).group_dimension == 6


BROKEN = {
    "it raises": (lambda run, x: x.dims[99], "tuple index out of range"),
    "a shape": (lambda run, x: run.reduce(x, (1,)), "shapes ((5,),) in place of ((5, 6),)"),
    "several": (lambda run, x: (x, x), ""),
    "nothing": (lambda run, x: None, ""),
    "half done": (lambda run, x: run.unary(run.regrouped(x, (5, 2, 3)), "homogeneous"), "shapes ((5, 2, 3),)"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_rule_that_does_not_fit_is_none_and_is_reported(name, monkeypatch):
    rule, message = BROKEN[name]
    monkeypatch.setitem(OPERATORS, "tan", OPERATORS["tan"]._replace(rule=rule))
    found = derive(between(lambda s, h: h.tan()), VECTOR)
    assert (scalings(found), permutations(found)) == (0, [])
    (unknown,) = found.origin.unknown
    assert unknown.startswith(f"tan (its rule did not fit: {message}")
    assert any("did not fit" in loss.reason for loss in found.origin.losses)


def test_an_operator_without_a_rule_is_what_its_parts_are(monkeypatch):
    module = Of(lambda s, x: s.b(nn.functional.glu(s.a(x))), a=nn.Linear(4, 6), b=nn.Linear(3, 2))
    found = derive(module, VECTOR)
    assert (scalings(found), permutations(found), found.origin.unknown) == (3, ["3"], ())
    assert {op for node in found.origin.nodes for op in node.operations} >= {"glu"}
    monkeypatch.delitem(OPERATORS, "sigmoid")
    found = derive(module, VECTOR)
    assert (scalings(found), permutations(found), found.origin.unknown, found.origin.probed) == (3, ["3"], (), ("glu",))
    assert any(loss.operation == "glu" and loss.reason == "no rule for sigmoid" for loss in found.origin.losses)
    monkeypatch.setitem(OPERATORS, "glu", OPERATORS["relu"])  # its own rule goes first, and has another shape
    assert "its rule did not fit" in derive(module, VECTOR).origin.unknown[0]


def test_an_output_that_a_rule_does_not_know_must_not_be_read():
    module = between(lambda s, h: h * torch.ops.aten.native_layer_norm(h, [6], None, None, 0.1)[1])
    found = derive(module, VECTOR)
    assert permutations(found) == []
    assert "an output is read of which it says nothing" in found.origin.unknown[0]


WRONG = {
    "gelu": ("relu", lambda s, h: nn.functional.gelu(h)),
    "relu": ("neg", lambda s, h: h.relu()),
    "tanh": ("relu", lambda s, h: h.tanh()),
    "cos": ("sin", lambda s, h: h.cos()),
    "add": ("mul", lambda s, h: h.relu() + h.abs()),
    "amax": ("sum", lambda s, h: h.amax(0, True)),
    "cumsum": ("softmax", lambda s, h: h.cumsum(1)),
    "softmax": ("neg", lambda s, h: h.softmax(1)),
    "index_select": ("neg", lambda s, h: h.index_select(1, torch.tensor([1, 0, 2, 5, 4, 3]))),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_certificate_refuses_the_rule_of_another_operator(name, monkeypatch):
    other, function = WRONG[name]
    module = between(function)
    WeightSpace.from_module(module, VECTOR)
    monkeypatch.setitem(OPERATORS, name, OPERATORS[other])
    with pytest.raises(ValueError, match=f"changes what Of computes.* through .*{name}.*register_operator"):
        WeightSpace.from_module(module, VECTOR)
