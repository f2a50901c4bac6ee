"""A trained model that was saved and loaded says of networks what it said when it was tested."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_predictors
import torch
from safetensors.torch import save_file
from small_predictors import SIREN, Left, inrs, stacked
from small_zoo import corpus
from torch import nn
from torch.utils import _pytree as pytree

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.modules import unstack_networks
from nfn_monomial.benchmarks.models.inr import SineNetwork
from nfn_monomial.benchmarks.studies import classify, predict
from nfn_monomial.benchmarks.train.runs import RunStore
from nfn_monomial.errors import InvalidTypeError, InvalidValueError, MissingFileError
from nfn_monomial.tools.predictors import SHIPPED, Predictor, models
from nfn_monomial.tools.predictors.models import MixedInfo, NetworkInfo
from nfn_monomial.tools.predictors.quantiles import Quantiles
from nfn_monomial.tools.predictors.tasks import Generalization, read_task, score_in_words, warning_of_few

ZOO = corpus("relu").test[0]
CNNS, SPACE = stacked(ZOO.networks.tensors), ZOO.info.space
INRS = inrs().test
SIRENS = stacked(INRS.tensors)


def cnn(width: int = 4, activation: Callable[[], nn.Module] = nn.ReLU, kernel: int = 3) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, width, kernel, 2), activation(), nn.Conv2d(width, 5, kernel, 2), activation(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip


def test_answers_are_those_that_were_tested(accuracy_predictors: Left, classifiers: Left, editors: Left) -> None:
    for name, (run, path) in accuracy_predictors.items():
        predictor = Predictor.load(path)
        found = predictor(CNNS)
        assert found.shape == (len(ZOO),)
        assert bool(((found >= 0) & (found <= 1)).all())
        tested = predict.scores(torch.logit(found.double()), ZOO.networks.accuracy)
        assert tested == pytest.approx(run.tests[0].metrics, rel=1e-4), name
        assert predictor.metrics == run.tests[0].metrics
        assert (predictor.record["val"], predictor.record["settings"]["seed"]) == (run.val, 0)
    for name, (run, path) in classifiers.items():
        found = Predictor.load(path)(SIRENS)
        torch.testing.assert_close(found.sum(-1), torch.ones(len(INRS)))
        tested = classify.scores(found.double().log(), INRS.labels)
        assert tested == pytest.approx(run.tests[0].metrics, rel=1e-4), name
    for name, (run, path) in editors.items():
        answers = Predictor.load(path)(SIRENS)
        edited = {key: torch.stack([network[key] for network in answers]) for key in SIRENS}
        shown = RunStore(path.parents[1]).artifacts(run.settings)["edited"]
        # In float32 two layers of sin(30 x) make some thousand roundings of one.
        torch.testing.assert_close(SIREN.render(edited), shown, rtol=1e-3, atol=2e-4, msg=name)
        assert not torch.allclose(shown, SIREN.render({n: t.squeeze(1) for n, t in SIRENS.items()}), atol=1e-3)


def test_modules_state_dicts_and_tensors_are_one(accuracy_predictors: Left) -> None:
    predictor = Predictor.load(accuracy_predictors["message-passing-stats"][1])
    modules = [cnn(), cnn(6), cnn()]
    expected = torch.cat([predictor(module) for module in modules])
    assert len(set(expected.tolist())) == 3
    states = [module.state_dict() for module in modules]
    for networks in (modules, nn.ModuleList(modules), states):
        torch.testing.assert_close(predictor(networks), expected)
    named = {f"module.{name}": t for name, t in states[0].items()}
    for network in (named, modules[0].double()):
        torch.testing.assert_close(predictor(network), expected[:1])
    batch = {name: t[:3] for name, t in CNNS.items()}
    torch.testing.assert_close(predictor(unstack_networks(batch, SPACE)), predictor(batch))


def test_wider_networks_are_welcome_where_the_model_reads_them(
    accuracy_predictors: Left, classifiers: Left, editors: Left
) -> None:
    sine = SineNetwork(replace(SIREN, sizes=(2, 6, 9, 1)))
    for left, wide in ((accuracy_predictors, cnn(7)), (classifiers, sine), (editors, sine)):
        for name, (_, path) in left.items():
            predictor = Predictor.load(path)
            if predictor.reads.endswith("of any width"):
                assert all(bool(torch.isfinite(t).all()) for t in pytree.tree_leaves(predictor(wide))), name
            else:
                assert name == "mlp"
                with pytest.raises(InvalidValueError, match=r"layers (1-4-5-3|2-6-6-1).* has 3 layers (1-7-5|2-6-9)"):
                    predictor(wide)


def test_edited_networks_have_the_keys_and_dtypes_they_came_with(editors: Left) -> None:
    predictor = Predictor.load(editors["message-passing"][1])
    module = SineNetwork(replace(SIREN, sizes=(2, 6, 9, 1))).double()
    other = {f"net.{key}": t.float() for key, t in module.state_dict().items()}
    first, second = predictor([module, other])
    assert list(second) == list(other)
    for a, b in zip(first.values(), second.values(), strict=True):
        assert (a.dtype, b.dtype) == (torch.float64, torch.float32)
        torch.testing.assert_close(a.float(), b)
    module.load_state_dict(first)


def test_layers_are_taken_in_the_order_of_the_state_dict_or_asked_about() -> None:
    """A network that runs the second of two equal layers first has another accuracy, and the same shapes."""
    predictor = Predictor.load()
    state = {name: torch.randn(shape) for name, shape in predictor.task.infos[0].space.shapes().items()}

    def named(*names: str, order: str = "0123") -> dict[str, torch.Tensor]:
        return {f"{names[int(i)]}.{role}": state[f"{role}.{i}"] for i in order for role in ("weight", "bias")}

    for names in (("conv_in", "conv_mid1", "conv_mid2", "head"), ("conv_in", "conv_mid2", "conv_mid1", "head")):
        assert torch.equal(predictor([named(*names)]), predictor([state]))
    with pytest.raises(
        ValueError, match=r"network 0: .*: in the order of the file: b\.weight .* after d\.weight .*--order"
    ):
        predictor([named("a", "b", "c", "d", order="0312")])


def test_large_networks_are_answered_few_at_once(
    accuracy_predictors: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors, modules and files: as many as fit into the bytes, of files if all were as the largest."""
    predictor = Predictor.load(accuracy_predictors["message-passing-stats"][1])
    modules = [cnn() for _ in range(7)]
    paths = [tmp_path / f"{number}.safetensors" for number in range(7)]
    for module, path in zip(modules, paths, strict=True):
        save_file(module.state_dict(), path)
    expected = predictor(modules)
    at_once: list[int] = []
    real = Generalization.answer

    def answer(self: Generalization, model: nn.Module, tensors: dict[str, torch.Tensor], info: NetworkInfo) -> Any:
        at_once.append(len(tensors["bias.0"]))
        return real(self, model, tensors, info)

    monkeypatch.setattr(Generalization, "answer", answer)
    monkeypatch.setattr(models, "EVALUATION_BYTES", 3 * sum(t[0].nbytes for t in CNNS.values()))
    torch.testing.assert_close(predictor(modules), expected)
    monkeypatch.setattr(models, "EVALUATION_BYTES", 3 * paths[0].stat().st_size)
    predictions = predictor.predict(paths)
    torch.testing.assert_close(torch.stack([p.answer for p in predictions]), expected)
    assert at_once == [3, 3, 1] * 2
    assert [p.path for p in predictions] == paths


