"""Adapters of peft: the function of a pair is its factor times B A, whatever the basis between the two."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from nfn_monomial.tools import align_checkpoints, balance_checkpoint, compare_checkpoints
from nfn_monomial.tools.checkpoints.networks import read_networks
from nfn_monomial.tools.definitions.lora import Adapter
from nfn_monomial.tools.files.checkpoints import read_checkpoint
from nfn_monomial.tools.files.untrusted import FileError

Pairs = Mapping[str, tuple[Tensor, Tensor]]
LAYERS = ("layers.0.q", "layers.1.q")


def adapter(folder: Path, pairs: Pairs, extra: Mapping[str, Tensor] | None = None, **config: Any) -> Path:
    """An adapter as peft writes it; without a configuration where it has no rank."""
    folder.mkdir()
    sides = {
        f"{name}.lora_{side}.weight": t for name, pair in pairs.items() for side, t in zip("AB", pair, strict=True)
    }
    tensors = {f"base_model.model.{key}": t.contiguous() for key, t in {**sides, **(extra or {})}.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    if "r" in config:
        written = {"peft_type": "LORA", "base_model_name_or_path": "base", "target_modules": ["q"], **config}
        (folder / "adapter_config.json").write_text(json.dumps(written), encoding="utf-8")
    return folder


def drawn(rank: int = 4) -> Pairs:
    torch.manual_seed(0)
    return {name: (torch.randn(rank, 5), torch.randn(6, rank)) for name in LAYERS}


def in_another_basis(pairs: Pairs, times: float = 1.0) -> Pairs:
    torch.manual_seed(1)
    scales = {name: torch.linspace(0.5, 2, len(a)) for name, (a, _) in pairs.items()}
    bases = {name: torch.linalg.qr(torch.randn(len(x), len(x)))[0] * x for name, x in scales.items()}
    return {name: (bases[name] @ a, times * b @ torch.linalg.inv(bases[name])) for name, (a, b) in pairs.items()}


SAME: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "one scaling": ({"r": 4, "lora_alpha": 8}, {"r": 4, "lora_alpha": 8}, 1),
    "alpha over the root of the rank": ({"r": 4, "lora_alpha": 8}, {"r": 4, "lora_alpha": 4, "use_rslora": True}, 1),
    "a factor in the weights": ({"r": 4, "lora_alpha": 8}, {"r": 4, "lora_alpha": 4}, 2),
    "a factor that is no power of 2": ({"r": 4, "lora_alpha": 12}, {"r": 4, "lora_alpha": 4}, 3),
    "ranks by pattern": (
        {"r": 4, "lora_alpha": 8}, {"r": 16, "lora_alpha": 8, "rank_pattern": {"layers.[01].q": 4}}, 1,
    ),
    "alphas by pattern": (
        {"r": 4, "lora_alpha": 8}, {"r": 4, "lora_alpha": 1, "alpha_pattern": {"q": 8, "layers.0.q": 3}}, 1,
    ),
    "another storage of the base": (
        {"r": 4, "lora_alpha": 8, "fan_in_fan_out": True}, {"r": 4, "lora_alpha": 8, "fan_in_fan_out": False}, 1,
    ),
    "another start": (
        {"r": 4, "lora_alpha": 8, "init_lora_weights": "gaussian"}, {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1}, 1,
    ),
}  # fmt: skip


def products(path: Path) -> list[Tensor]:
    """What the pairs of an adapter add, as they are read."""
    found = Adapter(read_checkpoint(path))
    sides = [[found[f"base_model.model.{name}.lora_{side}.weight"].double() for side in "AB"] for name in LAYERS]
    return [b @ a for a, b in sides]


@pytest.mark.parametrize("case", SAME)
def test_one_delta_is_read_whatever_the_scaling(case: str, tmp_path: Path) -> None:
    first, second, times = SAME[case]
    pairs = drawn()
    a, b = adapter(tmp_path / "a", pairs, **first), adapter(tmp_path / "b", in_another_basis(pairs, times), **second)
    for found in (products(a), products(b)):
        expected = [2 * (pairs[name][1].double() @ pairs[name][0].double()) for name in LAYERS]
        if case == "a factor that is no power of 2":
            expected = [1.5 * product for product in expected]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


OTHER: dict[str, dict[str, Any]] = {
    "alpha": {"r": 4, "lora_alpha": 16},
    "the root": {"r": 4, "lora_alpha": 8, "use_rslora": True},
    "alpha of one layer": {"r": 4, "lora_alpha": 8, "alpha_pattern": {"layers.1.q": 9}},
    "the sign": {"r": 4, "lora_alpha": -8},
}


@pytest.mark.parametrize("case", OTHER)
def test_the_same_tensors_under_another_scaling_are_read_as_another_delta(case: str, tmp_path: Path) -> None:
    a = adapter(tmp_path / "a", drawn(), r=4, lora_alpha=8)
    b = adapter(tmp_path / "b", drawn(), **OTHER[case])
    assert not all(torch.equal(x, y) for x, y in zip(products(a), products(b), strict=True))


def test_adapters_are_compared_by_their_deltas(tmp_path: Path) -> None:
    pairs = drawn()
    a = adapter(tmp_path / "a", pairs, r=4, lora_alpha=8)
    same = adapter(tmp_path / "same", in_another_basis(pairs), r=4, lora_alpha=4, use_rslora=True)
    other = adapter(tmp_path / "other", pairs, r=4, lora_alpha=16)
    assert compare_checkpoints(a, same).to_json()["same_function"]
    assert not compare_checkpoints(a, other).to_json()["same_function"]
    prints = [balance_checkpoint(path).to_json()["fingerprint"] for path in (a, same, other)]
    assert prints[0] == prints[1] != prints[2]


def test_factors_are_those_of_peft(tmp_path: Path) -> None:
    """The first pattern counts that is the end of a layer's name, from a dot on."""
    config = {
        "r": 8,
        "lora_alpha": 3,
        "rank_pattern": {"q": 4, "layers.0.q": 5},
        "alpha_pattern": {"ers.0.q": 7, "^layers.1.q": 11},
    }
    checkpoint = read_checkpoint(adapter(tmp_path / "a", drawn(), **config))
    raw = {key: t.clone() for key, t in checkpoint.items()}
    for rooted in (False, True):
        adapter(tmp_path / str(rooted), drawn(), **config, use_rslora=rooted)
        found = Adapter(read_checkpoint(tmp_path / str(rooted)))
        for name, alpha in zip(LAYERS, (3, 11), strict=True):
            key = f"base_model.model.{name}.lora_B.weight"
            expected = (raw[key].double() * alpha / (math.sqrt(4) if rooted else 4)).float()
            torch.testing.assert_close(found[key], expected, rtol=1e-7, atol=0)
            assert torch.equal(found[key.replace("_B", "_A")], raw[key.replace("_B", "_A")])


