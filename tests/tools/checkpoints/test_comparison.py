"""Comparisons of checkpoints: the same function in other weights is told from others, and relatives are found."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fibres import Attention
from own_networks import mlp, moved, saved, weights
from torch import nn

from nfn_monomial.alignment.kinship import Kinship, NodeKinship
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools import balance_checkpoint, compare_checkpoints, find_symmetries
from nfn_monomial.tools.checkpoints.pairs import kinship_in_words
from nfn_monomial.tools.definitions.define import Definition, define


def test_the_same_function_in_other_weights_and_another_one(residual: Definition, tmp_path: Path) -> None:
    state = weights(residual, 1)
    other = moved(residual, state, 2)
    a, b = saved(tmp_path / "a.safetensors", state), saved(tmp_path / "b.pt", other)
    steps: list[tuple[int, int]] = []
    found = compare_checkpoints(a, b, net=residual, progress=lambda *step: steps.append(step))
    assert steps == [(i, 4) for i in range(1, 5)]
    said = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert said["same_function"] is True
    assert said["max_output_difference"] < 1e-5
    assert said["explained"]["rest"] < 1e-9
    assert sum(said["explained"].values()) == pytest.approx(1)
    assert (said["a"], said["b"], said["other_differences"]) == (str(a), str(b), [])
    assert found.summary.startswith("a.safetensors and b.pt: the same function")
    report = found.report()
    distances, shares = report.figures["compare.png"].axes  # type: ignore[union-attr]
    names = list(residual.space.parameters)
    assert names == list(said["layers"]) == [line[0] for line in report.tables[0].cells]
    assert names == [label.get_text() for label in distances.get_yticklabels()]
    assert sum(bar.get_height() for bar in shares.patches) == pytest.approx(1)
    other["inner.bias"][2] *= 1.001
    one_weight = compare_checkpoints(a, saved(tmp_path / "c.pt", other), net=residual)
    assert not one_weight.to_json()["same_function"]
    assert one_weight.summary.startswith("a.safetensors and c.pt: not ")


def test_matrices_between_values_and_outputs_are_seen_through(tmp_path: Path) -> None:
    definition = define(Attention(4, 3), torch.randn(2, 5, 4))
    assert definition.normal_form is not None
    state = definition.template().state_dict()
    other = state | definition.normal_form.sample(state, generator=torch.Generator().manual_seed(0))
    a, b = saved(tmp_path / "a.safetensors", state), saved(tmp_path / "b.safetensors", other)
    found = compare_checkpoints(a, b, net=definition)
    said = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (said["same_function"], said["normal_forms"]["same_function"]) == (True, True)
    assert "the same function: their normal forms are equal, and the outputs agree." in found.summary
    other["v.weight"][0, 0] += 1e-2
    near = compare_checkpoints(a, saved(tmp_path / "c.safetensors", other), net=definition)
    assert not near.to_json()["same_function"]
    said = find_symmetries(a, net=definition).to_json()
    assert (sum(said["fibre"].values()), said["independent_scalings"]) == (24, 6)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[tuple[int, int]]]:
    """Two networks, each as it is, moved by the group, and trained on a little, then moved; and the progress told."""
    folder = tmp_path_factory.mktemp("relatives")
    module = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2))
    definition = define(module, torch.randn(5, 4))
    for seed in range(2):
        state = mlp(seed, (4, 12, 2))
        tuned = {key: t + 0.05 * t.std() * torch.randn_like(t) for key, t in state.items()}
        saved(folder / f"{seed}.safetensors", state)
        saved(folder / f"{seed}-moved.safetensors", moved(definition, state, 5))
        saved(folder / f"{seed}-tuned.safetensors", moved(definition, tuned, 6))
    steps: list[tuple[int, int]] = []
    return compare_checkpoints(folder, net=definition, progress=lambda *step: steps.append(step)), steps


def leaves(tree: dict[str, Any]) -> list[str]:
    return [name for part in tree["parts"] for name in leaves(part)] if "parts" in tree else [tree["name"]]


def test_relatives_are_found(family: tuple[Any, list[tuple[int, int]]]) -> None:
    found, steps = family
    said = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert steps == [(i, 6) for i in range(1, 7)], "moved copies are found without aligning them"
    labels = list(said["members"])
    assert labels == ["0-moved", "0-tuned", "0", "1-moved", "1-tuned", "1"]
    for (i, a), (j, b) in itertools.combinations(enumerate(labels), 2):
        distance = said["distances"][i][j]
        assert distance == said["distances"][j][i]
        if a[0] != b[0]:
            assert 0.3 < distance < 1
        elif "tuned" in a + b:
            assert 0.01 < distance < 0.1
        else:
            assert distance < 1e-5
    prints = {label: member["fingerprint"] for label, member in said["members"].items()}
    assert prints["0"] != prints["1"] != prints["1-tuned"]
    joined = [{link["a"], link["b"]} for link in said["links"]]
    assert len(joined) == 5
    assert sorted(joined[:2], key=sorted) == [{"0", "0-moved"}, {"1", "1-moved"}]
    families = [{leaf[0] for leaf in leaves(part)} for part in said["tree"]["parts"]]
    assert sorted(families, key=str) == [{"0"}, {"1"}]
    tree, matrix, *_ = found.report().figures["family.png"].axes
    shown = [label.get_text() for label in tree.get_yticklabels()]
    assert sorted(shown) == sorted(labels)
    assert {name[0] for name in shown[:3]} in ({"0"}, {"1"}), "relatives stand together"
    assert matrix.images[0].get_array().shape == (6, 6)


def test_networks_at_right_angles_have_the_distance_1(tmp_path: Path) -> None:
    for i, size in enumerate((1.0, 2.0, 3.0)):
        state = {key: torch.zeros_like(t) for key, t in mlp(0, (3, 1, 3)).items()}
        state["0.weight"][0, i] = state["2.weight"][i, 0] = size
        saved(tmp_path / f"{i}.pt", state)
    distances = compare_checkpoints(tmp_path, activation="gelu").to_json()["distances"]
    assert [x for row in distances for x in row] == pytest.approx([0, 1, 1, 1, 0, 1, 1, 1, 0])


def test_canonical_forms_are_the_same_function_with_the_same_fingerprint(residual: Definition, tmp_path: Path) -> None:
    state = {key: t.double() if t.is_floating_point() else t for key, t in weights(residual, 1).items()}
    a, b = saved(tmp_path / "a.pt", state), saved(tmp_path / "b.pt", moved(residual, state, 2, (1e-3, 1e3)))
    forms = [balance_checkpoint(path, net=residual) for path in (a, b)]
    said = [form.to_json() for form in forms]
    assert said[0]["fingerprint"] == said[1]["fingerprint"]
    assert said[0]["fingerprint"] in forms[0].summary
    assert max(form["max_output_difference"] for form in said) < 1e-10
    assert said[1]["norm"]["after"] < said[1]["norm"]["before"]
    paths = [form.write(tmp_path / f"out{i}")[0] for i, form in enumerate(forms)]
    found = compare_checkpoints(*paths, net=residual).to_json()
    # They have been computed: what nothing multiplies is equal within rounding, not bit by bit.
    assert found["verdict"].startswith("within the rounding of float64")
    assert found["explained"]["scale"] < 1e-9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_have_no_fingerprint_and_are_compared_all_the_same(dtype: torch.dtype, tmp_path: Path) -> None:
    state = {key: t.to(dtype) for key, t in mlp(0, (4, 12, 2)).items()}
    order = torch.arange(11, -1, -1)
    turned = {"0.weight": state["0.weight"][order], "0.bias": state["0.bias"][order]}
    turned |= {"2.weight": state["2.weight"][:, order], "2.bias": state["2.bias"]}
    changed = {key: t * 1.05 for key, t in state.items()}
    for name, found in {"a": state, "b": turned, "c": changed}.items():
        saved(tmp_path / f"{name}.pt", found)
    family = compare_checkpoints(tmp_path, activation="tanh").to_json()
    assert [member["fingerprint"] for member in family["members"].values()] == [None] * 3
    assert family["same_function"] == [["a", "b"]]
    balanced = balance_checkpoint(tmp_path / "a.pt", activation="tanh")
    assert balanced.to_json()["fingerprint"] is None
    short = str(dtype).removeprefix("torch.")
    assert f"Fingerprint of a.pt: none, as {short} has too few digits to tell networks apart; com" in balanced.summary


def test_signs_do_not_hide_relatives(tmp_path: Path) -> None:
    state = mlp(1, (4, 12, 2))
    signs = torch.where(torch.arange(12) % 3 == 0, -1.0, 1.0)
    other = {key: t * (signs[:, None] if key == "0.weight" else signs) for key, t in state.items() if key != "2.bias"}
    for name, found in {"a": state, "b": other | {"2.bias": state["2.bias"]}, "c": mlp(2, (4, 12, 2))}.items():
        saved(tmp_path / f"{name}.pt", found)
    first, second = compare_checkpoints(tmp_path, activation="tanh").to_json()["links"]
    assert (first["a"], first["b"]) == ("a", "b")
    assert first["distance"] < 1e-6 < 0.2 < second["distance"]


@pytest.mark.parametrize(
    ("p", "cases"), [(0.043, "23"), (0.00046, "2,200"), (3.1e-7, "3,200,000"), (4e-117, "2.5e+116")]
)
def test_so_many_cases_are_written_as_people_write_them(p: float, cases: str) -> None:
    node = NodeKinship(0.5, p, 8, 64)
    assert f"in about 1 of {cases} cases" in kinship_in_words(Kinship(p, 8, 1, 64, {"first": node}))[0]


def test_relatives_are_told_by_p_values(tmp_path: Path) -> None:
    definition = define(nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)), torch.randn(40, 6))
    states = [mlp(seed, (6, 24, 3)) for seed in range(3)]
    states.append({key: t + 0.1 * t.std() * torch.randn_like(t) for key, t in states[0].items()})
    paths = [saved(tmp_path / f"{i}.safetensors", state) for i, state in enumerate(states)]
    pair = compare_checkpoints(paths[0], paths[3], net=definition)
    said = json.loads(json.dumps(pair.to_json(), allow_nan=False))
    assert said["kinship"]["p_value"] < 1e-15
    assert said["kinship"]["nodes"]["layer0"]["in_place"] == said["kinship"]["neurons"] == 24
    assert "in about 1 of " in pair.summary
    assert "24 of 24 are nearest to the one in their own place, by chance 1" in pair.summary
    apart = compare_checkpoints(paths[0], paths[1], net=definition)
    assert apart.to_json()["kinship"]["p_value"] > 1e-3
    assert "No clear sign of kinship (p = " in apart.summary
    family = compare_checkpoints(tmp_path, net=definition)
    said = json.loads(json.dumps(family.to_json(), allow_nan=False))["kinship"]
    assert [(kin["a"], kin["b"]) for kin in said["pairs"]] == [("0", "3")]
    assert said["p_values"][0][3] == said["p_values"][3][0] < said["corrected"][0][3] < 1e-12
    assert said["families"] == [["0", "3"]]
    assert "neurons in the same places are too alike: 0, 3.\nThat is 1 of 6 pairs" in family.summary
    assert float(family.report().tables[1].cells[0][4]) == pytest.approx(said["corrected"][0][3], rel=0.5)


def test_relatives_in_another_order_are_told_by_networks_that_were_trained_apart(tmp_path: Path) -> None:
    definition = define(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), torch.randn(40, 6))
    for seed in range(9):
        saved(tmp_path / "apart" / f"{seed}.pt", mlp(seed, (6, 16, 3)))
    first = mlp(9, (6, 16, 3))
    tuned = moved(definition, {key: t + 0.1 * t.std() * torch.randn_like(t) for key, t in first.items()}, 1)
    a, b = saved(tmp_path / "a.pt", first), saved(tmp_path / "b.pt", tuned)
    pair = compare_checkpoints(a, b, net=definition, apart=tmp_path / "apart")
    assert pair.to_json()["partners_p_value"] == pytest.approx(1 / 55)
    assert "0.018 of all pairs of these two and the 9 of --apart have neurons so alike: a p-value." in pair.summary
    few = define(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), torch.randn(4, 6))
    assert "No p-value from --apart" in compare_checkpoints(a, b, net=few, apart=tmp_path / "apart").summary
    with pytest.raises(InvalidValueError, match="it is for two networks, found 9"):
        compare_checkpoints(tmp_path / "apart", net=definition, apart=tmp_path / "apart")


class Sines(nn.Module):
    """What it adds to its stream has places, and nobody learns it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.up, self.head = nn.Linear(3, 16), nn.Linear(16, 20), nn.Linear(20, 2)
        self.register_buffer("table", torch.outer(torch.arange(40.0), torch.arange(1.0, 17)).sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.relu(self.up(torch.relu(self.enter(x) + self.table))))
        return out


