"""Files that are damaged, or that somebody wrote on purpose: refused in a line, before anything large is made."""

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_predictors import Left
from torch import Tensor

from nfn_monomial.errors import InvalidValueError, MonomialError
from nfn_monomial.tools.files.sealed import read_sealed, seal
from nfn_monomial.tools.predictors import SHIPPED, Predictor

Record = dict[str, Any]
Files = list[tuple[dict[str, Tensor], Record]]


@pytest.fixture(scope="module")
def known(classifiers: Left, editors: Left) -> Files:
    """One file of every task."""
    paths = (SHIPPED, classifiers["inr-message-passing"][1], editors["message-passing"][1])
    return [read_sealed(path) for path in paths]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested more than"),
        ("[" * 65 + "]" * 65, "nested more than 64 deep"),
        ('{"sha256": "0", "stated": Infinity}', "the number inf"),
        ('{"sha256": "0"}', "do not have the checksum"),
        ("[]", "do not have the checksum"),
        ("1" * 5000, "digits"),
    ],
)
def test_records_that_are_none(text: str, said: str, tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2)}, tmp_path / "odd.safetensors", {"sealed": text})
    with pytest.raises(InvalidValueError, match=said):
        Predictor.load(tmp_path / "odd.safetensors")


LIES: list[tuple[int, str, Any, str]] = [
    (0, "predictor", {}, "holds weights alone"),
    (0, "predictor format", 2, "format 2, .* this version reads format 1"),
    (0, "predictor task", "think", "task 'think'"),
    (0, "predictor networks", [], "names no networks"),
    (0, "predictor networks 0 space nodes 1 size", 2**30, "weights, 16777216 at most"),
    (0, "predictor networks 0 space nodes 1 size", 5, "are of different networks"),
    (0, "predictor networks 0 input_shape", [1, 2**20, 2**20], "an input of shape"),
    (0, "predictor networks 0 architecture kind", "code", "unknown kind of architecture 'code'"),
    (0, "predictor networks 0 architecture strides", [0, 2, 2], "sizes must be positive"),
    (0, "settings model", "os.system", "unknown model 'os.system'"),
    (0, "settings model", "statnn", "its weights are not those of the model 'statnn'"),
    (0, "settings", None, "its settings name no model"),
    (1, "settings options sizes channels", 10**6, "larger than what the file holds"),
    (1, "settings options sizes rounds", 10**6, "larger than what the file holds"),
    (1, "settings options sizes channels", -1, "channels"),
    (1, "settings options", {}, "cannot be built"),
    (1, "predictor siren sizes", [2, 10**9, 1], "expected at most"),
    (1, "predictor siren omega_0", 0, "omega_0 is 0"),
    (1, "predictor siren", None, "siren"),
    (2, "settings options editor blocks", 10**6, "larger than what the file holds"),
    (2, "predictor siren image", [1, 10**6, 10**6], "expected at most"),
]


@pytest.mark.parametrize(("task", "place", "value", "said"), LIES)
def test_files_that_fit_their_checksum_and_lie(
    task: int, place: str, value: Any, said: str, known: Files, tmp_path: Path
) -> None:
    tensors, record = known[task]
    steps = [int(step) if step.isdigit() else step for step in place.split()]
    path = tmp_path / "lies.safetensors"
    path.write_bytes(seal(tensors, _changed(record, steps, value)))
    with pytest.raises(MonomialError, match=said) as found:
        Predictor.load(path)
    assert str(found.value).startswith(str(path))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("place", ["input_shape", "paddings"])
def test_networks_that_take_too_long_to_find_normal_forms_of(place: str, known: Files, tmp_path: Path) -> None:
    """A few kilobytes may say so: 20 GiB, and hours, if it was tried."""
    tensors, record = known[0]
    record = _changed(record, ["settings", "model"], "normal-stats")
    own = ["predictor", "networks", 0]
    large = [*own, place] if place == "input_shape" else [*own, "architecture", place]
    path = tmp_path / "large.safetensors"
    path.write_bytes(seal(tensors, _changed(record, large, [1, 2048, 2048] if place == "input_shape" else [2048] * 3)))
    with pytest.raises(MonomialError, match=r"one run of its networks takes \d+ operations"):
        Predictor.load(path)


def test_any_value_anywhere_loads_or_is_refused(known: Files, tmp_path: Path) -> None:
    """Never another error."""
    odd = [None, True, -1, 0, 1.5, 10**30, "", "x", [], [1], {}, {"a": 1}, [[[]]], "relu"]
    rng = random.Random(1)
    refused = 0
    path = tmp_path / "odd.safetensors"
    for tensors, record in known:
        places = [place for place in _places(record) if place[0] in ("predictor", "settings")]
        for _ in range(8):
            path.write_bytes(seal(tensors, _changed(record, rng.choice(places), rng.choice(odd))))
            try:
                Predictor.load(path)
            except MonomialError:
                refused += 1
    assert refused > 8


def _changed(record: Record, place: list[Any], value: Any) -> Record:
    changed = copy.deepcopy(record)
    at: Any = changed
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    return changed


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[list[Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield [*path, key]
        yield from _places(inner, (*path, key))
