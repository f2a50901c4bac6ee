"""Models are ordinary modules: all that torch, and what is built on it, does to modules works with every model."""

import copy
import io
import os
import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call
from torch.nn.utils import prune

from nfn_monomial import Axis, ProbeFeatures, Symmetry, WeightSpace
from nfn_monomial.models import EquivariantNFN, MessagePassingEditor, MessagePassingNFN, MonomialNFN
from nfn_monomial.testing import random_networks

RELU = WeightSpace.mlp([2, 4, 3, 1], "relu")
TANH = WeightSpace.mlp([2, 4, 3, 1], "tanh")
MIXED = WeightSpace.mlp([2, 3, 3, 1], ["relu", "tanh"])
CNN = WeightSpace.cnn([1, 3, 2], 3, "relu", head=[3])
LOOP = WeightSpace({"h": (Symmetry.SIGN, 4)}, {"loop": (Axis("h", 1), Axis("h", -1)), "b": (Axis("h"),)})
ONE_LAYER = WeightSpace.mlp([3, 2], "relu")
TEMPLATE = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))


def probed():
    space = WeightSpace.from_module(TEMPLATE, torch.randn(1, 2))
    probes = ProbeFeatures(copy.deepcopy(TEMPLATE), 3, space=space)
    return MessagePassingNFN(space, 3, 2, hidden=16, append_stats=True, probes=probes)


MODELS = {
    "MonomialNFN, statistics": lambda: MonomialNFN(TANH, (6, 6), hidden=16, append_stats=True),
    "MonomialNFN, square": lambda: MonomialNFN(MIXED, (6, 6), hidden=16, kind="square", reduce="sum"),
    "MonomialNFN, factored": lambda: MonomialNFN(CNN, (6, 6), hidden=16, io="factored"),
    "MonomialNFN, loop": lambda: MonomialNFN(LOOP, (6, 6), hidden=16, io="factored"),
    "EquivariantNFN": lambda: EquivariantNFN(RELU, (3,)),
    "MessagePassingNFN, tied": lambda: MessagePassingNFN(TANH, 3, 2, hidden=16, tied=True),
    "MessagePassingNFN, one layer": lambda: MessagePassingNFN(ONE_LAYER, 3, 2, hidden=16),
    "MessagePassingNFN, statistics and probes": probed,
    "MessagePassingEditor": lambda: MessagePassingEditor(CNN, 3, 1),
}
CONTAINERS = (nn.ParameterList, nn.ParameterDict)  # which have no forward

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(params=MODELS)
def net(request):
    torch.manual_seed(0)
    return MODELS[request.param]().double()


