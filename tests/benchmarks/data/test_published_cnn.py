"""ModelZoos and the CNN Wild Park in their published formats, whole and damaged."""

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from published_writers import (
    Marker,
    WildCnn,
    ZooCnn,
    edit,
    result_line,
    save,
    truncate,
    wild_config,
    write_model_zoo,
    write_wild_park,
)
from torch import nn

from nfn_monomial import EquivariantLinear, Symmetry, WeightSpace
from nfn_monomial.adapters.modules import network_outputs
from nfn_monomial.benchmarks.data.formats.base import CorpusError
from nfn_monomial.benchmarks.data.formats.detection import load_generalization
from nfn_monomial.benchmarks.data.formats.model_zoos import split
from nfn_monomial.benchmarks.data.moves import test_sets, transform, widened
from nfn_monomial.benchmarks.data.networks import Corpus, MixedInfo, NetworkInfo, Part, groups_of
from nfn_monomial.benchmarks.models import baselines, graphs, invariant  # noqa: F401
from nfn_monomial.benchmarks.models.catalogue import build_model
from nfn_monomial.testing import assert_equivariant


def parts(corpus: Corpus) -> list[Part]:
    return [*corpus.train, *corpus.val, *corpus.test]


def template_outputs(part: Part, x: torch.Tensor) -> torch.Tensor:
    """What the networks of a part answer, run as its info says."""
    assert part.info.template is not None
    module = part.info.template().eval()
    own = [name for name, _ in module.named_parameters()]
    tensors = {key: part.networks.tensors[name] for key, name in zip(own, part.info.space.parameters, strict=True)}
    return network_outputs(module, {key: t.unsqueeze(1) for key, t in tensors.items()}, x)


@given(st.integers(3, 500), st.integers(0, 10))
def test_splits_are_disjoint_complete_and_never_empty(count: int, seed: int) -> None:
    found = split(count, seed, "here")
    assert sorted(itertools.chain(*found.values())) == list(range(count))
    assert all(found.values())
    assert abs(len(found["test"]) - 0.15 * count) <= 1
    assert split(count, seed, "here", limit=1) == found | {"train": found["train"][:1]}


# --- ModelZoos -----------------------------------------------------------------------------------------------------


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    write_model_zoo(tmp_path, 8)
    return tmp_path


@pytest.mark.parametrize(("activation", "module"), [("tanh", nn.Tanh), ("relu", nn.ReLU), ("gelu", nn.GELU)])
@pytest.mark.parametrize("dropout", [False, True])
def test_model_zoos_compute_what_their_networks_do(
    tmp_path: Path, activation: str, module: type[nn.Module], dropout: bool
) -> None:
    config = {"model::nlin": activation, "model::dropout": 0.3 * dropout}
    made = write_model_zoo(tmp_path, 5, config=config, activation=module, dropout=dropout)
    networks = {i / 100 + 0.001: made[path].eval() for i, path in enumerate(p for p in made if "000010" in str(p))}
    x = torch.randn(3, 1, 28, 28)
    (corpus,) = load_generalization(tmp_path).values()
    assert corpus.info.input_shape == (1, 28, 28)
    assert [part.info.activation for part in parts(corpus)] == [activation] * 3
    for part in parts(corpus):
        with torch.no_grad():
            own = torch.stack([networks[round(a, 3)](x) for a in part.networks.accuracy.tolist()])
        torch.testing.assert_close(template_outputs(part, x), own)
        moved = transform((part,), 10.0, seed=1)[0]
        torch.testing.assert_close(template_outputs(moved, x), own, atol=1e-5, rtol=1e-4)


def test_poolings_take_sign_flips_away(zoo: Path) -> None:
    space = load_generalization(zoo)["tanh"].info.space
    found = [node.symmetry for node in space.nodes.values()][1:-1]
    assert found == [Symmetry.PERMUTATION, Symmetry.PERMUTATION, Symmetry.SIGN, Symmetry.SIGN]
    assert space.describe("weight.3") == "weight.3 (B, C, h4=20, h3=4*9)"


def test_flipped_channels_in_front_of_a_pooling_change_the_function(zoo: Path) -> None:
    """The negative twin: the group that the activation alone would allow is too large."""
    part = load_generalization(zoo)["tanh"].train[0]
    flipped = {name: t.clone() for name, t in part.networks.tensors.items()}
    flipped["weight.0"][:, 0] *= -1
    flipped["bias.0"][:, 0] *= -1
    flipped["weight.1"][:, :, 0] *= -1
    x = torch.randn(3, 1, 28, 28)
    other = Part(type(part.networks)(flipped, part.networks.accuracy), part.info)
    assert (template_outputs(other, x) - template_outputs(part, x)).abs().max() > 1e-3


