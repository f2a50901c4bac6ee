"""What every layer and model does: it commutes with the group, at any scale of the networks; it looks at no values; and
it is a module like others to torch and to what is built on torch."""

import copy
import io
import os
import pickle

import pytest
import torch
import torch.distributed as dist
from every_layer import CASES, EQUIVARIANT, EXPERTS, INVARIANT, LAYERS, ON_VALUES, built, features_for, of_heads
from hypothesis import assume, example, given
from hypothesis import strategies as st
from strategies import all_spaces
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import prune
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from versions_of_torch import since_2_13

from nfn_monomial import Features, Symmetry, WeightSpace
from nfn_monomial.testing import assert_equivariant, assert_invariant

seeds = st.integers(0, 10**6)
SPACES = pytest.mark.parametrize(
    "space",
    [WeightSpace.mlp([2, 4, 3, 1], "tanh"), WeightSpace.cnn([1, 3, 3], 3, ["relu", "gelu"], head=[2])],
    ids=str,
)
CONTAINERS = (nn.ParameterList, nn.ParameterDict, nn.ModuleList, nn.ModuleDict)  # which have no forward
TRAINED = [
    name for name in CASES if name not in {"activation", "input norm", "pool", "pool, sum", "neuron pool", *ON_VALUES}
]
_MODELS = [name for name in CASES if name.startswith("MessagePassing")]
BUT = {
    # What they return are products of what they are given, as large as these, where nothing normalises before.
    # Statistics add up squares, which end at 1e154 in float64.
    "finite": [
        "messages",
        "messages, tied",
        "gate",
        "gate, tied",
        "block, tied",
        "MessagePassingNFN, tied",
        "statistics",
    ],
}
"""Property -> layers and models that do not have it."""


def every(holds, names=CASES, fast=None):
    """All layers and models that have a property; where some are ``fast``, `make slow` tests the others."""
    names = [name for name in names if name not in BUT.get(holds, ())]
    slow = [] if fast is None else [name for name in names if name not in fast]
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in names]
    )


def case(name, batch=4, dtype=torch.float64):
    """A layer, and features that it takes."""
    space, make = CASES[name]
    layer = built(make, space).to(dtype)
    return layer, features_for(layer, space, batch, dtype=dtype)


def tensors_of(out):
    """All tensors that a layer returns."""
    return pytree.tree_leaves(out)


def assert_same(out, expected):
    torch.testing.assert_close(tensors_of(out), tensors_of(expected), rtol=1e-8, atol=1e-10)


def backward(out):
    """From the mean of all entries that have a gradient."""
    with_gradient = [t for t in tensors_of(out) if t.requires_grad]
    torch.autograd.backward(with_gradient, [torch.full_like(t, 1 / max(t.numel(), 1)) for t in with_gradient])


