"""The models of the experiments: sizes as published, invariant under exactly what they claim."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial import GroupElement, MonomialMatrix, WeightSpace
from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.benchmarks.models.baselines import StatNN
from nfn_monomial.benchmarks.models.catalogue import model_names
from nfn_monomial.benchmarks.studies.predict import objective
from nfn_monomial.tools.predictors.architectures import Architecture, PlainCNN
from nfn_monomial.tools.predictors.invariants import TensorStatistics, widths
from nfn_monomial.tools.predictors.models import Model, NetworkInfo, Standardise, build_model

NETWORKS = 12
SIZES = {
    "statnn": (1_059_001, 1_059_001),
    "mlp": (2_149_201, 2_149_201),
    "np": (2_031_390, 2_031_390),
    "hnp": (2_811_743, 2_811_743),
    "nft": (1_604_057, 1_604_057),
    "monomial": (254_799, 1_424_239),
    "monomial-hnp": (640_643, 1_813_603),
    "gnn": (145_945, 145_945),
    "gnn-hnp": (491_395, 491_395),
    "monomial-gnn": (278_873, 284_313),
    "monomial-conv": (109529, 109529),
    "statnn-set": (71_321, 71_321),
    "stats-set": (71_577, 71_577),
    "stats": (90_113, 90_113),
    "gram-stats": (108_289, 108_289),
    "raw-gram-stats": (130_817, 130_817),
    "message-passing": (236_689, 236_689),
    "message-passing-stats": (260_497, 260_497),
    "probes": (398_081, 398_081),
    "probes-stats": (440_994, 440_994),
    "gram-probes": (459_170, 459_170),
    "generated-probes": (417_186, 417_186),
    "combined": (494_906, 494_906),
}
"""Parameters on the zoo's ReLU and tanh networks, by which results are told apart from those of other models."""


# A canonical form in front makes a model invariant that knows permutations; one that knows nothing stays what it is.
ALL = (*model_names(), "balanced-statnn", "balanced-hnp", "balanced-gnn", "balanced-mlp")


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 3))


# Some invariants of these vary by rounding alone: nodes of one or two neurons, single inputs, kernels of one entry,
# rows in front of a norm, which are all as large when they are balanced.
NARROW: list[Architecture | WeightSpace] = [
    PlainCNN((1, 4, 4), (1, 1), (1, 1), (0, 0), (5, 3), ("relu",) * 3),
    PlainCNN((1, 2, 1), (3, 1), (1, 1), (0, 0), (2, 3), ("tanh",) * 3),
    ResidualCNN(1, (3, 4), (1, 2), (2, 3, 4), normalised=True, activations=("relu",), classes=3),
    Transformer(1, 8, 4, 4, (2,), 2, (3,), ("relu",), 3),
    WeightSpace.from_module(normalised(), torch.zeros(2, 8)),
]


def described(channels: tuple[int, ...], classes: int, activation: str) -> NetworkInfo:
    count = len(channels) - 1
    names = (activation,) * count
    architecture = PlainCNN(channels, (3,) * count, (2,) * count, (1,) * count, (classes,), names)  # type: ignore[arg-type]
    return NetworkInfo(architecture.space, activation, architecture.module, (channels[0], 8, 8))


def zoo_info(activation: str) -> NetworkInfo:
    return described((1, 16, 16, 16), 10, activation)


def small_info(activation: str) -> NetworkInfo:
    return described((2, 4, 5), 3, activation)


def small_space(activation: str) -> WeightSpace:
    return small_info(activation).space


def random_tensors(space: WeightSpace, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 0.5 * torch.randn(NETWORKS, 1, *shape, generator=generator, dtype=dtype)
        for name, shape in space.shapes().items()
    }


def built(name: str, activation: str, tensors: Mapping[str, Tensor]) -> Model:
    model = build_model(name, small_info(activation), seed=0).double()
    model.fit_inputs(model.prepare_groups([(tensors, small_space(activation))]))
    return model.eval()


def relative_change(model: Model, tensors: Mapping[str, Tensor], element: GroupElement) -> float:
    """Largest change of an answer, relative to the spread of answers over networks."""
    with torch.no_grad():
        before = model(model.prepare_groups([(tensors, element.space)]))
        after = model(model.prepare_groups([(element.act(tensors), element.space)]))
    assert before.shape == (NETWORKS,)
    assert before.std() > 1e-4, "an answer that does not depend on the network would be invariant, too"
    return float((after - before).abs().max() / before.std())