def test_unexplained_layer_numbers_leave_the_smaller_group_and_no_template(tmp_path: Path) -> None:
    for path in write_model_zoo(tmp_path, 4):
        state = torch.load(path, weights_only=True)
        numbers = sorted({int(key.split(".")[1]) for key in state})
        renamed = {key: f"module_list.{numbers.index(int(key.split('.')[1]))}.{key.split('.')[2]}" for key in state}
        save({renamed[key]: value for key, value in state.items()}, path)
    info = load_generalization(tmp_path)["tanh"].info
    assert (info.template, info.input_shape) == (None, None)
    found = [node.symmetry for node in info.space.nodes.values()][1:-1]
    assert found == [Symmetry.PERMUTATION] * 3 + [Symmetry.SIGN]


def test_activations_are_corpora_of_their_own(tmp_path: Path) -> None:
    write_model_zoo(tmp_path, 4)
    write_model_zoo(tmp_path, 5, config={"model::nlin": "relu"})
    write_model_zoo(tmp_path, 3, config={"seed": 1})
    found = load_generalization(tmp_path)
    assert {name: sum(map(len, parts(corpus))) for name, corpus in found.items()} == {"relu": 5, "tanh": 7}
    assert list(load_generalization(tmp_path, activation="relu")) == ["relu"]
    with pytest.raises(CorpusError, match="activation sine is not known"):
        load_generalization(tmp_path, activation="sine")


def test_the_last_checkpoint_counts_or_those_that_are_asked_for(zoo: Path) -> None:
    def accuracies(**options: Any) -> list[set[float]]:
        corpus = load_generalization(zoo, **options)["tanh"]
        return [{round(a, 4) for a in part.networks.accuracy.tolist()} for part in parts(corpus)]

    last = accuracies()
    assert set.union(*last) == {round(m / 100 + 0.001, 4) for m in range(8)}
    both = accuracies(epochs=(5, 10))
    assert both == [own | {round(a - 0.0005, 4) for a in own} for own in last], "a model is in one part, all epochs"
    half = accuracies(epochs=(10,), target="val_acc")
    assert half == [{round(a / 2, 4) for a in own} for own in last]
    assert accuracies(seed=1) != last
    with pytest.raises(CorpusError, match=r"no epoch 7 has both a checkpoint \(epochs 5 to 10\) and a line"):
        load_generalization(zoo, epochs=(5, 7))
    with pytest.raises(CorpusError, match="epochs is empty"):
        load_generalization(zoo, epochs=())
    with pytest.raises(CorpusError, match="target is 'loss', expected test_acc or val_acc"):
        load_generalization(zoo, target="loss")


def result_file(folder: Path, model: int = 3) -> Path:
    return next(folder.glob(f"NN_tune_trainable_{model:05d}_*")) / "result.json"


def test_an_incomplete_last_line_is_passed_over_and_counted(zoo: Path) -> None:
    assert load_generalization(zoo)["tanh"].source["incomplete_last_lines"] == 0
    file = result_file(zoo)
    file.write_text(file.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    source = load_generalization(zoo)["tanh"].source
    assert source["incomplete_last_lines"] == 1
    assert source["epochs"] == {5: 1, 10: 7}, "epoch 10 of that model has no accuracy any more"
    assert source["split"] == "70/15/15 percent of models, seed 0"


def test_a_damaged_line_in_the_middle_is_named(zoo: Path) -> None:
    file = result_file(zoo)
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    for damaged in ('{"training_iter\n', "{}\n", "5\n"):
        file.write_text("".join([lines[0], damaged, *lines[2:]]), encoding="utf-8")
        with pytest.raises(CorpusError, match=r"result\.json, line 2: .* is no result of an epoch"):
            load_generalization(zoo)
    file.write_text(lines[0][:30], encoding="utf-8")
    with pytest.raises(CorpusError, match=r"result\.json has no complete line"):
        load_generalization(zoo)
    file.unlink()
    with pytest.raises(CorpusError, match=r"result\.json is missing"):
        load_generalization(zoo)


@pytest.mark.parametrize("accuracy", [float("nan"), 57.3, -0.1, None, "high"])
def test_accuracies_must_be_shares(zoo: Path, accuracy: Any) -> None:
    file = result_file(zoo)
    line = json.loads(result_line(10, 0.5, {})) | {"test_acc": accuracy}
    file.write_text(json.dumps(line), encoding="utf-8")
    with pytest.raises(CorpusError, match=r"result\.json: test_acc of epoch 10 is .*, expected an accuracy as a share"):
        load_generalization(zoo)


BAD = torch.full((4,), float("inf"))
ZOO_DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (truncate, "is truncated or no torch file"),
    (lambda p: save([1], p), "holds a list, expected a state dict"),
    (lambda p: edit(p, module_list__6__bias=BAD), r"module_list\.6\.bias holds NaN or infinite"),
    (lambda p: edit(p, module_list__6__bias=None), r"module_list\.6\.bias is missing"),
    (lambda p: edit(p, layer__weight=BAD), r"has keys 'layer\.weight'; expected module_list"),
    (lambda p: edit(p, module_list__9__weight=torch.ones(20, 35)), r"module_list\.9\.weight reads 35 inputs"),
    (lambda p: save(ZooCnn(3).state_dict(), p), r"weight\.0 is \(8, 3, 5, 5\), expected \(8, 1, 5, 5\) as in"),
    (lambda p: p.unlink(), "no such file"),
]