def train(layer, features, steps=2):
    """A few steps; returns the last gradients."""
    optimizer = torch.optim.SGD(layer.parameters(), 1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        sum(t.square().sum() for t in tensors_of(layer(features))).backward()
        optimizer.step()
    return {name: p.grad for name, p in layer.named_parameters()}


# The group


@pytest.mark.parametrize("name", EQUIVARIANT)
@given(all_spaces(), seeds)
@example(EXPERTS, 0)
@example(of_heads(Symmetry.FIXED), 0)
def test_layers_are_equivariant(name, space, seed):
    layer = built(LAYERS[name], space, seed)
    assert_equivariant(layer, space, inputs=features_for(layer, space, 8, seed), trials=1, seed=seed)


@pytest.mark.parametrize("name", INVARIANT)
@given(all_spaces(), seeds)
@example(EXPERTS, 0)
@example(of_heads(Symmetry.FIXED), 0)
def test_models_are_invariant(name, space, seed):
    layer = built(LAYERS[name], space, seed)
    x = features_for(layer, space, 4, seed)
    assume(float(layer(x).detach().std(0).max()) > 1e-4)
    assert_invariant(layer, space, inputs=x, trials=1, seed=seed)


# Numbers


ENDS = {  # sizes whose squares a dtype does not hold
    torch.float64: (1e-280, 1e-160, 1e160, 1e280),
    torch.float32: (1e-30, 1e-20, 1e19, 1e30),
    torch.bfloat16: (1e-30, 1e-20, 1e19, 1e30),
    torch.float16: (1e-3, 300.0, 1e3),
}


@SPACES
@pytest.mark.parametrize("dtype", ENDS, ids=str)
@every("finite", LAYERS | ON_VALUES)
def test_networks_of_any_size(name, dtype, space):
    """What is returned is finite, and so are gradients, by networks and parameters."""
    layer = built((LAYERS | ON_VALUES)[name], space).to(dtype)
    for size in ENDS[dtype]:
        x = features_for(layer, space).map(lambda t, size=size: (t.clamp(-3, 3) * size).to(dtype).requires_grad_())
        layer.zero_grad()
        out = layer(x)
        backward(out)
        by = [t.grad for t in (*x.tensors, *layer.parameters()) if t.grad is not None]
        assert all(bool(t.isfinite().all()) for t in (*tensors_of(out), *by)), f"networks of {size}"
        assert all(t.dtype == dtype for t in tensors_of(out))


@every("scaled", [*LAYERS, "statistics", "Gram matrices"])
def test_neurons_that_are_scaled_by_any_number(name):
    """In float32 outputs and gradients are those of unscaled networks, moved, for scales up to 1e12 either way."""
    space = WeightSpace.mlp([2, 4, 3, 1], "relu")
    layer = built((LAYERS | ON_VALUES)[name], space)
    g = space.sample(4, scale_range=(1e-12, 1e12), generator=torch.Generator().manual_seed(0))
    results = []
    for moves in (False, True):
        x = features_for(layer, space).map(torch.Tensor.requires_grad_)
        out = layer.float()(g.act(x).to(torch.float32)) if moves else layer(x)
        out = g.inverse().act(out.to(torch.float64)) if moves and isinstance(out, Features) else out
        layer.zero_grad()
        backward(out)
        by = [t.new_zeros(0) if t.grad is None else t.grad.flatten() for t in x.tensors]
        results.append([*(t.detach().double() for t in tensors_of(out)), torch.cat(by)])
    for plain, moved in zip(*results, strict=True):
        torch.testing.assert_close(moved, plain, rtol=0, atol=2e-4 * float(plain.abs().max()))


@pytest.mark.parametrize("name", LAYERS | ON_VALUES)
def test_no_networks_and_networks_of_zeros(name):
    """The first have no rows of what comes out and gradients, the second have finite gradients."""
    space = WeightSpace.mlp([2, 4, 3, 1], "relu")
    layer = built((LAYERS | ON_VALUES)[name], space)
    x = features_for(layer, space)
    for networks in (x[:0], x.map(torch.zeros_like)):
        networks.map(torch.Tensor.requires_grad_)
        tensors = tensors_of(layer(networks))
        assert [t.shape for t in tensors] == [(len(networks), *t.shape[1:]) for t in tensors_of(layer(x))]
        torch.autograd.backward([t.sum() for t in tensors if t.requires_grad])
        assert all(t.grad is None or bool(t.grad.isfinite().all()) for t in networks.tensors)


# Of spaces without scales, which canonical forms hold constant in derivatives.
@every("derivatives", [name for name, (space, _) in CASES.items() if not space.group_dimension])
def test_derivatives_and_derivatives_of_derivatives(name):
    layer, x = case(name, batch=2)
    inputs = [t.requires_grad_() for t in x.tensors]

    def outputs(*tensors):
        return tuple(t for t in tensors_of(layer(Features(x.layout, tensors))) if t.requires_grad)

    assert torch.autograd.gradcheck(outputs, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(outputs, inputs, atol=1e-4, fast_mode=True)


@every("autocast")
def test_autocast(name):
    layer, x = case(name, dtype=torch.float32)
    expected = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    for a, b in zip(tensors_of(out), tensors_of(expected), strict=True):
        torch.testing.assert_close(a.float(), b, rtol=0, atol=0.05 * float(b.detach().abs().max()))
    backward(out)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())


# Devices, graphs and transforms


LOOKS = {
    "_linalg_check_errors", "_local_scalar_dense", "_unique2", "bincount", "equal", "is_nonzero", "item",
    "masked_select", "nonzero", "unique_consecutive", "unique_dim",
}  # fmt: skip


class Waits(TorchDispatchMode):
    """Stands for an accelerator, for which nothing waits that is captured in a CUDA graph: the operators that look at
    values, or read or make tensors elsewhere."""

    def __init__(self, device):
        super().__init__()
        self.device, self.names = device, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        tensors = [t for t in pytree.tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
        if name in LOOKS or any(t.device.type != self.device for t in tensors):
            self.names.append(name)
        return out


def test_waiting_is_seen():
    with Waits("cpu") as waits:
        float(torch.ones(3).max())
    assert waits.names == ["_local_scalar_dense"]
    with Waits("meta") as waits:
        torch.ones(3, device="meta")[torch.tensor([0])]
    assert "index" in waits.names


@SPACES
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", [*LAYERS, "balance"])
def test_no_layer_waits_for_a_device(name, device, space):
    layer = built((LAYERS | ON_VALUES)[name], space)
    x = features_for(layer, space).to(device).map(torch.Tensor.requires_grad_)
    layer.to(device)(x)
    with Waits(device) as waits:
        backward(layer(x))
    assert not waits.names


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_cuda_gives_what_the_cpu_gives(name):
    layer, x = case(name)
    expected, out = layer(x), layer.cuda()(x.to("cuda"))
    assert_same([t.cpu() for t in tensors_of(out)], expected)


@SPACES
@pytest.mark.parametrize("name", LAYERS | ON_VALUES)
def test_networks_are_mapped(name, space):
    layer = built((LAYERS | ON_VALUES)[name], space)
    x = features_for(layer, space)
    before = x.map(torch.clone)
    one_by_one = torch.func.vmap(lambda f: pytree.tree_map(lambda t: t[0], layer(f.map(lambda t: t[None]))))(x)
    assert_same(one_by_one, layer(x))
    assert all(map(torch.equal, x.tensors, before.tensors)), "what is given is not written to"


@since_2_13
@every("compiled", fast={"input norm", "block", "MonomialNFN", "statistics"})  # which consist of most of the others
def test_layers_compile_as_one_graph_for_any_number_of_networks(name):
    from torch._dynamo.testing import CompileCounter

    layer, x = case(name, batch=9)
    graphs = CompileCounter()
    compiled = torch.compile(layer, fullgraph=True, backend=graphs)
    x.map(lambda t: torch._dynamo.maybe_mark_dynamic(t, 0))
    for count in (9, 5, 7):
        assert_same(compiled(x[:count] if count < 9 else x), layer(x[:count]))
    assert graphs.frame_count == 1


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@every("exported", fast={"linear", "input norm", "EquivariantNFN", "MonomialNFN, kernels"})
def test_programs_are_exported_and_read_for_any_number_of_networks(name):
    """Given features, and named tensors where a layer takes these, too."""
    layer, x = case(name)
    layer.eval()
    number = torch.export.Dim("networks", min=2, max=1024)
    examples = [(x, [{0: number} for _ in x.tensors])]
    if name.startswith(("MonomialNFN", "EquivariantNFN", "MessagePassingNFN", "MessagePassingEditor")):
        networks = layer.space.unpack(x)
        examples.append((networks, {parameter: {0: number} for parameter in networks}))
    for batch, shapes in examples:
        program, file = torch.export.export(layer, (batch,), dynamic_shapes=(shapes,), strict=False), io.BytesIO()
        if not name.startswith("tensor product"):  # the names of its maps have commas, at which torch.export.load cuts
            torch.export.save(program, file)
            file.seek(0)
            program = torch.export.load(file)
        others = pytree.tree_map(lambda t: torch.cat([t, -t, t]), batch)
        assert_same(program.module()(others), layer(others))


# Parameters


@every("every parameter matters", TRAINED)
def test_every_parameter_matters(name):
    for parameter, gradient in train(*case(name)).items():
        assert gradient is not None, f"{parameter} is not used"
        assert bool(gradient.any()), f"the gradient of {parameter} is zero"


@every("hooks")
def test_hooks_of_every_module_with_parameters_are_run(name):
    layer, x = case(name)
    seen, expected = set(), set()
    for key, module in layer.named_modules():
        if list(module.parameters(recurse=False)) and not isinstance(module, CONTAINERS):
            expected.add(key)
            module.register_forward_pre_hook(lambda module, given, key=key: seen.add(("before", key)))
            module.register_forward_hook(lambda module, given, out, key=key: seen.add(("after", key)))
    layer(x)
    assert seen == {(when, key) for when in ("before", "after") for key in expected}


@every("hooks of all modules")
def test_hooks_of_all_modules_see_every_module_with_parameters(name):
    layer, x = case(name)
    modules = [m for m in layer.modules() if list(m.parameters(recurse=False)) and not isinstance(m, CONTAINERS)]
    seen = set()
    handle = register_module_forward_hook(lambda module, inputs, out: seen.add(id(module)))
    layer(x)
    handle.remove()
    assert {id(module) for module in modules} <= seen


def reset(module):
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()


@every("made on the meta device", [name for name in CASES if "probes" not in name])
def test_modules_are_made_on_the_meta_device_and_filled(name):
    """By `reset_parameters`, children first, in the distribution of a new one; or by a state dict."""
    space, make = CASES[name]
    torch.manual_seed(0)
    new = make(space)
    with torch.device("meta"):
        empty = make(space)
    assert all(t.is_meta for t in empty.state_dict().values())
    empty.to_empty(device="cpu")
    with torch.no_grad():
        for t in empty.state_dict().values():
            t.fill_(torch.nan)
    again = copy.deepcopy(new)
    for module in (empty, again):
        torch.manual_seed(1)
        module.apply(reset)
    drawn, start = again.state_dict(), new.state_dict()
    for key, t in empty.state_dict().items():
        assert torch.equal(t, drawn[key]), f"{key} is not filled"
        variance, expected = (float(x.square().mean()) for x in (t, start[key]))
        if t.numel() >= 32:
            assert abs(variance - expected) <= 5 * (1.6 / t.numel()) ** 0.5 * expected, f"{key} has another variance"
    empty.load_state_dict(new.state_dict())
    x = features_for(new, space, dtype=torch.float32)
    assert_same(empty(x), new(x))


@every("meta state")
def test_state_dicts_on_the_meta_device(name):
    layer, x = case(name)
    state = layer.state_dict()
    empty = copy.deepcopy(layer).to("meta")
    assert {key: t.shape for key, t in empty.state_dict().items()} == {key: t.shape for key, t in state.items()}
    assert all(t.is_meta for t in empty.state_dict().values())
    empty.load_state_dict(state, assign=True)
    assert all(not t.is_meta for t in empty.parameters())
    if "probes" not in name:  # whose template is no part of the state
        assert_same(empty(x), layer(x))


@every("copies")
def test_copies(name):
    layer, x = case(name)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for twin in (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),  # noqa: S301  # our own
        torch.load(file, weights_only=False),
    ):
        assert_same(twin(x), layer(x))


@every("printed")
def test_printed_within_a_screen(name):
    space, make = CASES[name]
    deep = WeightSpace.mlp([2, *[32] * 12, 1], "relu")
    for of in (space, deep) if name in LAYERS else (space,):
        lines = repr(make(of)).splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= 120


# Other ways to hold parameters


def replica(layer):
    """As `torch.nn.parallel.replicate` makes them: parameters are plain tensors, ``parameters()`` is empty."""
    modules = list(layer.modules())
    copies = {module: module._replicate_for_data_parallel() for module in modules}
    for module in modules:
        for key, child in module._modules.items():
            setattr(copies[module], key, copies[child]) if child is not None else None
        for key, parameter in module._parameters.items():
            if parameter is None:
                copies[module]._parameters[key] = None
            else:
                setattr(copies[module], key, parameter.clone())
    return copies[layer]


@every("replicas")
def test_replicas_of_data_parallel(name):
    layer, x = case(name)
    copied = replica(layer)
    assert not list(copied.parameters())
    out = copied(x)
    assert_same(out, layer(x))
    backward(out)
    assert all(p.grad is not None for p in layer.parameters())


@every("ensembles", TRAINED)
def test_ensembles(name):
    """Several layers side by side, by `torch.func.vmap` over their parameters."""
    space, make = CASES[name]
    layers = [built(make, space, seed) for seed in range(2)]
    x = features_for(layers[0], space)
    out = torch.func.vmap(lambda *state: functional_call(layers[0], state, (x,)))(
        *torch.func.stack_module_state(layers)
    )
    for i, layer in enumerate(layers):
        assert_same([t[i] for t in tensors_of(out)], layer(x))


@every("pruned", TRAINED)
def test_pruned(name):
    """Masks count in every step, not only when they are made."""
    layer, x = case(name)
    plain = copy.deepcopy(layer)
    for module in list(layer.modules()):
        for key, p in list(module.named_parameters(recurse=False)):
            if not isinstance(module, CONTAINERS) and p.numel() > 1:
                prune.random_unstructured(module, key, amount=0.3)
    train(layer, x)
    buffers = dict(layer.named_buffers())
    state = {key: b for key, b in buffers.items() if not key.endswith("_mask")}
    for key, p in layer.named_parameters():
        masked = key.removesuffix("_orig")
        state[masked] = p if masked == key else p * buffers[f"{masked}_mask"]
    assert_same(layer(x), functional_call(plain, state, (x,)))


def linears(layer):
    children = [(parent, key, child) for parent in layer.modules() for key, child in parent.named_children()]
    return [(parent, key) for parent, key, child in children if isinstance(child, nn.Linear)]


class LowRank(nn.Module):
    """In place of a linear map, as peft's LoRA has it: the map itself, and a product of two narrow ones beside it."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.down = nn.Linear(base_layer.in_features, 2, bias=False).to(base_layer.weight)
        self.up = nn.Linear(2, base_layer.out_features, bias=False).to(base_layer.weight)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x))


@every("low-rank updates", TRAINED)
def test_linear_maps_may_have_low_rank_updates(name):
    layer, x = case(name)
    expected = layer(x)
    layer.requires_grad_(False)
    for parent, key in linears(layer):
        parent.register_module(key, LowRank(parent.get_submodule(key)))
    assert_same(layer(x), expected)
    backward(layer(x))
    updates = [module for module in layer.modules() if isinstance(module, LowRank)]
    assert all(update.up.weight.grad is not None for update in updates)


# Several processes


@pytest.fixture(scope="module")
def one_process():
    """A process group of this process alone."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@every("distributed", TRAINED)
def test_distributed_data_parallel(name, one_process):
    """Without ``find_unused_parameters`` a second step needs gradients of all parameters in the first one."""
    layer, x = case(name)
    alone = copy.deepcopy(layer)
    train(nn.parallel.DistributedDataParallel(layer), x, 3)
    train(alone, x, 3)
    assert_same(list(layer.parameters()), list(alone.parameters()))


@pytest.mark.filterwarnings("ignore")
@every("sharded", TRAINED)
def test_sharded(name, one_process):
    """All linear layers on their own, what is left of each part, what is left of all."""
    layer, x = case(name)
    expected = layer(x)
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    inner = [getattr(parent, key) for parent, key in linears(layer)]
    parts = [m for m in layer.children() if list(m.parameters()) and m not in inner]
    for module in (*inner, *parts, layer):
        if not isinstance(module, CONTAINERS):
            fully_shard(module, mesh=mesh)
    assert_same(layer(x), expected)
    assert all(g is not None for g in train(layer, x).values())


@pytest.mark.filterwarnings("ignore")
def test_sharded_parameters_are_drawn_before(one_process):
    """Rows of a sharded matrix are copies: what is drawn there would be lost."""
    layer = fully_shard(case("linear")[0], mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
    with pytest.raises(ValueError, match="call reset_parameters before fully_shard"):
        layer.reset_parameters()
