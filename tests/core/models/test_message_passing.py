"""The message-passing networks, their gradients, and those of blocks."""

import copy

import pytest
import torch
from every_layer import NUMBERS, RAGGED, over_spaces, random_neurons, transformer
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces
from torch import nn
from torch.utils import _pytree as pytree

from nfn_monomial import EquivariantLinear, ProbeFeatures, WeightSpace
from nfn_monomial.models import (
    EquivariantNFN,
    MessagePassingEditor,
    MessagePassingNFN,
    MonomialNFN,
    recompute_blocks,
)
from nfn_monomial.models.blocks import Blocks
from nfn_monomial.nn import Augment, EquivariantNorm, MessageBlock, NeuronPool
from nfn_monomial.testing import assert_invariant, random_networks


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def networks_of(space, batch=4, dtype=torch.float64, seed=0):
    return random_networks(space, batch, dtype=dtype, generator=generator(seed))


def test_statistics_and_probes_join():
    torch.manual_seed(0)
    template = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.Tanh(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    space = WeightSpace.cnn([1, 4, 4], 3, ["relu", "tanh"], head=[3])
    probes = ProbeFeatures(template, 5, input_shape=(1, 6, 6), space=space).double()
    model = MessagePassingNFN(space, 4, 2, hidden=8, append_stats=True, probes=probes).double()
    x = networks_of(space)
    assert_invariant(model, space, inputs=x, rtol=1e-8)
    model(x).sum().backward()
    assert all(p.grad is not None for p in probes.parameters())
    plain = MonomialNFN(space, (4,), hidden=8, append_stats=True).double()
    assert_invariant(plain, space, inputs=x, rtol=1e-8)
    assert plain.head[0].in_features > MonomialNFN(space, (4,), hidden=8).head[0].in_features


def test_without_balancing_scales_matter_and_balanced_networks_give_the_same():
    torch.manual_seed(0)
    space = WeightSpace.mlp([2, 4, 3, 1], "relu")
    model = MessagePassingNFN(space, 4, 2, hidden=8).double()
    bare = MessagePassingNFN(space, 4, 2, hidden=8, balance=False).double()
    bare.load_state_dict(model.state_dict())
    x = networks_of(space)
    torch.testing.assert_close(bare(model.balance(x)), model(x))
    with pytest.raises(AssertionError, match="not invariant"):
        assert_invariant(bare, space, inputs=x)


@pytest.mark.parametrize("model", [MessagePassingNFN, MessagePassingEditor])
@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0])
def test_half_precision(model, size):
    torch.manual_seed(0)
    space = WeightSpace.cnn([1, 8, 8], 3, ["relu", "tanh"], head=[4])
    net = model(space, 4, 2)
    x = {name: t * size for name, t in networks_of(space, 3, torch.float32).items()}
    with torch.no_grad():
        expected, found = net(x), net.half()({name: t.half() for name, t in x.items()})
    pairs = zip(*(getattr(out, "tensors", (out,)) for out in (found, expected)), strict=True)
    for a, b in pairs:
        assert a.dtype == torch.float16
        assert float((a.float() - b).abs().max()) < 0.05 * float(b.abs().max())


@pytest.mark.parametrize("kind", [MessagePassingNFN, MessagePassingEditor])
def test_networks_that_were_balanced_before_give_the_same(kind):
    torch.manual_seed(0)
    space = WeightSpace.cnn([1, 3, 3], 3, ["relu", "gelu"], head=[2])
    net, networks = kind(space, 3, 2).double(), networks_of(space, 3)
    prepared, plain = net(net.prepare(networks)), net(networks)
    if kind is MessagePassingNFN:
        torch.testing.assert_close(prepared, plain, rtol=1e-9, atol=1e-11)
    else:  # the edited network in the balanced frame, and balanced again, since an edit may unbalance
        expected, found = net.prepare(plain), net.prepare(space.pack(net.inner.unpack(prepared)))
        torch.testing.assert_close(found.tensors, expected.tensors, rtol=1e-8, atol=1e-10)