@pytest.mark.parametrize(("damage", "message"), ZOO_DAMAGES)
def test_damaged_checkpoints_are_named(zoo: Path, damage: Callable[[Path], object], message: str) -> None:
    order = split(8, 0, "")  # not the first file, with which others are compared
    damage(result_file(zoo, order["train"][1]).parent / "checkpoint_000010" / "checkpoints")
    with pytest.raises((CorpusError, FileNotFoundError), match=rf"checkpoint_000010/checkpoints.* {message}"):
        load_generalization(zoo)


def test_code_in_a_checkpoint_is_refused(zoo: Path, tmp_path: Path) -> None:
    save(
        {"module_list.0.weight": Marker(tmp_path / "marker")}, result_file(zoo).parent / "checkpoint_000010/checkpoints"
    )
    with pytest.raises(CorpusError, match=r"checkpoint_000010/checkpoints is no plain state dict"):
        load_generalization(zoo)
    assert not (tmp_path / "marker").exists()


def test_too_few_models(tmp_path: Path) -> None:
    write_model_zoo(tmp_path, 2)
    with pytest.raises(CorpusError, match="activation tanh: 2 networks, but at least 3 are needed"):
        load_generalization(tmp_path)


def test_models_run_on_a_model_zoo(zoo: Path) -> None:
    corpus = load_generalization(zoo)["tanh"]
    sets = {test.name: test.parts for test in test_sets(corpus, (10.0,), 1.5, 0)}
    for name in ("monomial", "probes", "gnn"):
        info = MixedInfo(corpus.info.architectures) if name == "gnn" else corpus.info
        model = build_model(name, info, seed=0).eval()
        model.fit_inputs(model.prepare_groups(groups_of(corpus.train)))
        answers = {key: model(model.prepare_groups(groups_of(own))) for key, own in sets.items()}
        assert all(bool(torch.isfinite(answer).all()) for answer in answers.values())


# --- CNN Wild Park -------------------------------------------------------------------------------------------------

CONFIGS = [
    wild_config([4, 5], [3, 5], ["relu", "relu"]),
    wild_config([4, 5], [3, 5], ["tanh", "none"]),
    wild_config([4, 6, 5], [3, 7, 3], ["leaky_relu", "gelu", "sigmoid"]),
]
TIED = wild_config([4, 6, 4], [3, 5, 3], ["relu", "tanh", "none"], [-1, -1, 0])
UNEVEN = wild_config([4, 6, 8], [3, 5, 3], ["relu"] * 3, [-1, -1, 0])
CROSSED = wild_config([8, 4, 4, 8, 16], [3] * 5, ["relu", "tanh", "none", "tanh", "relu"], [-1, -1, 0, 1, 0])


@pytest.fixture
def park(tmp_path: Path) -> Path:
    write_wild_park(tmp_path, CONFIGS * 7)
    return tmp_path


def wild_outputs(part: Part, network: WildCnn, x: torch.Tensor) -> torch.Tensor:
    """What the networks of a part answer as a module of theirs runs them."""
    keys = [name for name, _ in network.named_parameters()]
    tensors = dict(zip(keys, (t.unsqueeze(1) for t in part.networks.tensors.values()), strict=True))
    return network_outputs(network, tensors, x)


