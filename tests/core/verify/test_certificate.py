"""The certificate: an example is enough to be sure that the group keeps what a module computes, or to refuse it."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from derived_groups import Of
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.running import answers, doubled, largest_change
from nfn_monomial.testing import assert_function_preserved
from nfn_monomial.verify.certificate import certify

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def net(function: Callable[[Any, Tensor], object], **parts: Any) -> Of:
    """Two layers, and a function of these and the input."""
    torch.manual_seed(0)
    return Of(function, first=nn.Linear(4, 4), last=nn.Linear(4, 4), **parts)


def plain(s: Any, x: Tensor) -> Tensor:
    out: Tensor = s.last(F.relu(s.first(x)))
    return out


def of_values(function: Callable[[Any, Tensor], Tensor], **buffers: Tensor) -> Of:
    """A function of what is between the two layers, in front of the activation."""
    kept = {name: nn.Buffer(t) for name, t in buffers.items()}
    return net(lambda s, x: s.last(F.relu(function(s, s.first(x)))), **kept)


def hidden(function: Callable[[Any, Tensor], Tensor]) -> Of:
    """Hidden behind a factor of 0, as in a fresh residual network: only other weights show it."""
    parts = {"factor": nn.Parameter(torch.zeros(())), "positive": nn.Parameter(torch.ones(2, 4))}
    return net(lambda s, x: s.beside(x) + s.factor * function(s, plain(s, x)), beside=nn.Linear(4, 4), **parts)


def chain(symmetry: str) -> WeightSpace:
    """A space for `net` that someone wrote out by hand."""
    names = [("first.weight", "first.bias"), ("last.weight", "last.bias")]
    return WeightSpace.sequential([4, 4, 4], [(), ()], symmetry, names=names)


def counting(s: Any, x: Tensor) -> Tensor:
    s.calls = getattr(s, "calls", 0) + 1
    return plain(s, x) * s.calls


def writing(s: Any, x: Tensor) -> Tensor:
    x += 1
    s.count += 1
    return plain(s, x)


def frozen_norm(s: Any, y: Tensor) -> Tensor:
    out: Tensor = (y - s.mean) / (s.variance + 1e-5).sqrt() * s.gain + s.shift
    return out


def turned(s: Any, y: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(y.view(-1, 2, 2)) * s.turns).flatten(1)


FRESH = {"mean": torch.zeros(4), "variance": torch.ones(4), "gain": torch.ones(4), "shift": torch.zeros(4)}
KEPT: Mapping[str, Callable[[], Of]] = {
    "as it is": lambda: net(plain),
    "zeros that forward creates": lambda: net(lambda s, x: plain(s, x) @ torch.zeros(4, 4) + plain(s, x)),
    "whole numbers as floats": lambda: net(lambda s, x: plain(s, x) @ (1 + torch.arange(4.0)).diag()),
    "one in float32": lambda: net(lambda s, x: plain(s, x) @ torch.eye(4, dtype=torch.float32)),
    "more than a tensor": lambda: net(lambda s, x: {"outputs": (plain(s, x), 1.0)}),
    "complex numbers": lambda: net(lambda s, x: torch.fft.rfft(plain(s, x))),
    "narrow complex numbers": lambda: net(lambda s, x: torch.complex(plain(s, x), x).to(torch.complex64)),
    "weights that are drawn again": lambda: hidden(lambda s, y: y + s.positive.log().sum()),
    "an order of positions": lambda: of_values(lambda s, y: y[s.order], order=torch.arange(5).flip(0)),
    "a mask of bools": lambda: of_values(lambda s, y: y.masked_fill(s.mask, 0.0), mask=torch.eye(5, 1).bool()),
    "a mask of minus infinity": lambda: of_values(
        lambda s, y: (s.mask + torch.zeros(5, 5)).softmax(-1) @ y, mask=torch.full((5, 5), -torch.inf).triu(1)
    ),
    "variances": lambda: of_values(lambda s, y: y / s.variance.sqrt(), variance=torch.ones(5, 1)),
    "a mask of zeros and ones": lambda: of_values(lambda s, y: y * s.mask.sqrt(), mask=torch.eye(5, 1)),
    "positions": lambda: of_values(lambda s, y: y * s.places.log1p(), places=torch.arange(5.0)[:, None]),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_the_group_keeps_is_certified_and_nothing_larger_is(name: str) -> None:
    assert certify(KEPT[name](), X, chain("relu").sample).elements == 4
    with pytest.raises(ValueError, match=r"changes what Of computes .* through h1"):
        certify(KEPT[name](), X, chain("linear").sample)
    assert torch.get_default_dtype() == torch.float32


CHANGED, RANDOM = "changes what Of computes", "Of answers otherwise when it is called again.*dropout"
ALONE = "Of could be tested at no weights but its own"
REFUSED: Mapping[str, tuple[Callable[[], Of], str]] = {
    "a frozen batch norm": (lambda: of_values(frozen_norm, **FRESH), CHANGED),
    "a state of 0": (lambda: of_values(lambda s, y: y + s.state, state=torch.zeros(4)), CHANGED),
    "a mask of ones": (lambda: of_values(lambda s, y: y * s.mask, mask=torch.ones(4)), CHANGED),
    "turns by no angle": (lambda: of_values(turned, turns=torch.ones(2, dtype=torch.complex64)), CHANGED),
    "cut off far from the example": (lambda: of_values(lambda s, y: y.clamp(-1e4, 1e4)), CHANGED),
    "linear near 0 alone": (lambda: of_values(lambda s, y: torch.where(y.abs() < 1e-3, -y, y)), CHANGED),
    "with an epsilon": (lambda: of_values(lambda s, y: y * y.abs() / (y.abs() + 1e-6)), CHANGED),
    "dropout": (lambda: net(lambda s, x: F.dropout(plain(s, x))), RANDOM),
    "noise": (lambda: net(lambda s, x: plain(s, x) + torch.randn(4)), RANDOM),
    "random and not finite": (lambda: net(lambda s, x: (plain(s, x) + torch.randn(4)).log()), RANDOM),
    "a random choice": (lambda: net(lambda s, x: torch.randint(1000, (9,))), RANDOM),
    "a state": (lambda: net(counting), RANDOM),
    "dropout that own weights hide": (lambda: hidden(lambda s, y: F.dropout(y)), RANDOM),
    "not finite elsewhere": (lambda: hidden(lambda s, y: y / (s.positive == 1).all()), ALONE),
    "an error elsewhere": (
        lambda: hidden(lambda s, y: y[:, torch.arange(4) + 9 * (s.positive != 1).sum()]), ALONE,
    ),
    "no tensor": (lambda: net(lambda s, x: "nothing"), "Of returns no tensor but str"),
    "an error": (lambda: net(lambda s, x: plain(s, x[:, :3])), "does not run on the CPU in float64"),
    "NaN": (lambda: net(lambda s, x: plain(s, x) * torch.nan), "outputs of Of hold NaN or infinite values"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_group_does_not_keep_or_nobody_can_tell_is_refused(name: str) -> None:
    module, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as error:
        certify(module(), X, chain("relu").sample)
    assert ("register_operator" in str(error.value)) == (message == CHANGED)
    assert torch.get_default_dtype() == torch.float32


def test_values_are_needed() -> None:
    with pytest.raises(ValueError, match="example_inputs hold no values"):
        certify(net(plain), X.to("meta"), chain("relu").sample)


def test_a_residual_block_taken_for_a_chain_is_refused() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 3)
    parts = {"0": nn.Linear(3, 4), "a": nn.Linear(4, 5), "b": nn.Linear(5, 4), "2": nn.Linear(4, 2)}
    module = Of(lambda s, x: s._run(x), **parts)
    module._run = lambda x: parts["2"]((y := parts["0"](x)) + parts["b"](F.relu(parts["a"](y))))
    names = [(f"{part}.weight", f"{part}.bias") for part in parts]
    for symmetry in ("relu", "permutation"):
        wrong = WeightSpace.sequential([3, 4, 5, 4, 2], [()] * 4, symmetry, names=names)
        with pytest.raises(ValueError, match=r"changes what Of computes .* through (what of )?h1; (what of )?h3"):
            certify(module, x, wrong.sample)
        for p in parts["b"].parameters():  # a fresh branch that adds nothing yet
            nn.init.zeros_(p)
        with pytest.raises(ValueError, match="changes what Of computes"):
            certify(module, torch.zeros(1, 3), wrong.sample)


HOOKS: Mapping[str, Callable[[Any], object]] = {
    "a shift behind": lambda m: m[1].register_forward_hook(lambda _m, _x, y: y + torch.arange(4)),
    "a shift in front": lambda m: m[2].register_forward_pre_hook(lambda _m, x: (x[0] + torch.arange(4),)),
    "of the whole": lambda m: m.register_forward_hook(lambda m, x, y: y + x[0] @ m[0].weight.T),
    "a forward of one's own": lambda m: setattr(m[1], "forward", torch.cos),
}


@pytest.mark.parametrize("case", HOOKS)
def test_forward_hooks_are_part_of_what_a_network_computes(case: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert WeightSpace.from_module(module, X).group_dimension == 4
    HOOKS[case](module)
    space = WeightSpace.from_module(module, X)
    assert space.group_dimension == 0
    assert_function_preserved(module.double(), space, X.double())


def test_outputs_are_compared_one_by_one() -> None:
    large, small, whole = torch.full((2,), 1e12), torch.ones(3), torch.arange(3)
    assert largest_change([large, small, whole], [large, small, whole]) == 0
    assert largest_change([large, small + 1e-3], [large, small]) > 1e-4
    assert largest_change([large, whole + 1], [large, whole]) == float("inf")
    error = largest_change([large, small * torch.nan], [large, small])
    assert error != error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_certificate_leaves_everything_as_it_was(dtype: torch.dtype) -> None:
    module = net(writing, count=nn.Buffer(torch.zeros((), dtype=torch.int64)), drop=nn.Dropout(0.5)).to(dtype).train()
    module.first.eval()
    x = X.to(dtype)
    inputs, before, state = x.clone(), {k: v.clone() for k, v in module.state_dict().items()}, torch.get_rng_state()
    assert WeightSpace.from_module(module, x).group_dimension == 4
    assert torch.equal(x, inputs)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert [m.training for m in module.modules()] == [True, False, True, True]
    assert all(p.grad is None for p in module.parameters())


def first_channels(s: Any, x: Tensor) -> Tensor:
    """Reads as many of its hidden neurons as there are tokens."""
    out: Tensor = s.leave(F.relu(s.enter(x))[..., : x.shape[1]].mean(-1, keepdim=True))
    return out


def pairs(s: Any, x: Tensor) -> Tensor:
    """Runs on even numbers of tokens; channels and tokens are exchanged by a reshape."""
    batch, length, _ = x.shape
    y = torch.relu(s.enter(x)).view(batch, length // 2, 16)
    out: Tensor = s.leave(y.reshape(batch, 8, length).transpose(1, 2))
    return out


def windows(s: Any, x: Tensor) -> Tensor:
    """Runs on thirds; the same in a net with gains, whose scales hold at all sizes."""
    batch, length, _ = x.shape
    y = s.enter(x).view(batch, length // 3, 3, 8).mean(2)
    out: Tensor = s.leave(torch.relu(y.reshape(batch, 8, length // 3).transpose(1, 2)))
    return out


def heads_by_a_reshape(s: Any, x: Tensor) -> Tensor:
    q, k, v = (layer(x).reshape(len(x), 2, -1, 4) for layer in (s.q, s.k, s.v))  # no transpose
    out: Tensor = s.leave(((q @ k.mT).softmax(-1) @ v).reshape(len(x), -1, 8))
    return out


def patches(s: Any, x: Tensor) -> Tensor:
    """Cuts an image into patches by a reshape alone."""
    y = torch.relu(s.enter(x))
    out: Tensor = s.leave(y.reshape(len(x), -1, 4).mean(1))
    return out


Case = tuple[Callable[[Any, Tensor], Tensor], dict[str, nn.Module], Tensor, list[tuple[int, ...]]]
AT_ONE_SIZE: Mapping[str, Case] = {
    "channels counted by tokens": (
        first_channels, {"enter": nn.Linear(3, 5), "leave": nn.Linear(1, 2)}, torch.randn(2, 5, 3), [(2, 4, 3)],
    ),
    "even numbers": (
        pairs, {"enter": nn.Linear(3, 8), "leave": nn.Linear(8, 2)}, torch.randn(2, 4, 3), [(2, 8, 3), (3, 16, 3)],
    ),
    "thirds": (
        windows, {"enter": nn.Linear(3, 8), "leave": nn.Linear(8, 2)}, torch.randn(2, 24, 3), [(2, 48, 3), (1, 72, 3)],
    ),
    "as many tokens as channels": (
        pairs, {"enter": nn.Linear(4, 8), "leave": nn.Linear(8, 2)}, torch.randn(2, 4, 4), [(2, 8, 4), (3, 12, 4)],
    ),
    "as many tokens as channels and networks": (
        lambda s, x: s.leave(torch.relu(s.enter(x)).transpose(1, 2).reshape(len(x), x.shape[1], 8)),
        {"enter": nn.Linear(2, 8), "leave": nn.Linear(8, 2)}, torch.randn(2, 2, 2), [(2, 3, 2), (1, 4, 2)],
    ),
    "two more": (
        lambda s, x: s.leave(s.enter(x).view(len(x), -1, 8).tanh().view(*x.shape[:2], 4).mT.reshape(*x.shape[:2], 4)),
        {"enter": nn.Linear(3, 4), "leave": nn.Linear(4, 2)}, torch.randn(2, 8, 3), [(2, 10, 3), (2, 6, 3), (1, 16, 3)],
    ),
    "heads": (
        heads_by_a_reshape, {**{n: nn.Linear(3, 8) for n in "qkv"}, "leave": nn.Linear(8, 2)}, torch.randn(2, 4, 3),
        [(2, 8, 3), (2, 5, 3)],
    ),
    "patches": (
        patches, {"enter": nn.Conv2d(2, 4, 1), "leave": nn.Linear(4, 2)}, torch.randn(2, 2, 4, 4),
        [(2, 2, 6, 6), (2, 2, 8, 8)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_ONE_SIZE)
def test_what_holds_at_the_size_of_the_example_alone_is_no_part_of_the_group(name: str) -> None:
    torch.manual_seed(0)
    function, parts, x, others = AT_ONE_SIZE[name]
    module = Of(function, **parts)
    space = WeightSpace.from_module(module, x)
    state = {k: doubled(t) for k, t in module.named_parameters()}
    element = space.sample(generator=torch.Generator().manual_seed(1)).proper()
    for shape in (tuple(x.shape), *others):
        inputs = torch.randn(shape, dtype=torch.float64)
        change = largest_change(answers(module, element.act(state), inputs), answers(module, state, inputs))
        assert change < 1e-9, f"{shape}: {change}"
    assert WeightSpace.from_json(space.to_json()) == space


def test_a_smaller_group_is_explained_and_names_the_sizes() -> None:
    torch.manual_seed(0)
    function, parts, x, _ = AT_ONE_SIZE["even numbers"]
    text = " ".join(WeightSpace.from_module(Of(function, **parts), x).explain().split())
    assert "holds at the example's sizes only" in text
    assert "2, 6, 8 and 12 in place of 4" in text
    assert "1, 3, 4 and 6 in place of 2" in text
    assert "Axes of size 3 were tested at no other size" in text


def test_what_holds_at_all_sizes_stays_when_a_part_does_not() -> None:
    """A chain in front of what is wrong keeps its group."""
    torch.manual_seed(0)
    _, parts, x, _ = AT_ONE_SIZE["even numbers"]
    before = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3))
    module = Of(lambda s, x: pairs(s, s.before(x)), before=before, **parts)
    space = WeightSpace.from_module(module, x)
    assert [(node.size, node.scales) for node in space.nodes.values() if node.permutes] == [(6, True), (3, True)]


def test_sizes_that_would_take_long_are_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nfn_monomial.verify.points._MOST_WORK", 1.2 * 2 * 5 * 4 * 4 * 2)
    torch.manual_seed(0)
    text = " ".join(WeightSpace.from_module(net(plain), X).explain().split())
    assert "4 and 6 in place of 5" in text
    assert "Sizes too large to be tried: 2, 6, 8, 10, 12 and 15" in text


def test_answers_of_0_say_nothing() -> None:
    """They are rounding, which no group keeps."""
    module = net(lambda s, x: (y := plain(s, x)) - y.mean(0))
    nn.init.zeros_(module.first.weight)
    assert WeightSpace.from_module(module, X).group_dimension == 4


def routed(s: Any, x: Tensor) -> Tensor:
    """Experts that a router chooses, which starts at zeros."""
    weights, chosen = (x @ s.router).softmax(-1).topk(2)
    hidden = torch.einsum("bkhi,bi->bkh", s.up[chosen], x).relu()
    out: Tensor = torch.einsum("bk,bkoh,bkh->bo", weights, s.down[chosen], hidden)
    return out


def test_ties_at_the_weights_of_the_module_say_nothing() -> None:
    torch.manual_seed(0)
    up, down = nn.Parameter(torch.randn(3, 5, 4)), nn.Parameter(torch.randn(3, 2, 5))
    module = Of(routed, router=nn.Parameter(torch.zeros(4, 3)), up=up, down=down)
    space = WeightSpace.from_module(module, X)
    text = " ".join(space.explain().split())
    assert "Entries that topk puts in order are equal at the module's own weights" in text
    assert any(node.permutes and node.size == 3 for node in space.nodes.values())
    with torch.no_grad():
        module.router.normal_()
    assert WeightSpace.from_module(module, X) == space
    assert "puts in order" not in WeightSpace.from_module(module, X).explain()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_more_than_one_copy_of_the_weights_in_float64_is_held() -> None:
    """Beside the largest parameter and what moves it, which are small here."""
    code = """if True:
        import re, torch
        from pathlib import Path
        from torch import nn
        from nfn_monomial import WeightSpace
        from nfn_monomial.verify.certificate import certify

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


def test_submodules_with_two_names_are_run_and_left_as_they_are() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
            self.second = nn.ModuleList([self.first])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second[0](x)

    module = Twice()
    parameters, values = dict(module.named_parameters()), {name: t.clone() for name, t in module.state_dict().items()}
    space = WeightSpace.from_module(module, torch.randn(5, 3))
    assert space.group_dimension == 8
    assert space.ties["second.0.0.weight"] == "first.0.weight"
    assert all(parameter is parameters[name] for name, parameter in module.named_parameters())
    assert all(torch.equal(t, values[name]) for name, t in module.state_dict().items())


def test_a_network_with_a_condition_runs_afterwards() -> None:
    """Its branches go through a compiler, which remembers what it has seen under a dispatch mode."""
    module = of_values(lambda s, y: torch.cond(y.isnan().any(), torch.relu, torch.tanh, (y,)))
    WeightSpace.from_module(module, X)
    with torch.no_grad():
        assert torch.equal(module(X), module.last(F.relu(module.first(X).tanh())))