# Wide enough that all weights of a batch are several blocks where there are blocks.
TANH, RELU = (WeightSpace.mlp([2, 32, 32, 1], activation) for activation in ("tanh", "relu"))
MODELS = {
    "MonomialNFN": lambda: MonomialNFN(RELU, (8, 4), hidden=8),
    "MonomialNFN, square": lambda: MonomialNFN(RELU, (4,), hidden=8, kind="square", io="factored"),
    "EquivariantNFN": lambda: EquivariantNFN(TANH, (4,), init_scale=1.0),
    "MessagePassingNFN": lambda: MessagePassingNFN(TANH, 8, 2, hidden=8),
    "MessagePassingNFN, tied": lambda: MessagePassingNFN(TANH, 4, 1, hidden=8, tied=True, norm=False),
    "MessagePassingEditor": lambda: MessagePassingEditor(TANH, 4, 1, init_scale=1.0),
}
STEP = 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_finite_differences_and_of_a_graph(name):
    """First gradients, by parameters and inputs, whether or not they can be differentiated again."""
    torch.manual_seed(0)
    model = MODELS[name]().double()
    networks = {name: t.requires_grad_() for name, t in random_networks(model.space, 5).items()}
    given = [*model.parameters(), *networks.values()]
    targets = pytree.tree_map(torch.randn_like, pytree.tree_leaves(model(networks)))

    def loss():
        pairs = zip(pytree.tree_leaves(model(networks)), targets, strict=True)
        return sum((y - t).square().sum() for y, t in pairs)

    options = {"allow_unused": True, "materialize_grads": True}
    gradients = torch.autograd.grad(loss(), given, **options)
    with_graph = torch.autograd.grad(loss(), given, create_graph=True, **options)
    top = max(float(g.abs().max()) for g in gradients)
    torch.testing.assert_close(with_graph, gradients, rtol=1e-10, atol=1e-12 * top)
    directions = [torch.randn_like(t) / t.numel() ** 0.5 + g / top for t, g in zip(given, gradients, strict=True)]
    values = []
    with torch.no_grad():
        for step in (STEP, -2 * STEP, STEP):
            values.append(float(loss()))
            for t, direction in zip(given, directions, strict=True):
                t += step * direction
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    expected = (values[1] - values[2]) / (2 * STEP)
    # Differences of the loss are exact to its own rounding errors.
    rounding = 100 * torch.finfo(torch.float64).eps * abs(values[0]) / STEP
    assert abs(slope - expected) <= 1e-6 * abs(expected) + rounding


SPACE = WeightSpace.mlp([2, 5, 4, 1], "relu")


@given(all_spaces(), st.integers(1, 3), st.integers(0, 10**6))
def test_blocks_that_are_computed_again_give_the_same(space, layers, seed):
    torch.manual_seed(seed)
    networks = random_networks(space, 2, generator=generator(seed))
    model = MessagePassingNFN(space, 2, layers, hidden=4, dropout=0.3).double()
    twin = copy.deepcopy(model)
    assert recompute_blocks(twin) == 1
    found = []
    for net in (model, twin):
        torch.manual_seed(seed)
        x = {name: t.clone().requires_grad_() for name, t in networks.items()}
        out = net(x)
        given = [*x.values(), *net.parameters()]
        by_given = torch.autograd.grad(out.square().sum(), given, allow_unused=True, materialize_grads=True)
        found.append([out, *by_given])
    assert all(map(torch.equal, *found))
    assert recompute_blocks(twin, recompute=False) == 1
    assert not any(module.recompute for module in twin.modules() if isinstance(module, Blocks))


