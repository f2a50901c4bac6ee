"""``normal-`` in front of a model: answers that nothing changes which leaves the networks' functions as they are."""

import copy
import functools

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.tools.predictors.architectures import PlainCNN
from nfn_monomial.tools.predictors.models import MixedInfo, Model, NetworkInfo, build_model, model_class, register

NETWORKS = 6
NAMES = ("statnn", "stats", "monomial", "message-passing-stats", "gnn", "monomial-conv", "statnn-set")


@functools.cache
def block() -> NetworkInfo:
    """Attention and an MLP between layer norms, as in GPT."""
    architecture = Transformer(1, 4, 2, 4, (2,), 2, (3,), ("gelu",), 3)
    return NetworkInfo(architecture.space, "gelu", architecture.module, (1, 4, 4))


class Adapted(nn.Module):
    """An MLP with frozen weights, and an adapter of each layer: ``x -> (W + U D) x + b``."""

    def __init__(self, base: list[tuple[Tensor, Tensor]], rank: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(weight.shape[1], len(weight)) for weight, _ in base)
        for layer, (weight, bias) in zip(self.layers, base, strict=True):
            layer.load_state_dict({"weight": weight, "bias": bias})
        self.layers.requires_grad_(False)
        self.down = nn.ParameterList(torch.zeros(rank, weight.shape[1]) for weight, _ in base)
        self.up = nn.ParameterList(torch.zeros(len(weight), rank) for weight, _ in base)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for i, (layer, down, up) in enumerate(zip(self.layers, self.down, self.up, strict=True)):
            x = gelu(x) if i else x
            x = layer(x) + x @ down.T @ up.T
        return x


