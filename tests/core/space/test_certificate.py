"""The certificate: an example is enough to be sure that the group keeps what a module computes, or to refuse it."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nfn_monomial import Symmetry, WeightSpace
from nfn_monomial.space.certificate import certify, largest_change
from nfn_monomial.space.trace import OPERATORS, register_operator
from nfn_monomial.testing import assert_function_preserved


def between(*modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), *modules, nn.Linear(4, 4))


def chain(symmetry: str) -> WeightSpace:
    """A space for `between` that someone wrote out by hand."""
    return WeightSpace.sequential([4, 4, 4], [(), ()], symmetry, names=[("0.weight", "0.bias"), ("2.weight", "2.bias")])


def inner_chain(symmetry: str) -> WeightSpace:
    """The same for a `between` that is a part, ``layers``."""
    names = [("layers.0.weight", "layers.0.bias"), ("layers.2.weight", "layers.2.bias")]
    return WeightSpace.sequential([4, 4, 4], [(), ()], symmetry, names=names)


class Residual(nn.Module):
    """``x + b(relu(a(x)))``: what leads in and out of it must share their neurons."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, 5), nn.Linear(5, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(F.relu(self.a(x)))


def test_a_residual_block_taken_for_a_chain_is_refused() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 3)
    module = nn.Sequential(nn.Linear(3, 4), Residual(4), nn.Linear(4, 2))
    names = [("0.weight", "0.bias"), ("1.a.weight", "1.a.bias"), ("1.b.weight", "1.b.bias"), ("2.weight", "2.bias")]
    for symmetry in ("relu", "permutation"):
        wrong = WeightSpace.sequential([3, 4, 5, 4, 2], [()] * 4, symmetry, names=names)
        with pytest.raises(
            ValueError, match=r"changes what Sequential computes .* through (what of )?h1; (what of )?h3"
        ):
            certify(module, x, wrong.sample)
        for p in module[1].b.parameters():  # a fresh branch that adds nothing yet
            nn.init.zeros_(p)
        with pytest.raises(ValueError, match="changes what Sequential computes"):
            certify(module, torch.zeros(1, 3), wrong.sample)
    right = WeightSpace.from_module(module, x)
    assert_function_preserved(module.double(), right, x.double())


def test_a_symmetry_that_activations_do_not_have_is_found_on_an_example() -> None:
    x = torch.randn(6, 4)
    for symmetry in ("sign", "linear"):
        with pytest.raises(ValueError, match=r"changes what Sequential computes .* through h1"):
            certify(between(nn.ReLU()), x, chain(symmetry).sample)
    certify(between(nn.ReLU()), x, chain("relu").sample)


HOOKS = {
    "a shift behind": lambda m: m[1].register_forward_hook(lambda _m, _x, y: y + torch.arange(4)),
    "a shift in front": lambda m: m[2].register_forward_pre_hook(lambda _m, x: (x[0] + torch.arange(4),)),
    "of the whole": lambda m: m.register_forward_hook(lambda m, x, y: y + x[0] @ m[0].weight.T),
    "a forward of one's own": lambda m: setattr(m[1], "forward", torch.cos),
}


@pytest.mark.parametrize("case", HOOKS)
def test_forward_hooks_are_part_of_what_a_network_computes(case: str) -> None:
    torch.manual_seed(0)
    module, x = between(nn.ReLU()), torch.randn(5, 4)
    HOOKS[case](module)
    with pytest.raises(ValueError, match="changes what Sequential computes"):
        certify(module, x, chain("relu").sample)
    space = WeightSpace.from_module(module, x)
    assert space.group_dimension == 0
    assert_function_preserved(module.double(), space, x.double())


def test_hooks_that_only_look_on_are_harmless() -> None:
    module, seen = between(nn.ReLU()), []
    module[1].register_forward_hook(lambda _m, _x, y: seen.append(y.shape))
    assert WeightSpace.from_module(module, torch.randn(5, 4)).group_dimension == 4
    assert seen


WRONG_RULES = {
    "a function that is not homogeneous": (nn.GELU(), "gelu", "homogeneous"),
    "a function that is not odd": (nn.Sigmoid(), "sigmoid", "odd"),
    "a function that is not even": (nn.ReLU(), "relu", "even"),
}