class Noisy(nn.Module):
    """Draws at random and counts its calls."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x.map(lambda t: torch.nn.functional.dropout(t, 0.5))


def test_a_block_that_draws_draws_the_same_again():
    torch.manual_seed(0)
    noisy = Noisy()
    layers = [Augment(SPACE), EquivariantLinear(SPACE, 1, 3), noisy, EquivariantLinear(SPACE, 3, 1)]
    model = Blocks(nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:])).double()
    x = SPACE.pack(random_networks(SPACE, 2))
    x.tensors[0].requires_grad_()

    def gradient():
        torch.manual_seed(1)
        return torch.autograd.grad(sum(t.square().sum() for t in model(x).tensors), x.tensors[0])[0]

    kept = gradient()
    assert noisy.calls == 1
    recompute_blocks(model)
    assert torch.equal(gradient(), kept)
    assert noisy.calls == 3, "once more in backward"
    with torch.no_grad():
        model(x)
    assert noisy.calls == 4


def saved_bytes(model, networks):
    """Of all that is kept for backward."""
    found = {}

    def pack(t):
        found[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = model(networks)
    assert out.requires_grad
    return sum(found.values())


def test_less_is_kept():
    model = MessagePassingNFN(SPACE, 8, 6).double()
    networks = random_networks(SPACE, 4)
    kept = saved_bytes(model, networks)
    recompute_blocks(model)
    assert saved_bytes(model, networks) < 0.5 * kept


SMALL = {
    "MessagePassingNFN": lambda space: MessagePassingNFN(space, 3, 2, hidden=8, append_stats=True),
    "MessagePassingNFN, tied": lambda space: MessagePassingNFN(space, 3, 1, hidden=8, tied=True, norm=False),
    "MessagePassingEditor": lambda space: MessagePassingEditor(space, 3, 2),
}


@pytest.mark.parametrize("name", SMALL)
@over_spaces
def test_every_parameter_has_a_gradient(name, space, seed):
    """Also those of last blocks, and where there are no neurons, so that several processes can train a model."""
    torch.manual_seed(seed)
    model = SMALL[name](space).double()
    outputs = pytree.tree_leaves(model(random_networks(space, 2, generator=generator(seed))))
    sum(t.square().sum() for t in outputs).backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None or not p.numel()]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("space", [RAGGED, NUMBERS, transformer()], ids=str)
def test_models_are_made_without_memory_and_drawn_later(name, space):
    with torch.device("meta"):
        model = SMALL[name](space)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(torch.nan)
    for module in model.modules():
        if callable(getattr(module, "reset_parameters", None)):
            module.reset_parameters()
    assert not [name for name, p in model.named_parameters() if not bool(p.isfinite().all())]
    x = random_networks(space, 2, dtype=torch.float32, generator=generator())
    assert all(bool(t.isfinite().all()) for t in pytree.tree_leaves(model(x)))


SCALES = [
    *((torch.float16, scale) for scale in (1e-6, 1e-3, 1.0, 2e4)),
    *((torch.float32, scale) for scale in (1e-40, 1e-30, 1e-20, 1.0, 1e15, 1e19, 1e30, 1e36)),
    *((torch.float64, scale) for scale in (1e-310, 1e-200, 1e-100, 1e100, 1e150, 1e200, 1e300)),
]
LAYERS = {
    "norm": lambda space: EquivariantNorm(space, 3),
    "block": lambda space: MessageBlock(space, 3),
    "pool": lambda space: NeuronPool(space, 3, norm=True),
    "MessagePassingNFN": lambda space: MessagePassingNFN(space, 3, 2, hidden=8),
    "MessagePassingEditor": lambda space: MessagePassingEditor(space, 3, 2),
}


@pytest.mark.parametrize(("dtype", "scale"), SCALES)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("symmetry", ["relu", "tanh", "gelu"])
def test_finite_at_every_scale_that_a_dtype_holds(symmetry, name, dtype, scale):
    """Outputs and gradients of features, or networks, that are as large or small as floats are."""
    torch.manual_seed(0)
    space = WeightSpace.mlp([2, 8, 8, 1], symmetry)
    layer = LAYERS[name](space).to(dtype)
    x = random_networks(space, 2, generator=generator()) if name[0].isupper() else random_neurons(space, 3, 2)
    x = pytree.tree_map(lambda t: (t.clamp(-3, 3) * scale).to(dtype).requires_grad_(), x)
    outputs = pytree.tree_leaves(layer(x))
    assert all(bool(t.isfinite().all()) for t in outputs)
    sum(t.sum() / t.numel() for t in outputs).backward()
    gradients = [t.grad for t in (*pytree.tree_leaves(x), *layer.parameters())]
    assert all(g is None or bool(g.isfinite().all()) for g in gradients)