STATE = cnn().state_dict()
REFUSED: list[tuple[object, type[Exception], str]] = [
    (cnn(kernel=5), ValueError, "3 layers 1-4-5-3, kernels 3x3, 3x3, relu.*; this one has 3 layers 1-.*5x5, 5x5$"),
    (nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)), ValueError, "has 2 layers 2-8-1$"),
    (cnn(activation=nn.Tanh), ValueError, "its activations are of the symmetry SIGN"),
    ([cnn(), {"weight": torch.zeros(2, 3)}], ValueError, "network 1: .* has 1 layer 3-2"),
    ({**STATE, "0.bias": torch.tensor([0, 1, torch.nan, 0])}, ValueError, "0.bias holds NaN or inf"),
    ({**STATE, "0.bias": torch.arange(4)}, TypeError, "0.bias has dtype torch.int64"),
    ({**STATE, "0.bias": torch.zeros(4).to_sparse()}, TypeError, "0.bias is .* expected a dense"),
    ({**STATE, "0.bias": torch.zeros(4, device="meta")}, TypeError, "0.bias is .* that holds its"),
    ({}, ValueError, "network 0 holds no weights"),
    ({name: t[:, :0] for name, t in CNNS.items()}, ValueError, "no channels"),
    ({name: t[:0] for name, t in CNNS.items()}, ValueError, "this batch holds 0 networks"),
    ({name: t.clone().fill_(torch.nan) for name, t in CNNS.items()}, ValueError, r"weight.0 holds \d+ NaN or inf"),
    ([], ValueError, "no networks given"),
    (3, TypeError, "a int was given"),
    ([3], TypeError, "network 0 is a int"),
    ({"epoch": 3}, TypeError, "network 0: epoch is 3, expected"),
]


