"""Operators without a rule, run alone on random tensors: what is kept, and what is not probed."""

import pytest
import torch
from derived_groups import Of, error, permutations, scalings
from deriving import derive
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.trace import interpreter, probe
from nfn_monomial.trace.decomposed import Like
from nfn_monomial.trace.operators import short
from nfn_monomial.trace.probe import Probe, Tie

VECTOR = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def custom(name: str, signature: str, function, mutates=()):
    """An operator of the library ``probed``, whose first output has the shape of its first argument."""
    made = torch.library.custom_op(f"probed::{name}", function, mutates_args=mutates, schema=signature)
    made.register_fake(lambda x, *_: torch.empty_like(x))
    return made


GATED = custom("gated", "(Tensor x, Tensor y) -> Tensor", lambda x, y: x * y.sigmoid())
ROWS = custom("rows", "(Tensor x) -> Tensor", lambda x: x * x.sum(0, keepdim=True).tanh())
PLACED = custom("placed", "(Tensor x) -> Tensor", lambda x: x * torch.arange(1, x.shape[-1] + 1))
CIRCULAR = custom(
    "circular", "(Tensor x, Tensor y) -> Tensor", lambda x, y: sum(x.roll(n, -1) * y[..., n : n + 1] for n in range(2))
)
LARGE = custom(
    "large", "(Tensor x) -> Tensor", lambda x: torch.where(x.abs() > 50, x * torch.arange(1, x.shape[-1] + 1), x)
)
DRAWN = custom("drawn", "(Tensor x) -> Tensor", lambda x: x + torch.rand_like(x))
UNREAD = custom("unread", "(Tensor x, Tensor y) -> Tensor", lambda x, y: x.tanh())


def _of_single_precision(x: Tensor) -> Tensor:
    if x.dtype != torch.float32:
        raise NotImplementedError("a kernel for float32 alone")
    return x.tanh()


SINGLE = custom("single", "(Tensor x) -> Tensor", _of_single_precision)


def probed(operator, *shapes: tuple[int, ...]) -> Probe | None:
    target = getattr(operator, "_opoverload", operator)
    return probe.probe(target, tuple(Like(shape, torch.float32) for shape in shapes), {})


def between(function) -> nn.Module:
    return Of(lambda s, x: s.b(function(s.a(x))), a=nn.Linear(4, 6), b=nn.Linear(6, 3))


def test_what_acts_entry_by_entry_is_recognised():
    assert probed(torch.ops.aten.special_bessel_j0.default, (5, 6)) == Probe(True, ())
    assert probed(PLACED, (5, 6)) == Probe(False, (Tie(((0, 0),), ((0, 0),)),))


def test_large_numbers_are_tried_too():
    assert probed(LARGE, (5, 6)) == Probe(False, (Tie(((0, 0),), ((0, 0),)),))


def test_dimensions_are_permuted_alone_or_together():
    rows, columns = Tie(((0, 0),), ((0, 0),)), Tie(((0, 1),), ((0, 1),))
    assert probed(ROWS, (5, 6)) == Probe(False, (rows, columns))
    across = Tie(((0, 0),), ((0, 1),)), Tie(((0, 1),), ((0, 0),))
    assert probed(torch.ops.aten.linalg_pinv.atol_rtol_tensor, (5, 6)) == Probe(False, across)
    assert probed(GATED, (5, 6), (6,)) == Probe(False, (rows, Tie(((0, 1), (1, 0)), ((0, 1),))))
    assert probed(UNREAD, (5, 6), (6,)) == Probe(False, (rows, columns))


def test_one_order_cannot_follow_two():
    """A circular convolution of two places: shifting either input shifts the output."""
    kept = probed(CIRCULAR, (3, 2), (3, 2))
    assert kept is not None
    assert (0, 1) not in {place for tie in kept.ties for place in tie.outputs}


def test_what_cannot_be_run_alone_is_not_probed():
    assert probed(DRAWN, (5, 6)) is None
    assert probed(SINGLE, (5, 6)) is None
    assert probed(torch.ops.aten.tanh_.default, (5, 6)) is None
    assert probed(torch.ops.aten.special_bessel_j1.default, (2**9, 2**9)) is None
    assert probe.probe(torch.while_loop, (), {}) is None
    whole = Like((5, 6), torch.int64)
    assert probe.probe(torch.ops.aten.special_bessel_j1.default, (whole,), {}) is None


def test_no_random_number_is_taken_from_others():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    probed(DRAWN, (3, 3))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("function", [GATED, ROWS], ids=["two inputs", "rows"])
def test_networks_keep_the_permutations_that_hold(function):
    module = between(lambda h: function(h) if function is ROWS else function(h, h))
    found = derive(module, VECTOR)
    assert (scalings(found), permutations(found), found.origin.unknown) == (0, ["6"], ())
    assert found.origin.probed == (short(str(function._opoverload)),)
    assert "Probed: probed." in WeightSpace.from_module(module, VECTOR).explain()
    assert error(module, found, (VECTOR,)) < 1e-9


def test_an_input_that_the_operator_does_not_read_is_fixed():
    assert permutations(derive(between(lambda h: UNREAD(h, h)), VECTOR)) == []


def test_what_is_permuted_alike_everywhere_is_nested_in_nothing():
    """Channels of two heads that an operator mixes over heads: all heads have one order of channels."""
    mixed = Of(
        lambda s, x: s.b(ROWS(s.a(x).unflatten(-1, (2, 3)).transpose(0, 1)).transpose(0, 1).flatten(1)),
        a=nn.Linear(4, 6),
        b=nn.Linear(6, 3),
    )
    found = derive(mixed, VECTOR)
    assert found.origin.probed == ("probed.rows",)
    assert all(node.parent is None for node in found.nodes.values())
    WeightSpace.from_module(mixed, VECTOR)
    assert error(mixed, found, (VECTOR,)) < 1e-9


def test_the_certificate_refuses_what_a_probe_should_not_have_said(monkeypatch):
    module = between(PLACED)
    assert WeightSpace.from_module(module, VECTOR).origin.probed == ("probed.placed",)
    monkeypatch.setattr(interpreter, "probe", lambda *_: Probe(True, ()))
    with pytest.raises(ValueError, match=r"changes what Of computes.*probed\.placed.*register_operator"):
        WeightSpace.from_module(module, VECTOR)
