"""The certificate: an example is enough to be sure that the group keeps what a module computes, or to refuse it."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nfn_monomial import Symmetry, WeightSpace
from nfn_monomial.space.chain import chain_of
from nfn_monomial.testing import assert_function_preserved


def between(*modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), *modules, nn.Linear(4, 4))


class Residual(nn.Module):
    """``x + b(relu(a(x)))``: what leads in and out of it must share their neurons."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, 5), nn.Linear(5, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(F.relu(self.a(x)))


def test_a_residual_block_is_no_chain() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 3)
    module = nn.Sequential(nn.Linear(3, 4), Residual(4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"group of .* changes what Sequential computes .*: a residual connection"):
        WeightSpace.from_module(module, x, symmetry="relu")
    with pytest.raises(ValueError, match="changes what Sequential computes"):
        WeightSpace.from_module(module, x, symmetry="permutation")
    for p in module[1].b.parameters():  # a fresh branch that adds nothing yet
        nn.init.zeros_(p)
    with pytest.raises(ValueError, match="changes what Sequential computes"):
        WeightSpace.from_module(module, torch.zeros(1, 3), symmetry="relu")
    # Around the whole network it is harmless: inputs and outputs do not move.
    space = WeightSpace.from_module(Residual(3), x, symmetry="relu")
    assert_function_preserved(Residual(3).double(), space, x.double())


def test_a_symmetry_that_activations_do_not_have_is_found_on_an_example() -> None:
    x = torch.randn(6, 4)
    for symmetry in ("sign", "linear"):
        with pytest.raises(ValueError, match="changes what Sequential computes"):
            WeightSpace.from_module(between(nn.ReLU()), x, symmetry=symmetry)
    WeightSpace.from_module(between(nn.ReLU()), x, symmetry="relu")


HOOKS = {
    "a shift behind": lambda m: m[1].register_forward_hook(lambda _m, _x, y: y + torch.arange(4)),
    "a shift in front": lambda m: m[2].register_forward_pre_hook(lambda _m, x: (x[0] + 1,)),
    "of the whole": lambda m: m.register_forward_hook(lambda m, x, y: y + x[0] @ m[0].weight.T),
    "a forward of one's own": lambda m: setattr(m[1], "forward", torch.cos),
}


@pytest.mark.parametrize("case", HOOKS)
def test_forward_hooks_are_not_ignored(case: str) -> None:
    torch.manual_seed(0)
    module = between(nn.ReLU())
    HOOKS[case](module)
    with pytest.raises(ValueError, match=r"has a forward hook or a forward of its own.*example_input="):
        WeightSpace.from_module(module)
    with pytest.raises(ValueError, match=r"changes what Sequential computes|is not known"):
        WeightSpace.from_module(module, torch.randn(5, 4))
    with pytest.raises(ValueError, match="changes what Sequential computes"):
        WeightSpace.from_module(module, torch.randn(5, 4), symmetry="relu")


def test_hooks_that_only_look_on_are_found_harmless() -> None:
    module, seen = between(nn.ReLU()), []
    module[1].register_forward_hook(lambda _m, _x, y: seen.append(y.shape))
    space = WeightSpace.from_module(module, torch.randn(5, 4))
    assert space.nodes["h1"].symmetry is Symmetry.SCALE
    assert seen


class Single(nn.Module):
    """Insists on float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.float())


class Listing(nn.Module):
    """Returns more than a tensor, or less."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.layers, self.what = between(nn.ReLU()), what

    def forward(self, x: Tensor) -> object:
        y = self.layers(x)
        return {"outputs": (y, 1.0)} if self.what == "more" else "nothing"


def test_what_the_certificate_cannot_say() -> None:
    x = torch.randn(5, 4)
    with pytest.raises(ValueError, match="Single does not run on the CPU in float64"):
        WeightSpace.from_module(Single(), torch.randn(3, 2))
    with pytest.raises(ValueError, match="example_input holds no values"):
        WeightSpace.from_module(between(nn.ReLU()).to("meta"), x.to("meta"))
    with pytest.raises(ValueError, match="Listing returns no tensor but str"):
        WeightSpace.from_module(Listing("less"), x, symmetry="relu")
    assert WeightSpace.from_module(Listing("more"), x, symmetry="relu").shapes()["layers.0.weight"] == (4, 4)
    broken = between(nn.ReLU())
    nn.init.constant_(broken[0].bias, torch.nan)
    with pytest.raises(ValueError, match="by nan"):
        WeightSpace.from_module(broken, x)


def test_a_certificate_leaves_everything_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2)).train()
    module[1].eval()
    before, state = {k: v.clone() for k, v in module.state_dict().items()}, torch.get_rng_state()
    WeightSpace.from_module(module, torch.randn(2, 3, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert [m.training for m in module.modules()] == [True, True, False, True, True]
    assert all(p.grad is None for p in module.parameters())


def test_an_example_run_leaves_the_module_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2))
    module.train()
    module[1].eval()
    chain_of(module, torch.randn(2, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        chain_of(module, torch.randn(2, 4))
    assert [m.training for m in module.modules()] == [True, True, False, True, True]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    assert all(p.grad is None for p in module.parameters())
