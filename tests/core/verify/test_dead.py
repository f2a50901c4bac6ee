"""Parameters that do not matter to the function, and those that only seem not to on an example."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from derived_groups import Of
from deriving import derive
from torch import Tensor, nn

from nfn_monomial import WeightSpace, compare
from nfn_monomial.space.packing import cut, joined

SEQUENCE, TOKENS = torch.randn(3, 4, 5), torch.randint(9, (3, 4))
FUNCTION = Callable[..., Any]


def attention(s: Any, x: Tensor, change: FUNCTION = lambda s, scores: scores) -> Tensor:
    q, k, v = s.q(x), s.k(x), s.v(x)
    out: Tensor = change(s, q @ k.mT).softmax(-1) @ v
    return out


def heads(change: FUNCTION = lambda s, scores: scores, **parts: Any) -> Of:
    return Of(lambda s, x: attention(s, x, change), **{name: nn.Linear(5, 6) for name in "qkv"}, **parts)


def falcon(s: Any, x: Tensor) -> Tensor:
    y = s.qkv(x).view(*x.shape[:2], 4, 3)
    q, k, v = (t.transpose(1, 2) for t in (y[..., :-2, :], y[..., [-2], :], y[..., [-1], :]))
    return s.out(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def in_each_head(s: Any, x: Tensor) -> Tensor:
    """Queries, keys and values of one head, then of the next; the program returns scores, so that nothing moves."""
    q, k, v = s.qkv(x).view(*x.shape[:2], 2, 3, 2).permute(3, 0, 2, 1, 4)
    weights = (q @ k.mT).softmax(-1)
    return weights, (weights @ v), q  # type: ignore[return-value]


DEAD: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], set[str]]] = {
    "keys": (heads, (SEQUENCE,), {"k.bias"}),
    "keys of Falcon": (
        lambda: Of(falcon, qkv=nn.Linear(5, 12), out=nn.Linear(6, 4)), (SEQUENCE,), {"qkv.bias[1]"},
    ),
    "keys beside queries that stay": (
        lambda: Of(in_each_head, qkv=nn.Linear(5, 12)), (SEQUENCE,), {"qkv.bias[1]"},
    ),
    "behind an additive mask": (
        lambda: heads(lambda s, t: t + torch.full((4, 4), -1e9).triu(1)), (SEQUENCE,), {"k.bias"},
    ),
    "behind a mask of infinities": (
        lambda: heads(lambda s, t: t.masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)), (SEQUENCE,), {"k.bias"},
    ),
    "in front of statistics of the example": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1)),
        (torch.randn(2, 2, 6, 6),), {"0.bias"},
    ),
    "in front of statistics of the batch": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.ReLU()),
        (torch.randn(7, 5),), {"0.bias"},
    ),
    "a difference of two": (
        lambda: Of(lambda s, x, y: s.b(s.a(x).tanh()) - s.b(s.a(y).tanh()), a=nn.Linear(5, 4), b=nn.Linear(4, 2)),
        (SEQUENCE, SEQUENCE.flip(0)), {"b.bias"},
    ),
    "all but a shift": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(4, 4), nn.AdaptiveAvgPool2d(1)),
        (torch.randn(2, 2, 5, 5),), {"0.weight", "0.bias", "1.weight"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEAD)
def test_what_does_not_matter_is_found(name: str) -> None:
    torch.manual_seed(0)
    build, inputs, dead = DEAD[name]
    module = build()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    space = WeightSpace.from_module(module, inputs)
    assert set(space.dead) == dead
    a = {key: t.detach().clone() for key, t in module.state_dict().items()}
    b = dict(a)
    for name in {space.pieces[piece].parameter for piece in dead}:
        pieces = dict(cut(space, name, a[name], space.sizes()))
        b[name] = joined(space, name, {n: x + 3 * (n in dead) for n, x in pieces.items()}, space.sizes())
    assert compare(space, a, b, module=module, inputs=inputs).same_function


def quantised(s: Any, x: Tensor) -> Tensor:
    """Nearest codes, without a gradient for what chooses them."""
    return s.out(s.codes[torch.cdist(s.enter(x), s.codes).argmin(-1)])  # type: ignore[no-any-return]


def masked(s: Any, x: Tensor, mask: Tensor) -> Tensor:
    return (s.enter(x) + torch.where(mask, s.shift, 0)).softmax(1)


ALIVE: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "what chooses codes": (
        lambda: Of(quantised, enter=nn.Linear(5, 3), codes=nn.Parameter(torch.randn(7, 3)), out=nn.Linear(3, 2)),
        (SEQUENCE,),
    ),
    "rounded": (lambda: Of(lambda s, x: s.b((s.a(x) * 9).round()), a=nn.Linear(5, 4), b=nn.Linear(4, 2)), (SEQUENCE,)),
    "straight through": (
        lambda: Of(lambda s, x: s.b((y := s.a(x)) + (y.sign() - y).detach()), a=nn.Linear(5, 4), b=nn.Linear(4, 2)),
        (SEQUENCE,),
    ),
    "detached": (lambda: Of(lambda s, x: s.b(s.a(x).detach()), a=nn.Linear(5, 4), b=nn.Linear(4, 2)), (SEQUENCE,)),
    "units that are off": (
        lambda: Of(lambda s, x: s.b(torch.relu(s.a(x) - 1e4)) + s.c(x), a=nn.Linear(5, 4), b=nn.Linear(4, 2),
                   c=nn.Linear(5, 2)), (SEQUENCE,),
    ),
    "tiny": (lambda: Of(lambda s, x: s.b(x) + 1e-20 * s.a(x), a=nn.Linear(5, 2), b=nn.Linear(5, 2)), (SEQUENCE,)),
    "keys that are cut off": (lambda: heads(lambda s, t: t.clamp(-2e4, 2e4)), (SEQUENCE,)),
    "keys beside scores that are read": (
        lambda: Of(lambda s, x: (attention(s, x), s.q(x) @ s.k(x).mT), **{n: nn.Linear(5, 6) for n in "qkv"}),
        (SEQUENCE,),
    ),
    "behind a mask of trues": (
        lambda: Of(masked, enter=nn.Linear(5, 6, bias=False), shift=nn.Parameter(torch.randn(6))),
        (SEQUENCE, torch.ones(3, 4, 1, dtype=torch.bool)),
    ),
    "behind a mask of ones": (
        lambda: Of(lambda s, x, m: (s.enter(x) + s.shift * m).softmax(1), enter=nn.Linear(5, 6, bias=False),
                   shift=nn.Parameter(torch.randn(6))), (SEQUENCE, torch.ones(3, 4, 1)),
    ),
    "behind a mask of whole numbers": (
        lambda: Of(lambda s, x, m: (s.enter(x) + s.shift * m).softmax(1), enter=nn.Linear(5, 6, bias=False),
                   shift=nn.Parameter(torch.randn(6))), (SEQUENCE, torch.ones(3, 4, 1, dtype=torch.long)),
    ),
    "what stands for a token that is not there": (
        lambda: Of(lambda s, t: s.b(torch.where((t == 99)[..., None], s.pad, s.table(t))), b=nn.Linear(5, 2),
                   pad=nn.Parameter(torch.randn(5)), table=nn.Embedding(9, 5)), (TOKENS,),
    ),
    "rows of a table that are not read": (
        lambda: Of(lambda s, t: s.b(s.table(t)), b=nn.Linear(5, 2), table=nn.Embedding(40, 5)), (TOKENS,),
    ),
    "places that are not read": (
        lambda: Of(lambda s, x: s.b(x + s.table[: x.shape[1]]), b=nn.Linear(5, 2),
                   table=nn.Parameter(torch.randn(9, 5))), (SEQUENCE,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ALIVE)
def test_what_only_seems_not_to_matter_is_not_dead(name: str) -> None:
    torch.manual_seed(0)
    build, inputs = ALIVE[name]
    dead = derive(build(), inputs).origin.dead
    assert dead == ()


def test_tokens_that_are_alike_say_nothing_of_queries() -> None:
    """All keys are equal, so scores are the same for all of them."""
    module = Of(
        lambda s, t: attention(s, s.table(t)), table=nn.Embedding(9, 5), **{name: nn.Linear(5, 6) for name in "qkv"}
    )
    assert WeightSpace.from_module(module, torch.zeros(2, 4, dtype=torch.long)).dead == ("k.bias",)


def test_a_small_change_at_random_weights_and_a_large_one_at_those_of_the_module_are_followed() -> None:
    """Off at random weights: the gradient is 0, and so is the change by numbers of the size of the weights."""
    module = Of(lambda s, x: F.relu(s.a(x).abs() - 1e6) + s.b(x), a=nn.Linear(5, 2), b=nn.Linear(5, 2))
    assert derive(module, SEQUENCE).origin.dead == ()


def test_without_values_nothing_is_dead() -> None:
    module = heads()
    assert derive(module.to("meta"), SEQUENCE.to("meta")).origin.dead == ()
    assert "not looked for" in WeightSpace.from_module(heads(), SEQUENCE, certify=False).explain()