def check_functions(corpus: Corpus, made: Mapping[Path, WildCnn]) -> int:
    """Compare every network, as it is, moved by its group and widened, with the module it was written from."""
    x = torch.randn(2, 3, 9, 9)
    networks = list(made.values())
    for part in parts(corpus):
        own = [networks[round(1000 * a)] for a in part.networks.accuracy.tolist()]
        with torch.no_grad():
            outputs = torch.stack([network(x) for network in own])
        torch.testing.assert_close(wild_outputs(part, own[0], x), outputs)
        torch.testing.assert_close(template_outputs(part, x), outputs)
        for turned in (transform((part,), 10.0, seed=2)[0], widened((part,), 1.5, seed=3)[0]):
            torch.testing.assert_close(wild_outputs(turned, own[0], x), outputs, atol=1e-4, rtol=1e-4)
    return sum(map(len, parts(corpus)))


def test_wild_networks_are_grouped_and_compute_what_they_did(tmp_path: Path) -> None:
    made = write_wild_park(tmp_path, CONFIGS * 7)
    corpus = load_generalization(tmp_path)["mixed"]
    assert corpus.mixed
    assert check_functions(corpus, made) == 21
    spaces = {info.activation: info.space for info in corpus.info.architectures}
    groups = {
        name: [str(node.symmetry) for node in space.nodes.values()][1:-1] for name, space in spaces.items()
    }  # fmt: skip
    assert groups == {
        "relu": ["SCALE", "SCALE"],
        "tanh/none": ["SIGN", "MONOMIAL"],
        "leaky_relu/gelu/sigmoid": ["SCALE", "PERMUTATION", "PERMUTATION"],
    }
    assert (corpus.source["architectures"], corpus.source["residual"]) == (3, 0)


def test_mixed_models_read_the_park(park: Path) -> None:
    corpus = load_generalization(park)["mixed"]
    model = build_model("gnn", corpus.info, seed=0).eval()
    answers = [model(model.prepare_groups(groups_of(test.parts))) for test in test_sets(corpus, (10.0,), 1.5, 0)]
    assert [len(answer) for answer in answers] == [3, 3, 3]


def test_one_architecture_is_no_mixture(tmp_path: Path) -> None:
    write_wild_park(tmp_path, CONFIGS[:1] * 5)
    assert isinstance(load_generalization(tmp_path)["mixed"].info, NetworkInfo)


def test_residual_networks_load_whatever_their_widths(tmp_path: Path) -> None:
    made = write_wild_park(tmp_path, [TIED] * 5 + [UNEVEN] * 4 + [CROSSED] * 4)
    corpus = load_generalization(tmp_path)["mixed"]
    assert check_functions(corpus, made) == 13
    assert (corpus.source["architectures"], corpus.source["residual"]) == (3, 3)


def groups_in(space: WeightSpace) -> dict[str, tuple[str, int | None]]:
    return {name: (str(node.symmetry), node.size) for name, node in space.nodes.items()}


def test_channels_that_a_residual_connection_adds_are_one_node(tmp_path: Path) -> None:
    write_wild_park(tmp_path, [TIED] * 4)
    space = load_generalization(tmp_path)["mixed"].info.space
    ends = {"x": ("FIXED", 3), "y": ("FIXED", 10)}
    assert groups_in(space) == ends | {"h1": ("SCALE", 4), "h2": ("SIGN", 6)}
    assert_equivariant(EquivariantLinear(space, 1, 2).double(), space)


@pytest.mark.parametrize(("config", "groups", "described"), [
    (UNEVEN, [("SCALE", 4), ("SCALE", 6), ("SCALE", 4)], "weight.2 (B, C, h1=4 + h3=4, h2=6, 3, 3)"),
    (CROSSED, [("SCALE", 4), ("SCALE", 4), ("SIGN", 4), ("SIGN", 4), ("SCALE", 8)],
     "weight.4 (B, C, h1=4 + h2=4 + h5=8, h3=4 + h4=4, 3, 3)"),
])  # fmt: skip
def test_layers_of_different_widths_share_their_first_channels(
    tmp_path: Path, config: dict[str, Any], groups: list[tuple[str, int]], described: str
) -> None:
    """Added are the first channels of both; those that only one has keep a node of their own."""
    write_wild_park(tmp_path, [config] * 4)
    space = load_generalization(tmp_path)["mixed"].info.space
    assert list(groups_in(space).values())[1:-1] == groups
    assert space.describe(list(space.parameters)[-4]) == described