@pytest.mark.parametrize("case", WRONG_RULES)
def test_a_wrong_rule_is_caught_and_its_operator_named(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    activation, operator, kind = WRONG_RULES[case]
    monkeypatch.setitem(OPERATORS, operator, OPERATORS[operator])  # put back behind the test
    register_operator(f"aten.{operator}", lambda run, x, *_, **__: run.unary(x, kind))
    with pytest.raises(
        ValueError, match=rf"changes what Sequential computes.* through .*{operator}.*register_operator"
    ):
        WeightSpace.from_module(between(activation), torch.randn(5, 4))


class Single(nn.Module):
    """Computes in float32 whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.linear(x.float(), self.layer.weight.float())).to(x.dtype) @ self.layer.weight


class Listing(nn.Module):
    """Returns more than a tensor, or less."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.layers, self.what = between(nn.ReLU()), what

    def forward(self, x: Tensor) -> object:
        y = self.layers(x)
        return {"outputs": (y, 1.0)} if self.what == "more" else "nothing"


def test_a_network_that_casts_to_float32_is_checked_in_float64() -> None:
    assert_function_preserved(Single(), WeightSpace.from_module(Single(), torch.randn(3, 2)), torch.randn(3, 2))


def test_what_the_certificate_cannot_say() -> None:
    x = torch.randn(5, 4)
    with pytest.raises(ValueError, match="example_inputs hold no values"):
        certify(between(nn.ReLU()), x.to("meta"), chain("relu").sample)
    with pytest.raises(ValueError, match="Listing returns no tensor but str"):
        certify(Listing("less"), x, chain("relu").sample)
    assert WeightSpace.from_module(Listing("more"), x).shapes()["layers.0.weight"] == (4, 4)
    broken = between(nn.ReLU())
    nn.init.constant_(broken[0].bias, torch.nan)
    with pytest.raises(ValueError, match="outputs of Sequential hold NaN or infinite values") as told:
        certify(broken, x, chain("relu").sample)
    assert "register_operator" not in str(told.value)


class Odd(nn.Module):
    """Its forward is random, keeps a state, or answers with complex numbers."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.layers, self.what, self.calls = between(nn.ReLU()), what, 0

    def forward(self, x: Tensor) -> Tensor:
        y, self.calls = self.layers(x), self.calls + 1
        return {
            "dropout": lambda: F.dropout(y),
            "noise": lambda: y + torch.randn(4),
            "choice": lambda: torch.randint(1000, (9,)),
            "state": lambda: y * self.calls,
            "complex": lambda: torch.fft.rfft(y),
            "narrow complex": lambda: torch.complex(y, -y).to(torch.complex64),
        }[self.what]()


@pytest.mark.parametrize("what", ["dropout", "noise", "choice", "state"])
def test_a_random_forward_is_told_from_a_wrong_rule(what: str) -> None:
    with pytest.raises(ValueError, match=r"Odd answers otherwise when it is called again.*dropout") as told:
        certify(Odd(what), torch.randn(5, 4), inner_chain("relu").sample)
    assert "register_operator" not in str(told.value)


@pytest.mark.parametrize("what", ["complex", "narrow complex"])
def test_complex_outputs_are_compared(what: str) -> None:
    certify(Odd(what), torch.randn(5, 4), inner_chain("relu").sample)
    with pytest.raises(ValueError, match="changes what Odd computes"):
        certify(Odd(what), torch.randn(5, 4), inner_chain("linear").sample)


def test_outputs_are_compared_one_by_one() -> None:
    large, small, whole = torch.full((2,), 1e12), torch.ones(3), torch.arange(3)
    assert largest_change([large, small, whole], [large, small, whole]) == 0
    assert largest_change([large, small + 1e-3], [large, small]) > 1e-4
    assert largest_change([large, whole + 1], [large, whole]) == float("inf")
    error = largest_change([large, small * torch.nan], [large, small])
    assert error != error


def test_a_certificate_leaves_everything_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2)).train()
    module[1].eval()
    before, state = {k: v.clone() for k, v in module.state_dict().items()}, torch.get_rng_state()
    WeightSpace.from_module(module, torch.randn(2, 3, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert [m.training for m in module.modules()] == [True, True, False, True, True]
    assert all(p.grad is None for p in module.parameters())


def test_several_inputs_and_names_of_arguments() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.out = nn.Linear(2, 4), nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor, y: Tensor, *, times: Tensor) -> tuple[Tensor, Tensor]:
            hidden = torch.relu(self.a(x) + self.b(y))
            return self.out(hidden) * times, times

    inputs, more = (torch.randn(5, 2), torch.randn(5, 3)), {"times": torch.tensor(2.0)}
    space = WeightSpace.from_module(Two(), inputs, kwargs=more)
    assert space.group_dimension == 4
    assert [node.symmetry for node in space.nodes.values() if node.permutes] == [Symmetry.SCALE]
    exported = torch.export.export(Two(), inputs, more)
    assert WeightSpace.from_module(exported) == space