@pytest.fixture(scope="module")
def one_process():
    """A process group of this process alone."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def networks_of(net, count=6):
    return random_networks(net.space, count, generator=torch.Generator().manual_seed(1))


def flat(out):
    """The output of a model as one tensor, a row a network."""
    return out if isinstance(out, torch.Tensor) else torch.cat([t.flatten(1) for t in out.tensors], 1)


def train(net, networks, steps=2):
    """A few steps; returns the last gradients."""
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        flat(net(networks)).square().sum().backward()
        optimizer.step()
    return {name: p.grad for name, p in net.named_parameters()}


def assert_same(found, expected):
    torch.testing.assert_close(flat(found), flat(expected), rtol=1e-9, atol=1e-11)


def linears(net):
    return [(parent, key) for parent in net.modules() for key, m in parent.named_children() if isinstance(m, nn.Linear)]


# Parameters


def test_every_parameter_matters(net):
    for name, gradient in train(net, networks_of(net)).items():
        assert gradient is not None, f"{name} is not used"
        assert bool(gradient.any()), f"the gradient of {name} is zero"


def test_hooks_of_every_module_with_parameters_are_run(net):
    seen = []
    expected = {}
    for name, module in net.named_modules():
        if list(module.parameters(recurse=False)) and not isinstance(module, CONTAINERS):
            expected[name] = module
            module.register_forward_pre_hook(lambda module, given, name=name: seen.append(name))
            module.register_forward_hook(lambda module, given, out, name=name: seen.append(name))
    net(networks_of(net))
    assert set(seen) == set(expected)


def test_state_dicts_on_the_meta_device(net):
    state = net.state_dict()
    for make in (lambda: copy.deepcopy(net).to("meta"), lambda: copy.deepcopy(net).to_empty(device="meta")):
        empty = make()
        assert {n: t.shape for n, t in empty.state_dict().items()} == {n: t.shape for n, t in state.items()}
        assert all(t.is_meta for t in empty.state_dict().values())
        empty.load_state_dict(state, assign=True)
        assert all(not t.is_meta for t in empty.parameters())
    networks = networks_of(net)
    if getattr(net, "probes", None) is None:  # a template is no part of the state
        assert_same(empty(networks), net(networks))


def test_copies(net):
    networks = networks_of(net)
    expected = net(networks)
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    for twin in (
        copy.deepcopy(net),
        pickle.loads(pickle.dumps(net)),  # noqa: S301  # our own
        torch.load(buffer, weights_only=False),
    ):
        assert_same(twin(networks), expected)


# Other ways to hold parameters


def replica(net):
    """As `torch.nn.parallel.replicate` makes them: parameters are plain tensors, ``net.parameters()`` is empty."""
    modules = list(net.modules())
    copies = {module: module._replicate_for_data_parallel() for module in modules}
    for module in modules:
        for key, child in module._modules.items():
            setattr(copies[module], key, copies[child]) if child is not None else None
        for key, parameter in module._parameters.items():
            if parameter is None:
                copies[module]._parameters[key] = None
            else:
                setattr(copies[module], key, parameter.clone())
    return copies[net]


def test_replicas_of_data_parallel(net):
    networks = networks_of(net)
    copied = replica(net)
    assert not list(copied.parameters())
    out = flat(copied(networks))
    torch.testing.assert_close(out, flat(net(networks)), rtol=1e-9, atol=1e-11)
    out.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in net.parameters())


def test_pruned(net):
    """Masks count in every step, not only when they are made."""
    plain, networks = copy.deepcopy(net), networks_of(net)
    for module in list(net.modules()):
        for name, p in list(module.named_parameters(recurse=False)):
            if not isinstance(module, CONTAINERS) and p.numel() > 1:
                prune.random_unstructured(module, name, amount=0.3)
    train(net, networks)
    buffers = dict(net.named_buffers())
    state = {name: b for name, b in buffers.items() if not name.endswith("_mask")}
    for name, p in net.named_parameters():
        masked = name.removesuffix("_orig")
        state[masked] = p if masked == name else p * buffers[f"{masked}_mask"]
    assert_same(net(networks), functional_call(plain, state, (networks,)))


def test_autocast(net):
    net, networks = net.float(), {name: t.float() for name, t in networks_of(net).items()}
    with torch.autocast("cpu", torch.bfloat16):
        out = flat(net(networks))
    assert bool(out.isfinite().all())
    out.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in net.parameters())


# Several processes


@pytest.mark.filterwarnings("ignore")
def test_distributed_data_parallel(net, one_process):
    """Without ``find_unused_parameters`` a second step needs gradients of all parameters in the first one."""
    alone, networks = copy.deepcopy(net), networks_of(net)
    parallel = nn.parallel.DistributedDataParallel(net)
    train(parallel, networks, 3)
    train(alone, networks, 3)
    for found, expected in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_sharded(net, one_process):
    """All linear layers on their own, what is left of each part, what is left of all."""
    networks = networks_of(net)
    expected = net(networks)
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    layers = [getattr(parent, key) for parent, key in linears(net)]
    parts = [m for m in net.children() if list(m.parameters()) and m not in layers]
    for module in (*layers, *parts, net):
        if not isinstance(module, CONTAINERS):
            fully_shard(module, mesh=mesh)
    assert_same(net(networks), expected)
    assert all(g is not None for g in train(net, networks).values())


# Inputs that are not as usual


@pytest.mark.parametrize(
    "make",
    [
        MODELS["MonomialNFN, factored"],
        pytest.param(lambda: MessagePassingEditor(WeightSpace.mlp([2, 3, 1], "relu"), 3, 1), marks=pytest.mark.slow),
    ],
    ids=["MonomialNFN", "MessagePassingEditor"],
)
def test_export_with_any_number_of_networks(make):
    torch.manual_seed(0)
    net = make().double()
    networks = networks_of(net)
    any_number = torch.export.Dim("networks", min=2, max=1024)
    shapes = ({name: {0: any_number} for name in networks},)
    exported = torch.export.export(net.eval(), (networks,), dynamic_shapes=shapes, strict=False).module()
    others = networks_of(net, 5)
    torch.testing.assert_close(flat(exported(others)), flat(net(others)), rtol=1e-8, atol=1e-10)