def test_untied_layers_would_change_the_function(tmp_path: Path) -> None:
    """The negative twin: the group of the chain without its residual connection is too large."""
    write_wild_park(tmp_path / "residual", [TIED] * 6)
    chain = wild_config([4, 6, 4], [3, 5, 3], ["relu", "tanh", "none"])
    network = WildCnn(TIED)
    write_wild_park(tmp_path / "chains", [chain] * 6)
    part = load_generalization(tmp_path / "residual")["mixed"].train[0]
    wrong = Part(part.networks, load_generalization(tmp_path / "chains")["mixed"].info)
    x = torch.randn(2, 3, 9, 9)
    moved = transform((wrong,), 10.0, seed=2)[0]
    assert (wild_outputs(moved, network, x) - wild_outputs(part, network, x)).abs().max() > 1e-2


def test_checkpoints_of_one_network_are_in_one_part(tmp_path: Path) -> None:
    for n in range(6):
        write_wild_park(tmp_path / f"trial-{n}", CONFIGS[:1] * 3, start=10 * n)
        for path in (tmp_path / f"trial-{n}").iterdir():
            path.rename(path.with_name(f"checkpoint_{path.name}"))
    corpus = load_generalization(tmp_path)["mixed"]
    found = [{round(1000 * a) // 10 for p in own for a in p.networks.accuracy.tolist()} for own in
             (corpus.train, corpus.val, corpus.test)]  # fmt: skip
    assert (sorted(map(len, found)), set.union(*found)) == ([1, 1, 4], set(range(6)))


def rewrite(**changes: Any) -> Callable[[Path], None]:
    """Change entries of the config, or (with a slash in the value's key) of the whole checkpoint."""

    def change(path: Path) -> None:
        content = torch.load(path, weights_only=True)
        for name, value in changes.items():
            (content if name in content else content["config"])[name] = value
        torch.save(content, path)

    return change


PARK_DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (truncate, "cannot be read, it is truncated or no torch file"),
    (
        lambda p: save(WildCnn(CONFIGS[0]).state_dict(), p),
        "has entries layers.0.weight, .* expected dicts model, config",
    ),
    (rewrite(n_layers=3), "n_layers in config is 3, but there are 2 layers"),
    (rewrite(channels=[4, 6]), r"channels in config is \[4, 6\], expected \[4, 5\], as the weights have"),
    (rewrite(channels=[1, 4]), r"channels in config is \[1, 4\], expected \[4, 5\], as the weights have"),
    (rewrite(stride=2), r"stride in config is 2, expected \[1, 1\], as"),
    (rewrite(kernel_size=[3]), r"kernel_size in config is \[3\], expected \[3, 5\]"),
    (rewrite(residual=[-1, 1]), r"residual in config is \[-1, 1\], expected an earlier layer or -1"),
    (rewrite(residual=[-1]), r"residual in config is \[-1\], expected one for each of 2 layers"),
    (rewrite(activation="swoosh"), "activation swoosh is not known"),
    (rewrite(last_result={}), r"last_result\['test/acc'\] is None, expected an accuracy"),
    (rewrite(last_result=None), "has entries model, config, last_result, expected dicts"),
    (rewrite(model={"layers.0.weight": BAD}), r"layers\.0\.weight has shape \(4,\), expected \(out, in\)"),
    (rewrite(model={"fc.weight": torch.ones(2, 2), "fc.bias": torch.ones(2)}), r"layers fc, expected layers\.0"),
]


@pytest.mark.parametrize(("damage", "message"), PARK_DAMAGES)
def test_damaged_wild_networks_are_named(park: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(park / "00003" / "checkpoint.pt")
    with pytest.raises(CorpusError, match=rf"00003/checkpoint\.pt:? {message}"):
        load_generalization(park)


def test_one_setting_may_stand_for_all_layers(tmp_path: Path) -> None:
    for path in write_wild_park(tmp_path, [wild_config([4, 4], [3, 3], ["tanh", "tanh"])] * 4):
        rewrite(channels=4, kernel_size=3, residual=-1, activation="tanh", stride=1)(path)
    assert load_generalization(tmp_path)["mixed"].info.activation == "tanh"


def test_code_in_a_wild_config_is_refused(park: Path, tmp_path: Path) -> None:
    save({"model": {}, "config": Marker(tmp_path / "marker"), "last_result": {}}, park / "00003" / "checkpoint.pt")
    with pytest.raises(CorpusError, match=r"00003/checkpoint\.pt is no plain state dict"):
        load_generalization(park)
    assert not (tmp_path / "marker").exists()
