"""The certificate: an example is enough to be sure that the group keeps what a module computes, or to refuse it."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.space.certificate import certify, largest_change
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


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


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


CREATES: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": lambda y: y @ torch.zeros(4, 4) + y,
    "whole numbers as floats": lambda y: y @ (1 + torch.arange(4.0)).diag(),
    "a number": lambda y: y.mm(torch.tensor(0.5) * torch.eye(4)),
    "one in float32": lambda y: y @ torch.eye(4, dtype=torch.float32),
}


@pytest.mark.parametrize("case", CREATES)
def test_what_a_forward_creates_is_in_float64(case: str) -> None:
    module = nn.Sequential(*between(nn.ReLU()), Calls(CREATES[case]))
    assert certify(module, torch.randn(5, 4), chain("relu").sample) == 4
    assert torch.get_default_dtype() == torch.float32


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


class Writes(nn.Module):
    """Its forward writes into a buffer and into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.calls = between(nn.ReLU()), nn.Buffer(torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        x += 1
        self.calls += 1
        y: Tensor = self.layers(x)
        return y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_a_forward_writes_to_stays_as_it_is(dtype: torch.dtype) -> None:
    module, x = Writes().to(dtype), torch.randn(5, 4, dtype=dtype)
    given = x.clone()
    assert WeightSpace.from_module(module, x).group_dimension == 4
    assert torch.equal(x, given)
    assert module.calls == 0


class Branch(nn.Module):
    """A network beside one that a factor of 0 hides, as in a fresh residual network: only other weights show it."""

    def __init__(self, hidden: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layers, self.beside, self.hidden = between(nn.ReLU()), nn.Linear(4, 4), hidden
        self.factor, self.positive = nn.Parameter(torch.zeros(())), nn.Parameter(torch.ones(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.beside(x) + self.factor * self.hidden(self, self.layers(x))


def test_a_random_branch_that_the_own_weights_hide_is_told_from_a_wrong_rule() -> None:
    with pytest.raises(ValueError, match=r"Branch answers otherwise when it is called again.*dropout"):
        WeightSpace.from_module(Branch(lambda _, y: F.dropout(y)), torch.randn(5, 4))


def test_weights_that_leave_what_the_function_is_defined_for_are_drawn_again() -> None:
    module, x = Branch(lambda m, y: y + m.positive.log().sum()), torch.randn(5, 4)
    assert certify(module, x, inner_chain("relu").sample) == 4
    with pytest.raises(ValueError, match="changes what Branch computes"):
        certify(module, x, inner_chain("linear").sample)


class Buffers(nn.Module):
    """A network with buffers between its layers."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor], **buffers: Tensor) -> None:
        super().__init__()
        self.layers, self.function = between(nn.ReLU()), function
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[2](F.relu(self.function(self, self.layers[0](x))))


def frozen_norm(module: nn.Module, y: Tensor) -> Tensor:
    return (y - module.mean) / (module.variance + 1e-5).sqrt() * module.gain + module.shift


FRESH = {"mean": torch.zeros(4), "variance": torch.ones(4), "gain": torch.ones(4), "shift": torch.zeros(4)}
INITIAL: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], dict[str, Tensor]]] = {
    "a frozen batch norm": (frozen_norm, FRESH),
    "a state of 0": (lambda m, y: y + m.state, {"state": torch.zeros(4)}),
    "a mask that lets everything through": (lambda m, y: y * m.mask, {"mask": torch.ones(4)}),
    "turns by no angle": (
        lambda m, y: torch.view_as_real(torch.view_as_complex(y.view(-1, 2, 2)) * m.turns).flatten(1),
        {"turns": torch.ones(2, dtype=torch.complex64)},
    ),
    "cut off far from the example": (lambda m, y: y.clamp(-1e4, 1e4), {}),
    "linear near 0 alone": (lambda m, y: torch.where(y.abs() < 1e-3, -y, y), {}),
    "with an epsilon": (lambda m, y: y * y.abs() / (y.abs() + 1e-6), {}),
}


@pytest.mark.parametrize("case", INITIAL)
def test_a_group_that_initial_buffers_or_scales_near_1_alone_have_is_refused(case: str) -> None:
    function, buffers = INITIAL[case]
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="changes what Buffers computes"):
        certify(Buffers(function, **buffers), torch.randn(5, 4), inner_chain("relu").sample)


HARMLESS: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], dict[str, Tensor]]] = {
    "an order of positions": (lambda m, y: y[m.order], {"order": torch.arange(5).flip(0)}),
    "a mask of bools": (lambda m, y: y.masked_fill(m.mask, 0.0), {"mask": torch.eye(5, 1).bool()}),
    "a mask of minus infinity": (
        lambda m, y: (m.mask + torch.zeros(5, 5)).softmax(-1) @ y,
        {"mask": torch.full((5, 5), -torch.inf).triu(1)},
    ),
    "a mask of large numbers": (lambda m, y: m.mask.softmax(-1) @ y, {"mask": torch.full((5, 5), -1e9).triu(1)}),
    "variances": (lambda m, y: y / m.variance.sqrt(), {"variance": torch.ones(5, 1)}),
    "a mask of zeros and ones": (lambda m, y: y * m.mask.sqrt(), {"mask": torch.eye(5, 1)}),
    "positions": (lambda m, y: y * m.places.log1p(), {"places": torch.arange(5.0)[:, None]}),
}  # fmt: skip


@pytest.mark.parametrize("case", HARMLESS)
def test_random_buffers_stay_where_the_function_is_defined(case: str) -> None:
    function, buffers = HARMLESS[case]
    assert certify(Buffers(function, **buffers), torch.randn(5, 4), inner_chain("relu").sample) == 4


OUTSIDE: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "not finite": lambda m, y: y / (m.positive == 1).all(),
    "an error": lambda m, y: y[:, torch.arange(4) + 9 * (m.positive != 1).sum()],
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_what_runs_at_its_own_weights_alone_is_refused(case: str) -> None:
    with pytest.raises(ValueError, match="Branch could be tested at no weights but its own"):
        certify(Branch(OUTSIDE[case]), torch.randn(5, 4), inner_chain("relu").sample)


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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_more_than_one_copy_of_the_weights_in_float64_is_held() -> None:
    """Beside the largest parameter and what moves it, which are small here."""
    code = """if True:
        import re, torch
        from pathlib import Path
        from torch import nn
        from nfn_monomial import WeightSpace
        from nfn_monomial.space.certificate import certify

        def peak():
            return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

        def tested(depth):
            layers = [layer for _ in range(depth) for layer in (nn.Linear(400, 400), nn.ReLU())]
            names = [(f"{2 * i}.weight", f"{2 * i}.bias") for i in range(depth)]
            space, module = WeightSpace.sequential([400] * (depth + 1), [()] * depth, "relu", names=names), layers[:-1]
            before = peak()
            certify(nn.Sequential(*module), torch.randn(1, 400), space.sample)
            return (peak() - before) / (depth * 400 * 401 * 8)

        tested(4)
        print(tested(20))
    """
    # What is freed goes back to the system.
    at_once = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=at_once)
    assert float(run.stdout) < 1.5


class AsManyNeuronsAsTokens(nn.Module):
    """Of its hidden neurons as many are read as there are tokens, and the example has as many as neurons."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(3, 5), nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        read = torch.relu(self.enter(x))[..., : x.shape[1]]
        return self.leave(read.mean(-1, keepdim=True))


def test_a_group_that_inputs_of_one_size_alone_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"inputs of shape \(2, 4, 3\)"):
        WeightSpace.from_module(AsManyNeuronsAsTokens(), torch.randn(2, 5, 3))
