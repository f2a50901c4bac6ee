"""ModelZoos in their published format, whole and damaged."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from corpora import parts, template_outputs
from hypothesis import given
from hypothesis import strategies as st
from published_writers import (
    Marker,
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

from nfn_monomial import Symmetry
from nfn_monomial.benchmarks.data.formats.base import CorpusError
from nfn_monomial.benchmarks.data.formats.detection import load_generalization
from nfn_monomial.benchmarks.data.formats.model_zoos import split
from nfn_monomial.benchmarks.data.moves import MovedRows, draw_elements, transform, widened
from nfn_monomial.benchmarks.data.networks import Networks, Part, Parts, groups_of
from nfn_monomial.benchmarks.models.catalogue import model_names
from nfn_monomial.tools.predictors.models import MixedInfo, build_model


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
    (truncate, "is damaged"),
    (lambda p: save([1], p), "holds a list, expected a state dict"),
    (lambda p: edit(p, module_list__6__bias=BAD), r"module_list\.6\.bias holds NaN or infinite"),
    (lambda p: edit(p, module_list__6__bias=None), r"module_list\.6\.bias is missing"),
    (lambda p: edit(p, layer__weight=BAD), r"has keys layer\.weight; expected module_list"),
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
    with pytest.raises(
        CorpusError, match=r"checkpoint_000010/checkpoints: .*weight is <.*, not imported>, expected a dense tensor"
    ):
        load_generalization(zoo)
    assert not (tmp_path / "marker").exists()


def test_too_few_models(tmp_path: Path) -> None:
    write_model_zoo(tmp_path, 2)
    with pytest.raises(CorpusError, match="activation tanh: 2 networks, but at least 3 are needed"):
        load_generalization(tmp_path)


@pytest.mark.parametrize("name", model_names())
def test_every_model_reads_flattened_heads(zoo: Path, name: str) -> None:
    corpus = load_generalization(zoo)["tanh"]
    model = build_model(name, MixedInfo(corpus.info.architectures) if name == "gnn" else corpus.info, seed=0)
    model = model.double().eval()

    def answers(own: Parts) -> torch.Tensor:
        groups = [({key: t.double() for key, t in tensors.items()}, space) for tensors, space in groups_of(own)]
        if not seen:
            seen.append(True)
            model.fit_inputs(model.prepare_groups(groups))
        return model(model.prepare_groups(groups))

    seen: list[bool] = []
    before = answers(corpus.train)
    assert before.std() > 1e-4
    if model.invariant_under != "nothing":
        space = corpus.info.architectures[0].space.restricted(
            "permutation" if "perm" in model.invariant_under else "sign"
        )
        (part,) = corpus.train
        moved = MovedRows(part.networks.rows, draw_elements(space, len(part), 1.0, seed=1))
        after = answers((replace(part, networks=Networks(moved.read_all(), part.networks.accuracy)),))
        torch.testing.assert_close(after, before, rtol=1e-8, atol=1e-8)
    if model.any_width:
        assert bool(torch.isfinite(answers(widened(corpus.test, 1.5, seed=0))).all())


@pytest.mark.parametrize("name", ["np", "hnp", "nft"])
def test_layers_of_nfn_say_what_they_cannot_read(tmp_path: Path, name: str) -> None:
    write_wild_park(tmp_path, [wild_config([4, 6, 4], [3] * 3, ["relu"] * 3, [-1, -1, 0])] * 4)
    info = load_generalization(tmp_path)["mixed"].info
    with pytest.raises(ValueError, match="nfn's layers need a chain of at least two layers with a bias each; Weight"):
        build_model(name, info, seed=0)
