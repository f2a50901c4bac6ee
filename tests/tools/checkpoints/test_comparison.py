"""Comparisons of checkpoints: the same function in other weights is told from others, and relatives are found."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from own_networks import mlp, moved, saved, weights
from torch import nn

from nfn_monomial.adapters.definitions import Definition, define
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools import balance_checkpoint, compare_checkpoints
from nfn_monomial.tools.checkpoints.comparison import Pair
from nfn_monomial.tools.checkpoints.families import Family


def pair(a: Path, b: Path, definition: Definition) -> Pair:
    found = compare_checkpoints(a, b, net=definition)
    assert isinstance(found, Pair)
    return found


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_the_same_function_in_other_weights(suffix: str, residual: Definition, tmp_path: Path) -> None:
    state = weights(residual, 1)
    a, b = saved(tmp_path / f"a{suffix}", state), saved(tmp_path / f"b{suffix}", moved(residual, state, 2))
    found = pair(a, b, residual)
    assert found.found.same_function
    said = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert said["same_function"] is True
    assert said["max_output_difference"] < 1e-5
    assert set(said["layers"]) == set(residual.space.parameters)
    assert sum(said["explained"].values()) == pytest.approx(1)
    assert said["explained"]["rest"] < 1e-9
    assert (said["a"], said["b"], said["other_differences"]) == (str(a), str(b), [])
    assert found.summary.startswith("a and b: the same function")


def test_one_weight_makes_another_function(residual: Definition, tmp_path: Path) -> None:
    state = weights(residual, 1)
    other = moved(residual, state, 2)
    other["inner.bias"][2] *= 1.001
    found = pair(saved(tmp_path / "a.pt", state), saved(tmp_path / "b.pt", other), residual)
    assert not found.found.same_function
    assert found.summary.startswith("a and b: not ")


def test_pairs_are_shown(words: Definition, tmp_path: Path) -> None:
    state = weights(words, 1)
    paths = [saved(tmp_path / "a.pt", state), saved(tmp_path / "b.pt", moved(words, state, 2))]
    report = pair(*paths, words).report()
    (table,) = report.tables
    assert [line[0] for line in table.cells] == list(words.space.parameters)
    distances, shares, alike = report.figures["compare.png"].axes  # type: ignore[union-attr]
    assert [label.get_text() for label in distances.get_yticklabels()] == list(words.space.parameters)
    assert len(distances.patches) == 2 * len(table.cells)
    assert len(alike.patches) == len(alike.get_yticklabels()) > 0
    assert sum(bar.get_height() for bar in shares.patches) == pytest.approx(1)


def test_without_a_module_weights_are_compared_alone(tmp_path: Path) -> None:
    state = dict(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3), nn.Linear(6, 2)).state_dict())
    paths = [saved(tmp_path / "a.pt", state), saved(tmp_path / "b.pt", {k: t.clone() for k, t in state.items()})]
    found = compare_checkpoints(*paths, activation="relu")
    assert isinstance(found, Pair)
    assert (found.found.same_function, found.found.max_output_difference) == (True, None)
    assert "Outputs were not compared: strides and pools are not known" in found.summary


@pytest.fixture(scope="module")
def relatives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Definition]:
    """Two families: each a network, one moved by the group, and one trained on a little, then moved."""
    folder = tmp_path_factory.mktemp("relatives")
    module = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 2))
    definition = define(module, torch.randn(5, 4))
    for seed in range(2):
        state = mlp(seed, (4, 12, 10, 2))
        tuned = {key: t + 0.05 * t.std() * torch.randn_like(t) for key, t in state.items()}
        saved(folder / f"{seed}.safetensors", state)
        saved(folder / f"{seed}-moved.safetensors", moved(definition, state, 5))
        saved(folder / f"{seed}-tuned.safetensors", moved(definition, tuned, 6))
    return folder, definition


def test_relatives_are_found(relatives: tuple[Path, Definition]) -> None:
    folder, definition = relatives
    steps: list[tuple[int, int]] = []
    found = compare_checkpoints(folder, net=definition, on_progress=lambda *step: steps.append(step))
    assert isinstance(found, Family)
    assert steps == [(i, 15) for i in range(1, 16)]
    labels = [network.label for network in found.networks]
    assert labels == ["0-moved", "0-tuned", "0", "1-moved", "1-tuned", "1"]
    for (i, a), (j, b) in itertools.combinations(enumerate(labels), 2):
        distance = found.distances[i][j]
        assert distance == found.distances[j][i]
        if a[0] != b[0]:
            assert distance > 0.3
        elif "tuned" in a + b:
            assert 0.01 < distance < 0.1
        else:
            assert distance < 1e-5
    prints = dict(zip(labels, found.fingerprints, strict=True))
    assert prints["0"] != prints["1"] != prints["1-tuned"]
    joined = [{a, b} for a, b, _ in found.links]
    assert joined[:2] in ([{"0", "0-moved"}, {"1", "1-moved"}], [{"1", "1-moved"}, {"0", "0-moved"}])
    assert len(joined) == 5
    families = [{leaf[0] for leaf in leaves(part)} for part in found.tree["parts"]]
    assert sorted(families, key=str) == [{"0"}, {"1"}]
    json.dumps(found.to_json(), allow_nan=False)


def leaves(tree: dict[str, object]) -> list[str]:
    """Names of the members of a part of a tree."""
    parts = tree.get("parts")
    return [name for part in parts for name in leaves(part)] if isinstance(parts, list) else [str(tree["name"])]


def test_families_are_drawn(relatives: tuple[Path, Definition]) -> None:
    folder, definition = relatives
    found = compare_checkpoints(folder, net=definition)
    tree, matrix, *_ = found.report().figures["family.png"].axes  # type: ignore[union-attr]
    shown = [label.get_text() for label in tree.get_yticklabels()]
    assert sorted(shown) == sorted(network.label for network in found.networks)
    assert {name[0] for name in shown[:3]} in ({"0"}, {"1"}), "relatives stand together"
    assert len(tree.get_lines()) == 5
    assert matrix.images[0].get_array().shape == (6, 6)


def test_one_network_is_not_compared(residual: Definition, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", weights(residual, 1))
    for paths in ([path], [tmp_path]):
        with pytest.raises(InvalidValueError, match="compare needs two networks, or a folder of them; found a"):
            compare_checkpoints(*paths, net=residual)
    with pytest.raises(InvalidValueError, match="no checkpoints given"):
        compare_checkpoints(net=residual)


def test_canonical_forms_are_the_same_function_with_the_same_fingerprint(residual: Definition, tmp_path: Path) -> None:
    state = {key: t.double() if t.is_floating_point() else t for key, t in weights(residual, 1).items()}
    a, b = saved(tmp_path / "a.pt", state), saved(tmp_path / "b.pt", moved(residual, state, 2, (1e-3, 1e3)))
    forms = [balance_checkpoint(path, net=residual) for path in (a, b)]
    assert forms[0].fingerprint == forms[1].fingerprint
    assert forms[0].fingerprint in forms[0].summary
    assert max(form.difference or 0 for form in forms) < 1e-10
    for form in forms:
        form.write(tmp_path / "out")
        (tmp_path / "out" / "table.md").unlink()
        (tmp_path / "out" / "results.json").unlink()
    found = pair(tmp_path / "out" / "a.pt", tmp_path / "out" / "b.pt", residual)
    assert found.found.same_function
    assert found.found.explained["scale"] < 1e-9
    norms = forms[1].to_json()["norm"]
    assert norms["after"] < norms["before"]


def test_signs_do_not_hide_relatives(tmp_path: Path) -> None:
    state = mlp(1, (4, 12, 2))
    signs = torch.where(torch.arange(12) % 3 == 0, -1.0, 1.0)
    other = {key: t * (signs[:, None] if key == "0.weight" else signs) for key, t in state.items() if key != "2.bias"}
    for name, found in {"a": state, "b": other | {"2.bias": state["2.bias"]}, "c": mlp(2, (4, 12, 2))}.items():
        saved(tmp_path / f"{name}.pt", found)
    family = compare_checkpoints(tmp_path, activation="tanh")
    assert isinstance(family, Family)
    assert family.links[0][:2] == ("a", "b")
    assert family.links[0][2] < 1e-6 < 0.2 < family.links[1][2]