@functools.cache
def adapters() -> NetworkInfo:
    """Networks of two layers and of rank 3."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(5, 16), (4, 5)]
    base = [(torch.randn(*n, generator=generator), torch.randn(n[0], generator=generator)) for n in sizes]
    module, frozen = Adapted(base, 3), [f"layers.{i}.{name}" for i in (0, 1) for name in ("weight", "bias")]
    space = WeightSpace.from_module(module, torch.zeros(2, 1, 4, 4), frozen=frozen)
    return NetworkInfo(space, "gelu", functools.partial(Adapted, base, 3), (1, 4, 4))


INFOS = {"block": block, "adapters": adapters}


def random_networks(info: NetworkInfo, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = info.space.shapes().items()
    return {n: torch.randn(NETWORKS, 1, *s, generator=generator, dtype=torch.float64).to(dtype) for n, s in shapes}


def answers(model: Model, info: NetworkInfo, tensors: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(model.prepare_groups([(tensors, info.space)]))
    return out


def built(name: str, info: NetworkInfo, tensors: dict[str, Tensor]) -> Model:
    model = build_model(name, info, seed=0).double()
    model.fit_inputs(model.prepare_groups([(tensors, info.space)]))
    return model.eval()


@pytest.mark.parametrize("kind", INFOS)
@pytest.mark.parametrize("name", NAMES)
def test_answers_do_not_change_when_networks_move_along_their_fibre(name: str, kind: str) -> None:
    info = INFOS[kind]()
    tensors = random_networks(info)
    moved = info.form.sample(tensors, generator=torch.Generator().manual_seed(2))
    changes = {}
    for front in ("", "balanced-", "normal-"):
        model = built(f"{front}{name}", info, tensors)
        before, after = (answers(model, info, x) for x in (tensors, moved))
        assert before.std() > 1e-6
        changes[front] = float((after - before).abs().max() / before.std())
    assert changes["normal-"] < 1e-9, "but for rounding"
    assert min(changes[""], changes["balanced-"]) > 1e-2, "the monomial group is not all"


def test_models_that_run_networks_are_exact_along_fibres_unless_they_see_weights_as_well() -> None:
    for info in (block(), adapters()):
        tensors = random_networks(info)
        moved = info.form.sample(tensors, generator=torch.Generator().manual_seed(2))
        for name in ("probes", "generated-probes", "probes-stats", "combined"):
            model = built(name, info, tensors)
            before, after = (answers(model, info, x) for x in (tensors, moved))
            change = float((after - before).abs().max() / before.std())
            assert change < 1e-9 if name.endswith("probes") else change > 1e-2
            with pytest.raises(ValueError, match=r"runs the networks.* choose a model that sees weights alone"):
                build_model(f"normal-{name}", info, seed=0)


def test_a_model_that_knows_no_permutations_learns_none_from_normal_forms() -> None:
    info = block()
    tensors = random_networks(info)
    model = built("normal-mlp", info, tensors)
    assert (model.label, model.invariant_under, model.any_width) == ("normal MLP", "nothing", False)
    moved = info.space.restricted("permutation").sample(NETWORKS, generator=torch.Generator().manual_seed(3))
    before, after = (answers(model, info, x) for x in (tensors, moved.act(tensors)))
    assert (after - before).abs().max() > 1e-2 * before.std()


def test_the_order_of_singular_values_settles_all_of_an_adapter() -> None:
    """Also of zeros beyond a lower rank: in float32 they are no longer zeros once they are moved."""
    info = adapters()
    for dtype, most in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        tensors = random_networks(info, dtype)
        for i in (0, 1):
            tensors[f"down.{i}"][:, :, 1:], tensors[f"up.{i}"][..., 1:] = 0, 0
        moved = info.form.sample(tensors, generator=torch.Generator().manual_seed(2))
        plain, other = (model_class("normal-mlp")(info).prepare_groups([(x, info.space)]) for x in (tensors, moved))
        torch.testing.assert_close(plain, other, rtol=0, atol=most)
        for name, x in info.form(moved).items():
            beyond = x[:, :, 1:] if name.startswith("down") else x[..., 1:]
            assert beyond.abs().max() < 1e-6 * x.abs().max()


def test_networks_of_several_architectures_have_each_its_own_form() -> None:
    plain = PlainCNN((1, 3), (3,), (1,), (1,), (3,), ("relu",))
    infos = (block(), NetworkInfo(plain.space, "relu", plain.module, (1, 4, 4)))
    model = build_model("normal-stats-set", MixedInfo(infos), seed=0).double().eval()
    tensors = [random_networks(info) for info in infos]
    names = list(infos[1].form.whole.parameters)  # those of the module, in the order of the space's
    renamed = dict(zip(names, tensors[1].values(), strict=True))
    moved = [infos[0].form.sample(tensors[0]), infos[1].form.sample(renamed)]
    moved[1] = dict(zip(tensors[1], (moved[1][name] for name in names), strict=True))
    with torch.no_grad():
        before, after = (
            model(model.prepare_groups([(t, info.space) for t, info in zip(x, infos, strict=True)]))
            for x in (tensors, moved)
        )
    assert (after - before).abs().max() < 1e-9 * before.std()


def test_parameters_do_not_depend_on_whether_the_form_is_known() -> None:
    a, b = (build_model("normal-stats", NetworkInfo(*fields(block())), seed=0) for _ in range(2))
    known = build_model("normal-stats", block(), seed=0)
    for x, y, z in zip(a.parameters(), b.parameters(), known.parameters(), strict=True):
        assert torch.equal(x, y)
        assert torch.equal(x, z)
    assert copy.deepcopy(a).state_dict().keys() == a.state_dict().keys()


def fields(info: NetworkInfo) -> tuple[object, ...]:
    return info.space, info.activation, info.template, info.input_shape


def test_what_cannot_be_read_in_normal_form_is_refused() -> None:
    info = block()
    with pytest.raises(ValueError, match=r"normal forms need the torch module .* template and an input_shape"):
        build_model("normal-stats", NetworkInfo(info.space, "gelu"), seed=0)
    with pytest.raises(ValueError, match="each also with 'balanced-' or 'normal-' in front"):
        register["normal-normal-stats"]
    other = Transformer(1, 4, 2, 6, (2,), 2, (3,), ("gelu",), 3).space
    with pytest.raises(ValueError, match="built for networks of other sizes"):
        model_class("normal-stats")(info).prepare_groups([(random_networks(info), other)])