def test_what_is_written_lacks_the_factor_again(tmp_path: Path) -> None:
    pairs = drawn()
    a = adapter(tmp_path / "a", pairs, r=4, lora_alpha=12)
    b = adapter(tmp_path / "b", in_another_basis(pairs, 3), r=4, lora_alpha=4)
    align_checkpoints(a, b).write(tmp_path / "out")
    (written,) = (tmp_path / "out").rglob("*.safetensors")
    assert (tmp_path / "out" / "adapter_config.json").read_bytes() == (b / "adapter_config.json").read_bytes()
    assert compare_checkpoints(a, written).to_json()["same_function"]
    (network,) = read_networks([written])
    for name in LAYERS:
        key = f"base_model.model.{name}.lora_{{}}.weight"
        product = network[key.format("B")].double() @ network[key.format("A")].double()
        torch.testing.assert_close(product, 3 * (pairs[name][1] @ pairs[name][0]).double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("times", [1, 2])
def test_a_bias_of_the_pairs_has_their_factor(times: int, tmp_path: Path) -> None:
    pairs, biases = drawn(), {f"{name}.lora_B.bias": torch.randn(6) for name in LAYERS}
    a = adapter(tmp_path / "a", pairs, biases, r=4, lora_alpha=8, lora_bias=True)
    again = {key: times * t for key, t in biases.items()}
    b = adapter(tmp_path / "b", in_another_basis(pairs, 2), again, r=4, lora_alpha=4, lora_bias=True)
    assert compare_checkpoints(a, b).to_json()["same_function"] == (times == 2)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Tensor], str]] = {
    "DoRA": ({"use_dora": True}, {"layers.0.q.lora_magnitude_vector": torch.ones(6)}, "not magnitudes of DoRA"),
    "DoRA without its tensors": (
        {"use_dora": True},
        {},
        "use_dora is True; it is not known what function the pairs then have",
    ),
    "a module": ({"modules_to_save": ["head"]}, {"head.weight": torch.ones(2, 6)}, "not modules that were saved whole"),
    "a bias of the base": ({"bias": "all"}, {"layers.0.q.base_layer.bias": torch.ones(6)}, "not tensors of the base"),
    "a base that changes": ({"init_lora_weights": "pissa_niter_4"}, {}, "init_lora_weights is 'pissa_niter_4'"),
    "tokens": ({"alora_invocation_tokens": [1, 2]}, {}, r"alora_invocation_tokens is \[1, 2\]"),
    "parameters": ({"target_parameters": ["experts.up"]}, {}, "target_parameters"),
    "what is not known": ({"use_tomorrow": 3}, {}, "use_tomorrow is 3"),
    "another kind": ({"peft_type": "ADALORA"}, {}, "peft_type is 'ADALORA'"),
    "another rank": ({"r": 5}, {}, r"the rank of layers\.0\.q is 5, but .*lora_A\.weight is \(4, 5\)"),
    "no alpha": ({"lora_alpha": None}, {}, r"the alpha of layers\.0\.q is None, expected a number other than 0"),
    "no effect": ({"lora_alpha": 0}, {}, "expected a number other than 0"),
    "no pattern": ({"alpha_pattern": {"(": 1}}, {}, r"alpha_pattern has '\(', no pattern"),
    "a slow pattern": ({"alpha_pattern": {"(a+)+": 1}}, {}, r"alpha_pattern has \(a\+\)\+, more than is looked up"),
    "a factor out of range": (
        {"lora_alpha": 1e-60},
        {},
        r"lora_B\.weight times 2\.5e-61 is out of the range of torch\.f",
    ),
    "no patterns": ({"rank_pattern": [3]}, {}, r"rank_pattern is \[3\], expected an object"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_functions_of_pairs_are_refused_by_name(case: str, tmp_path: Path) -> None:
    config, extra, message = REFUSED[case]
    a = adapter(tmp_path / "a", drawn(), extra, **{"r": 4, "lora_alpha": 8, **config})
    with pytest.raises(FileError, match=rf"^[^\n]*{message}[^\n]*$"):
        read_networks([a])[0].check()


def test_what_is_said_beside_a_config_is_told(tmp_path: Path) -> None:
    pairs = drawn()
    known = adapter(tmp_path / "known", pairs, r=4, lora_alpha=8)
    a, b = (adapter(tmp_path / name, pairs) for name in "ab")
    assert "so the factor of its pairs is left out" in compare_checkpoints(a, b).summary
    for paths in ((known, a), (a, known)):
        with pytest.raises(FileError, match=r"a\S* has no adapter_config\.json beside it, as \S*known\S* has"):
            compare_checkpoints(*paths)
    other = adapter(tmp_path / "other", pairs, r=4, lora_alpha=8, base_model_name_or_path="another")
    assert "was made for the base 'another'" in compare_checkpoints(known, other).summary
    (other / "adapter_config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(FileError, match=r"adapter_config\.json is no configuration of an adapter"):
        compare_checkpoints(known, other)