def permutations_only(element: GroupElement) -> GroupElement:
    plain = {n: MonomialMatrix(torch.ones_like(m.scale), m.permutation) for n, m in element.matrices.items()}
    return GroupElement(element.space, plain)


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
@pytest.mark.parametrize("name", ALL)
def test_invariant_under_what_it_claims_and_nothing_else(name: str, activation: str) -> None:
    space = small_space(activation)
    tensors = random_tensors(space)
    model = built(name, activation, tensors)
    element = space.sample(NETWORKS, scale_range=(1, 1e6), generator=torch.Generator().manual_seed(1))
    whole = relative_change(model, tensors, element)
    permuted = relative_change(model, tensors, permutations_only(element))
    claims = model.invariant_under
    assert permuted < 1e-10 if claims in ("group", "permutations") else permuted > 1e-2
    expected = claims == "group" or (claims == "permutations" and activation == "gelu")
    assert whole < 1e-10 if expected else whole > 1e-2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ALL)
def test_cuda_gives_what_the_cpu_gives(name: str) -> None:
    space = small_space("relu")
    tensors = random_tensors(space)
    model = built(name, "relu", tensors)
    inputs = model.prepare_groups([(tensors, space)])

    def answers_and_gradients(device: str) -> list[Tensor]:
        answers = model.to(device)(pytree.tree_map(lambda t: t.to(device), inputs))
        gradients = torch.autograd.grad(answers.square().sum(), list(model.parameters()), allow_unused=True)
        return [t.detach().cpu() for t in (answers, *gradients) if t is not None]

    for expected, on_gpu in zip(answers_and_gradients("cpu"), answers_and_gradients("cuda"), strict=True):
        torch.testing.assert_close(on_gpu, expected, rtol=0, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.parametrize("narrow", NARROW, ids=["1x1", "narrow", "norms", "attention", "layer norm"])
@pytest.mark.parametrize("name", ["stats", "stats-set", "message-passing-stats", "gram-probes"])
def test_what_varies_by_rounding_alone_is_not_enlarged(name: str, narrow: Architecture | WeightSpace) -> None:
    if isinstance(narrow, WeightSpace):
        info = NetworkInfo(narrow, "relu", normalised, (8,))
    else:
        info = NetworkInfo(narrow.space, narrow.activation, narrow.module, (1, 8, 8))
    space = info.space
    tensors = random_tensors(space)
    tensors = {key: t.abs() + 0.1 if key.endswith("running_var") else t for key, t in tensors.items()}
    model = build_model(name, info, seed=0).double()
    model.fit_inputs(model.prepare_groups([(tensors, space)]))
    element = space.sample(NETWORKS, scale_range=(1, 100), generator=torch.Generator().manual_seed(1))
    assert relative_change(model.eval(), tensors, element) < 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_varies_by_rounding_alone_is_only_centred(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    x = torch.tensor([[1.0, 3.0, 0.0, 1.0], [1 + 8 * eps, 3.0, 0.0, 1 + 512 * eps]], dtype=dtype)
    standardise = Standardise([4]).to(dtype)
    standardise.fit(x)
    assert standardise.std.flatten()[:3].tolist() == [1, 1, 1]
    scaled = standardise(x)
    assert float(scaled[:, :3].abs().max()) <= 8 * eps
    torch.testing.assert_close(scaled[:, 3].abs(), torch.ones(2, dtype=dtype), rtol=1e-3, atol=0)


def test_numbers_of_a_known_size_are_only_centred_if_they_are_its_rounding() -> None:
    x = torch.tensor([[-1e-16, 1e-3], [1e-16, 2e-3]], dtype=torch.float64)
    small, known = Standardise([2]).double(), Standardise([2], size=1.0).double()
    for standardise in (small, known):
        standardise.fit(x)
    torch.testing.assert_close(small(x).abs(), torch.ones_like(x))
    torch.testing.assert_close(known(x).abs(), torch.tensor([[1e-16, 1.0]], dtype=torch.float64).expand(2, 2))


def test_light_fine_tunes_of_one_base_keep_their_statistics() -> None:
    """Weights that differ by a part in a thousand, in single precision: far above what is rounded."""
    info = small_info("relu")
    base = {name: t[:1].float() for name, t in random_tensors(info.space).items()}
    generator = torch.Generator().manual_seed(3)
    drift = {name: torch.randn(NETWORKS, *t.shape[1:], generator=generator) for name, t in base.items()}
    tuned = {name: t * (1 + 1e-3 * drift[name]) for name, t in base.items()}
    model = build_model("stats", info, seed=0)
    prepared = model.prepare(tuned)
    model.fit_inputs(prepared)
    inputs = model.get_submodule("inputs")
    read = inputs(prepared["stats"])
    assert (read.std(0, correction=0) > 0.99).float().mean() > 0.9, "but for one that hardly depends on the weights"
    element = info.space.sample(NETWORKS, scale_range=(1, 1e4), generator=generator)
    assert (inputs(model.prepare(element.act(tuned))["stats"]) - read).abs().max() < 0.1


@pytest.mark.parametrize("name", SIZES)
def test_size(name: str) -> None:
    models = [build_model(name, zoo_info(activation), seed=0) for activation in ("relu", "tanh")]
    assert tuple(sum(p.numel() for p in model.parameters()) for model in models) == SIZES[name]


def test_sizes_are_known_of_all_models_and_the_published_ones() -> None:
    assert tuple(SIZES) == model_names()
    published = {"statnn": (1.06, 1.06), "np": (2.03, 2.03), "hnp": (2.81, 2.81), "monomial": (0.25, 1.41)}
    for name, millions in published.items():  # App. D.3
        assert [size / 1e6 for size in SIZES[name]] == pytest.approx(millions, abs=0.016)


@pytest.mark.parametrize("name", ["stats", "combined"])
def test_several_heads(name: str) -> None:
    """Each is the single one with its weights, and their answer is the mean; its loss is its own in training."""
    heads, info = 3, small_info("relu")
    tensors = random_tensors(info.space)
    model = build_model(name, info, seed=0, heads=heads, head_width=8, head_dropout=0.0).double().train()
    inputs, accuracy = model.prepare(tensors), torch.rand(NETWORKS, dtype=torch.float64)
    model.fit_inputs(inputs)
    answers = model(inputs)
    assert answers.shape == (NETWORKS, heads)
    for loss in ("bce", "mse", "rank"):
        whole, single = objective(loss, None)(model(inputs), accuracy), list[Tensor]()
        for k in range(heads):
            one = build_model(name, info, seed=1, head_width=8, head_dropout=0.0).double()
            shapes = {n: t.shape for n, t in one.state_dict().items()}
            state = {
                n: t if t.shape == shapes[n] else t.unflatten(0, (heads, -1))[k] for n, t in model.state_dict().items()
            }
            one.load_state_dict(state)
            torch.testing.assert_close(one(inputs), answers[:, k])
            single.append(objective(loss, None)(one(inputs), accuracy))
        torch.testing.assert_close(whole, torch.stack(single).mean())
    torch.testing.assert_close(model.eval()(inputs), answers.mean(1))
    assert float(answers.detach().std(1).min()) > 1e-4, "heads that are all one would be no ensemble"
    element = info.space.sample(NETWORKS, scale_range=(1, 100), generator=torch.Generator().manual_seed(1))
    assert relative_change(model, tensors, element) < 1e-10
    assert build_model(name, info, seed=0, heads=2, out_features=4).double().eval()(inputs).shape == (NETWORKS, 4)


def test_statistics_are_those_of_numpy() -> None:
    space = small_space("relu")
    tensors = random_tensors(space)
    model = built("statnn", "relu", tensors)
    assert isinstance(model, StatNN)
    prepared = model.prepare(tensors)
    for i, name in enumerate(space.parameters):
        x = tensors[name].flatten(1)
        mean, variance, *quartiles = prepared[:, 7 * i : 7 * i + 7].T
        torch.testing.assert_close(mean, x.mean(1))
        torch.testing.assert_close(variance, x.var(1, correction=0))
        expected = torch.quantile(x, torch.tensor([0, 0.25, 0.5, 0.75, 1], dtype=x.dtype), dim=1)
        torch.testing.assert_close(torch.stack(quartiles), expected)


@pytest.mark.parametrize("name", ["statnn", "mlp", "np", "hnp", "gnn", "monomial", "monomial-hnp"])
def test_dropout_of_heads_changes_training_alone(name: str) -> None:
    """And no key or first value of a parameter."""
    info = small_info("relu")
    plain, dropping = (build_model(name, info, seed=0, head_dropout=p).double() for p in (0.0, 0.5))
    assert {key: t.shape for key, t in plain.state_dict().items()} == {
        key: t.shape for key, t in dropping.state_dict().items()
    }
    assert all(torch.equal(t, dropping.state_dict()[key]) for key, t in plain.state_dict().items())
    inputs = plain.prepare(random_tensors(info.space))
    plain.fit_inputs(inputs)
    dropping.fit_inputs(inputs)
    torch.testing.assert_close(dropping.eval()(inputs), plain.eval()(inputs))
    assert not torch.allclose(dropping.train()(inputs), plain.train()(inputs))
    drops = [module for module in dropping.head.modules() if isinstance(module, nn.Dropout)]
    assert [module.p for module in drops] == [0.5, 0.5], "of the vector, and of the first hidden layer"


def test_raw_statistics_are_of_every_tensor_as_it_is() -> None:
    """Means and quartiles among them, passed through ``sign(x) log(1 + |x|)``."""
    space = small_space("relu")
    tensors = random_tensors(space, dtype=torch.float32)
    read = TensorStatistics(space)
    found = read(tensors).unflatten(-1, (len(read.names), -1))
    assert read.names == tuple(space.parameters)
    for i, name in enumerate(read.names):
        flat = tensors[name].flatten(1).double()
        quartiles = torch.quantile(flat, torch.linspace(0, 1, 5, dtype=torch.float64), dim=1).T
        expected = torch.cat([flat.mean(1, keepdim=True), quartiles], 1)
        torch.testing.assert_close(
            found[:, i, [0, *range(2, 7)]].double(), expected.sign() * expected.abs().log1p(), rtol=1e-5, atol=1e-6
        )
    huge = {name: 1e12 * x for name, x in tensors.items()}
    assert bool(read(huge).isfinite().all())


def test_statistics_are_made_of_as_many_networks_as_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    space = WeightSpace.mlp([3, 5, 4, 2], "relu")
    model = build_model("gram-stats", NetworkInfo(space, "relu"), seed=0)
    networks = {name: torch.randn(7, 1, *shape) for name, shape in space.shapes().items()}
    whole = model.prepare(networks)["stats"]
    sizes = []
    of_each = 5**2 + 4**2 + sum(t[0].numel() for t in networks.values())
    monkeypatch.setattr("nfn_monomial.tools.predictors.invariants.AT_ONCE", 4 * of_each - 1)
    for kind in model.statistics:  # type: ignore[union-attr]
        kind.register_forward_pre_hook(lambda _, args: sizes.append(len(next(iter(args[0].values())))))
    torch.testing.assert_close(model.prepare(networks)["stats"], whole)
    assert sizes == [3, 3, 3, 3, 1, 1]
    assert len(model.prepare({name: t[:0] for name, t in networks.items()})["stats"]) == 0


def test_widths_are_those_of_layers_also_where_neurons_lie_in_groups() -> None:
    space = WeightSpace.from_module(Normed(), torch.randn(2, 3, 8, 8))
    assert sorted(widths(space)) == [2, 3, 6, 6], "two and three groups, and their neurons"


class Normed(nn.Sequential):
    """Channels lie in the groups of a norm, whose signs no activation after it shows."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.GroupNorm(3, 6), nn.Tanh(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4),
        )  # fmt: skip


def test_neurons_in_the_groups_of_a_norm_are_probed() -> None:
    torch.manual_seed(0)
    module, x = Normed().double(), torch.randn(2, 3, 8, 8).double()
    space = WeightSpace.from_module(module, x)
    assert any(node.parent for node in space.nodes.values())
    model = build_model("combined", NetworkInfo(space, "Normed", Normed, (3, 8, 8)), seed=0).double().eval()
    networks = {name: torch.randn(3, 1, *shape).double() for name, shape in space.shapes().items()}
    moved = space.sample(scale_range=(0.5, 2)).act(networks)
    assert any((networks[name] - moved[name]).abs().max() > 1 for name in networks)
    before, after = (model(model.prepare(tensors)) for tensors in (networks, moved))
    torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-12)
    other = {name: t + 0.1 * torch.randn_like(t) for name, t in networks.items()}
    assert (model(model.prepare(other)) - before).abs().min() > 1e-4
