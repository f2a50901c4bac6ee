"""The message-passing networks, their gradients, and those of blocks and parts of a batch."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces
from torch import nn

from nfn_monomial import Axis, EquivariantLinear, ProbeFeatures, Symmetry, WeightSpace
from nfn_monomial.models import (
    EquivariantNFN,
    MessagePassingEditor,
    MessagePassingNFN,
    MonomialNFN,
    micro_batches,
    recompute_blocks,
)
from nfn_monomial.models.blocks import Blocks
from nfn_monomial.nn import Augment
from nfn_monomial.space import Node, Sum
from nfn_monomial.testing import assert_invariant, random_networks


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def networks_of(space, batch=4, dtype=torch.float64, seed=0):
    return random_networks(space, batch, dtype=dtype, generator=generator(seed))


def test_an_edit_changes_every_parameter_of_any_network():
    torch.manual_seed(0)
    heads = {"heads": Node((Symmetry.PERMUTATION,), 2), "q": Node((Symmetry.SIGN, Symmetry.SIGN), 2, "heads")}
    space = WeightSpace(
        {"x": (Symmetry.FIXED, 2), **heads},
        {
            "query": (Sum((Axis("q", (1, 0)), Axis("q", (0, 1)))), Axis("x", -1)),
            "gain": (Axis("q", (1, 1)),),
            "positions": (Axis("x", 0), 3),
            "slope": (1,),
        },
    )
    model, x = MessagePassingEditor(space, 4, 2).double(), networks_of(space)
    edited = space.unpack(model(x))
    for name in x:
        change = (edited[name] - x[name]).detach().abs()
        assert bool((change != 0).all())
        assert change.max() < 0.5 * x[name].abs().max(), "a small change"


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_statistics_and_probes_join(activation):
    torch.manual_seed(0)
    act = nn.ReLU() if activation == "relu" else nn.Tanh()
    template = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), act, nn.Conv2d(4, 4, 3, padding=1), act,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    space = WeightSpace.cnn([1, 4, 4], 3, activation, head=[3])
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


@pytest.fixture(params=MODELS)
def problem(request):
    """A loss without arguments, and what it depends on: name -> parameter or input."""
    torch.manual_seed(0)
    model = MODELS[request.param]().double()
    networks = {name: t.requires_grad_() for name, t in random_networks(model.space, 5).items()}
    tensors = {**dict(model.named_parameters()), **networks}
    with torch.no_grad():
        out = model(networks)
    targets = torch.randn_like(out) if isinstance(out, torch.Tensor) else out.map(torch.randn_like)

    def loss():
        out = model(networks)
        pairs = [(out, targets)] if isinstance(out, torch.Tensor) else zip(out.tensors, targets.tensors, strict=True)
        return sum((y - t).square().sum() for y, t in pairs)

    return loss, tensors


def gradients(loss, tensors, create_graph=False):
    found = torch.autograd.grad(loss(), list(tensors.values()), create_graph=create_graph, allow_unused=True)
    return {name: g for name, g in zip(tensors, found, strict=True) if g is not None}


def test_gradients_are_those_of_finite_differences_and_of_a_graph(problem):
    loss, tensors = problem
    found, with_graph = gradients(loss, tensors), gradients(loss, tensors, create_graph=True)
    top = max(float(g.abs().max()) for g in found.values())
    torch.testing.assert_close(with_graph, found, rtol=1e-10, atol=1e-12 * top)
    largest = max(float(g.norm()) for g in found.values())
    for name, gradient in found.items():
        tensor, size = tensors[name], float(gradient.norm())
        if size < 1e-6 * largest:
            continue  # lost in the rounding errors of the loss
        direction = torch.randn_like(tensor)
        direction = direction / direction.norm() + gradient / size
        values = []
        with torch.no_grad():
            before = tensor.clone()
            for step in (STEP, -STEP):
                tensor.copy_(before + step * direction)
                values.append(float(loss()))
            tensor.copy_(before)
        expected = (values[0] - values[1]) / (2 * STEP)
        slope = float((gradient * direction).sum())
        # Differences of the loss are exact to its own rounding errors.
        rounding = 100 * torch.finfo(torch.float64).eps * abs(values[0]) / STEP
        assert abs(slope - expected) <= 1e-6 * abs(expected) + rounding, f"{name}: {slope} for {expected}"


SPACE = WeightSpace.mlp([2, 5, 4, 1], "relu")


def results(model, networks, seed=0):
    """Outputs, gradients by inputs and parameters."""
    torch.manual_seed(seed)
    x = {name: t.clone().requires_grad_() for name, t in networks.items()}
    out = model(x)
    tensors = out.tensors if hasattr(out, "tensors") else (out,)
    sum(t.square().sum() for t in tensors).backward()
    return [*tensors, *(t.grad for t in x.values()), *(p.grad for p in model.parameters() if p.grad is not None)]


def assert_same(model, networks):
    twin = copy.deepcopy(model)
    assert recompute_blocks(twin) == 1
    assert twin.state_dict().keys() == model.state_dict().keys()
    for kept, again in zip(results(model, networks), results(twin, networks), strict=True):
        assert torch.equal(kept, again)
    assert recompute_blocks(twin, recompute=False) == 1
    assert not any(module.recompute for module in twin.modules() if isinstance(module, Blocks))


@given(all_spaces(), st.integers(1, 3), st.integers(0, 10**6))
def test_message_passing(space, layers, seed):
    torch.manual_seed(seed)
    networks = random_networks(space, 2, generator=torch.Generator().manual_seed(seed))
    assert_same(MessagePassingNFN(space, 2, layers, hidden=4, dropout=0.3).double(), networks)


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


@pytest.mark.parametrize(("kind", "packed"), [(MonomialNFN, False), (EquivariantNFN, True)])
def test_parts_of_a_batch_have_the_gradients_of_all_of_it(kind, packed):
    torch.manual_seed(0)
    model, networks = kind(SPACE).double(), random_networks(SPACE, 7)
    targets = torch.randn(7, 1, dtype=torch.float64)

    def loss(outputs, part):
        rows = outputs if isinstance(outputs, torch.Tensor) else torch.cat([t.flatten(1) for t in outputs.tensors], 1)
        return (rows - targets[part]).square().mean()

    given_networks = SPACE.pack(networks) if packed else networks
    whole = loss(model(given_networks), slice(None))
    whole.backward()
    parameters = [p for p in model.parameters() if p.grad is not None]
    expected = [p.grad.clone() for p in parameters]
    for size in (1, 3, 7, 100):
        model.zero_grad()
        torch.testing.assert_close(micro_batches(model, loss, given_networks, size).double(), whole.detach())
        top = max(float(g.abs().max()) for g in expected)
        for p, gradient in zip(parameters, expected, strict=True):
            torch.testing.assert_close(p.grad, gradient, rtol=1e-10, atol=1e-12 * top)