@pytest.mark.parametrize(("networks", "error", "said"), REFUSED, ids=range(len(REFUSED)))
def test_what_it_was_not_trained_for_is_refused_in_words(
    networks: Any, error: type[Exception], said: str, accuracy_predictors: Left
) -> None:
    with pytest.raises(error, match=said) as found:
        Predictor.load(accuracy_predictors["message-passing-stats"][1])(networks)
    assert isinstance(found.value, InvalidValueError | InvalidTypeError)
    assert "\n" not in str(found.value)


def test_what_is_saved_again_is_the_same_file(accuracy_predictors: Left, editors: Left, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    Predictor.load(SHIPPED)
    for path in (accuracy_predictors["message-passing-stats"][1], editors["message-passing"][1]):
        Predictor.load(path).save(tmp_path / "again" / "copy.safetensors")
        assert (tmp_path / "again" / "copy.safetensors").read_bytes() == path.read_bytes()
    assert torch.equal(torch.get_rng_state(), before)
    for place in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(MissingFileError, match="no such file"):
            Predictor.load(place)


def test_a_task_says_what_cannot_be_written() -> None:
    info = NetworkInfo(SPACE, "relu", partial(cnn, 4), (1, 8, 8))
    several = MixedInfo((info, info))
    assert "how they run is known from code alone" in Generalization.of(several, "combined")["unusable"]
    with pytest.raises(InvalidValueError, match="combined runs networks of several"):
        read_task(Generalization.of(several, "combined"))
    large = NetworkInfo(WeightSpace.mlp([2, 5000, 5000, 1], "relu"), "relu")
    assert "networks of 25025001 weights" in Generalization.of(large, "stats")["unusable"]
    task = read_task(Generalization.of(info, "stats"))
    assert (task.infos[0].space, task.infos[0].template) == (SPACE, None)


def test_quantiles_and_several_heads_are_read_from_a_file(tmp_path: Path) -> None:
    quantiles = Quantiles.of(torch.linspace(0, 1, 50) ** 3)
    task = Generalization(NetworkInfo(SPACE, "relu"), quantiles)
    model = task.build("stats", {"model": {"heads": 3}}).eval()
    record = {"settings": {"model": "stats", "options": {"model": {"heads": 3}}}}
    Predictor(task, model, record).save(tmp_path / "stats.safetensors")
    heads = model.train()(model.prepare(CNNS))  # type: ignore[operator]
    assert heads.shape == (len(ZOO), 3)
    model.head[0].p = model.head[3].p = 0.0  # type: ignore[index, union-attr]
    expected = quantiles.accuracy(torch.sigmoid(model(model.prepare(CNNS)).mean(1)))  # type: ignore[operator]
    torch.testing.assert_close(Predictor.load(tmp_path / "stats.safetensors")(CNNS), expected)


def test_networks_of_several_architectures_are_told_apart_by_their_weights() -> None:
    tanh = WeightSpace.cnn([1, 4, 5], 3, "tanh", head=[3])
    deep = WeightSpace.cnn([1, 4, 4, 5], 3, "tanh", head=[3])
    for known, said in (([SPACE, deep], None), ([SPACE, tanh], "any of 2 architectures .* activations relu, tanh")):
        infos = MixedInfo(tuple(NetworkInfo(space, name) for space, name in zip(known, ("relu", "tanh"), strict=True)))
        task = read_task(Generalization.of(infos, "stats-set"))
        assert [info.space for info in task.infos] == known
        predictor = Predictor(task, task.build("stats-set", {}).eval(), {})
        assert predictor(cnn()).shape == (1,), "a module has activations"
        if said is None:
            assert "or one of 1 other architectures" in predictor.reads
            with pytest.raises(InvalidValueError, match="this one has 2 layers 1-4-3"):
                predictor(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3)))
        else:
            for networks in (STATE, CNNS):
                with pytest.raises(InvalidValueError, match=said):
                    predictor(networks)