def test_tables_that_all_networks_have_make_no_relatives(tmp_path: Path) -> None:
    paths = [saved(tmp_path / f"{i}.pt", Sines().state_dict()) for i in range(3)]
    definition = define(Sines(), torch.randn(2, 40, 3))
    pair = compare_checkpoints(*paths[:2], net=definition).to_json()["kinship"]
    assert pair["p_value"] > 1e-3
    assert pair["neurons"] == 20
    assert compare_checkpoints(tmp_path, net=definition).to_json()["kinship"]["pairs"] == []


class Ordered(nn.Sequential):
    """Its second layer starts as what is told, so that its neurons stand in the order of the first layer's."""

    def __init__(self, start: torch.Tensor) -> None:
        super().__init__(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
        with torch.no_grad():
            self[2].weight.copy_(start)


@pytest.mark.parametrize("known", [True, False])
def test_first_weights_that_give_neurons_their_places_are_told(known: bool, tmp_path: Path) -> None:
    start = torch.eye(16) if known else torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    paths = [saved(tmp_path / f"{i}.pt", Ordered(start).state_dict()) for i in range(3)]
    # Of an identity it does not take the class: the training script may have made it.
    definition = define(nn.Sequential(*Ordered(start)) if known else Ordered(start), torch.randn(2, 3))
    pair = compare_checkpoints(*paths[:2], net=definition)
    family = compare_checkpoints(tmp_path, net=definition)
    if known:
        left = "neurons with places of their own, which training apart leaves alike, too (layer2, layer0: an identity)"
        assert f"No p-value of kinship: all that could be compared are {left}" in pair.summary
        assert f"Left out of p-values, for 3 of the pairs, are {left}" in family.summary
        assert "rained apart, they would" not in pair.summary
        assert (pair.to_json()["kinship"]["p_value"], family.to_json()["kinship"]["pairs"]) == (1, [])
    else:
        assert "But the network that Ordered builds is so like" in pair.summary
        assert "But the network that Ordered builds is so like" in family.summary


def test_usual_first_weights_and_children_are_told_by_p_values(tmp_path: Path) -> None:
    usual = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    for i in range(3):
        near = {key: t + 0.1 * i * torch.randn_like(t) for key, t in usual.state_dict().items()}
        saved(tmp_path / "usual" / f"{i}.pt", near)
    definition = define(usual, torch.randn(2, 3), template=lambda: nn.Sequential(*map(remade, usual)))
    found = compare_checkpoints(tmp_path / "usual", net=definition)
    assert len(found.to_json()["kinship"]["pairs"]) == 3
    assert "But the network" not in found.summary


def remade(layer: nn.Module) -> nn.Module:
    return nn.Linear(layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else layer


def test_networks_that_cannot_be_permuted_have_no_p_value(tmp_path: Path) -> None:
    for i in range(3):
        saved(tmp_path / f"{i}.pt", mlp(i, (4, 3)))
    found = compare_checkpoints(tmp_path / "0.pt", tmp_path / "1.pt", net=define(nn.Linear(4, 3), torch.randn(2, 4)))
    assert "No p-value of kinship: it has no two neurons that training treats alike." in found.summary