def test_the_one_that_ships_is_small_and_states_how_it_was_made() -> None:
    assert SHIPPED.stat().st_size < 2_000_000
    predictor = Predictor.load()
    record = predictor.record
    assert record["invariant_under"] == "group"
    assert record["networks"] == {"train": 200, "val": 50, "test": 250}
    for metrics in (record["val"], predictor.metrics):
        assert metrics.keys() == {"tau", "r2"}
        assert 0.75 < metrics["tau"] < 1
        assert 0.9 < metrics["r2"] < 1
    taus = [test["metrics"]["tau"] for test in record["tests"] if test["name"] != "widened"]
    assert max(taus) - min(taus) < 1e-3, "tested under scales up to 1e6"


def test_no_element_of_the_group_changes_what_it_says() -> None:
    predictor = Predictor.load()
    space = predictor.task.infos[0].space
    assert space == WeightSpace.cnn([1, 16, 16, 16], 3, "relu", head=[10])
    predictor.model.double()
    generator = torch.Generator().manual_seed(0)
    shapes = space.shapes().items()
    networks = {name: 0.2 * torch.randn(6, 1, *s, generator=generator, dtype=torch.float64) for name, s in shapes}
    said = predictor(networks)
    assert float(said.std()) > 1e-3, "they differ"
    for scales in (None, (1.0, 1e6)):
        moved = space.sample(6, scale_range=scales, generator=generator).act(networks)
        torch.testing.assert_close(predictor(moved), said, rtol=1e-10, atol=0)
    noisy = {name: t + 1e-3 for name, t in networks.items()}
    assert float((predictor(noisy) - said).abs().min()) > 1e-9, "it looks at the weights"


def test_a_model_of_normal_forms_is_loaded_where_its_networks_are_known(tmp_path: Path) -> None:
    """What these are is found again when it is loaded; how they are traced takes nothing from the model's budget."""
    (run, path) = small_predictors.accuracy_predictors(tmp_path, ["normal-stats"])["normal-stats"]
    predictor = Predictor.load(path)
    tested = predict.scores(torch.logit(predictor(CNNS).double()), ZOO.networks.accuracy)
    assert tested == pytest.approx(run.tests[0].metrics, rel=1e-4)
    assert not predictor.reads.endswith("of any width")


def test_tau_of_few_networks_is_rough() -> None:
    """Its spread is that of rankings at random."""
    assert score_in_words("tau", 0.8161, 29) == "0.82"
    assert [score_in_words("tau", 0.8161, count) for count in (30, None)] == ["0.816", "0.816"]
    assert score_in_words("r2", 0.8161, 5) == "0.816"
    assert warning_of_few(30) == ""
    assert warning_of_few(3).endswith("from -1.00 to 1.00."), "there is no other tau"
    orders = np.random.default_rng(0).permuted(np.tile(np.arange(20), (20_000, 1)), axis=1)
    signs = np.sign(orders[:, :, None] - orders[:, None, :])[:, *np.triu_indices(20, 1)]
    bound = float(np.quantile(np.abs(signs.mean(1)), 0.95))
    assert float(warning_of_few(20).rstrip(".").split()[-1]) == pytest.approx(bound, abs=0.015)
