"""Maps against the tables that llm-compressor keeps by hand: what is legal in them is found, and nothing illegal is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import decoders
import pytest
from torch import nn

from nfn_monomial.tools import find_symmetries
from nfn_monomial.tools.definitions.define import define
from nfn_monomial.tools.quantisers.trial import KEPT, MappingTrial

QKV = ["re:.*q_proj", "re:.*k_proj", "re:.*v_proj"]
SMOOTH = [("re:.*input_layernorm", QKV), ("re:.*post_attention_layernorm", ["re:.*gate_proj", "re:.*up_proj"])]
AWQ = [*SMOOTH, ("re:.*v_proj$", ["re:.*o_proj$"]), ("re:.*up_proj$", ["re:.*down_proj$"])]
MIXTRAL = [SMOOTH[0], ("re:.*post_attention_layernorm", ["re:.*gate"])]
EXPERTS = [("re:.*post_attention_layernorm$", ["re:.*gate$", "re:.*w1$", "re:.*w3$"]), ("re:.*w3$", ["re:.*w2$"])]
OPT = [("re:.*self_attn_layer_norm", QKV), ("re:.*final_layer_norm", ["re:.*fc1"]), ("re:.*fc1", ["re:.*fc2"])]
PHI = [
    ("re:.*input_layernorm$", ["re:.*qkv_proj$"]), ("re:.*qkv_proj$", ["re:.*o_proj$"]),
    ("re:.*post_attention_layernorm$", ["re:.*gate_up_proj$"]), ("re:.*gate_up_proj$", ["re:.*down_proj$"]),
]  # fmt: skip
COHERE = [("re:.*input_layernorm$", [*QKV, "re:.*fc1$"]), ("re:.*fc1$", ["re:.*fc2$"])]
TABLES: dict[str, tuple[Callable[[], nn.Module], str, list[tuple[str, list[str]]], set[str]]] = {
    "Llama, SmoothQuant": (lambda: decoders.llama(layers=1), "smoothquant", SMOOTH, set()),
    "Llama, AWQ": (decoders.llama, "awq", AWQ, set()),
    "Qwen2": (lambda: decoders.llama(bias=True), "awq", AWQ, set()),
    "grouped queries": (lambda: decoders.llama(keys=1, bias=True), "awq", AWQ, {"re:.*v_proj$"}),
    "tied": (lambda: decoders.llama(tied=True, layers=1), "awq", AWQ, set()),
    "Mixtral": (lambda: decoders.llama(experts=True), "awq", [SMOOTH[0], AWQ[2], *EXPERTS], set()),
    "Mixtral, SmoothQuant": (
        lambda: decoders.llama(experts=True, layers=1), "smoothquant", MIXTRAL, {"re:.*post_attention_layernorm"}
    ),
    "Gemma": (lambda: decoders.llama(shifted=True, layers=1), "awq", AWQ, {smooth for smooth, _ in SMOOTH}),
    "OPT": (decoders.opt, "smoothquant", [*OPT, ("re:.*v_proj", ["re:.*out_proj"])], set()),
    "OPT with GELU": (lambda: decoders.opt("gelu"), "awq", OPT, {"re:.*fc1"}),
    "Phi-3": (lambda: decoders.llama(fused=True), "awq", PHI, set()),
    "Phi-3 with biases": (lambda: decoders.llama(fused=True, bias=True, layers=1), "awq", PHI, {"re:.*qkv_proj$"}),
    "Phi-3, SmoothQuant": (
        lambda: decoders.llama(fused=True, layers=1), "smoothquant", PHI, {"re:.*qkv_proj$", "re:.*gate_up_proj$"}
    ),
    "side by side": (decoders.phi, "awq", COHERE, {"re:.*fc1$"}),
}  # fmt: skip
"""A network, a format, a table, and what of it changes the function, or has no line, of this network."""


def paths_of(module: nn.Module) -> list[str]:
    return [path for path, _ in module.named_modules() if path]


def matching(target: str, paths: list[str]) -> list[str]:
    """As compressed-tensors reads a name or a pattern."""
    return [p for p in paths if (re.match(target[3:], p) if target.startswith("re:") else p == target)]


def resolved(smooth: str, balance: list[str], paths: list[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """As llm-compressor does: to each module that is smoothed those that share the longest beginning with it."""

    def shared(a: str, b: str) -> int:
        parts = list(zip(a.split("."), b.split("."), strict=False))
        return next((n for n, (x, y) in enumerate(parts) if x != y), len(parts))

    smoothed = matching(smooth, paths)
    found: dict[str, set[str]] = {path: set() for path in smoothed}
    for path in (path for target in balance for path in matching(target, paths)):
        found[max(smoothed, key=lambda own: shared(own, path))].add(path)
    return ((path, frozenset(others)) for path, others in found.items())


def lines_of(module: nn.Module, style: str) -> tuple[dict[str, frozenset[str]], dict[str, Any]]:
    found = find_symmetries(net=define(module, decoders.example_inputs()), format=style).to_json()
    (arguments,) = found["recipe"].values()
    lines: dict[str, frozenset[str]] = {}
    for entry in arguments["mappings"]:
        smooth, balance = (entry["smooth_layer"], entry["balance_layers"]) if style == "awq" else (entry[1], entry[0])
        own = dict(resolved(smooth, balance, paths_of(module)))
        assert not lines.keys() & own.keys()
        lines |= own
    assert len(found["tested_errors"]) == len(arguments["mappings"])
    errors = [*found["tested_errors"].values(), *(left["error"] for left in found["left_out"])]
    assert max(errors) < 1e-12
    return lines, found


@pytest.mark.parametrize(("make", "style", "table", "illegal"), TABLES.values(), ids=TABLES)
def test_every_legal_line_is_found_and_no_other(
    make: Callable[[], nn.Module], style: str, table: list[tuple[str, list[str]]], illegal: set[str]
) -> None:
    """Whether a published line is legal is measured, apart from the group: what the tool does, done at random."""
    module = make().eval()
    own, _ = lines_of(module, style)
    trial = MappingTrial(module, (decoders.example_inputs(),))
    for target, balance in table:
        for smooth, others in resolved(target, balance, paths_of(module)):
            if target in illegal:
                assert own.get(smooth) != others
            else:
                assert own[smooth] == others
                assert trial.smoothed(smooth, others) < 1e-12
            fits = {trial.shape(path)[1] for path in others} == {trial.shape(smooth)[0]}
            assert not fits or (target in illegal) == (trial.smoothed(smooth, others) > 1e-3)
    assert all(trial.smoothed(smooth, others) < KEPT for smooth, others in own.items())


def test_mixtral_has_experts_behind_the_norm_of_the_router() -> None:
    """The published line leaves them out, and changes the function; this one has them."""
    lines, _ = lines_of(decoders.llama(experts=True, layers=1).eval(), "smoothquant")
    block = "model.layers.0.block_sparse_moe"
    experts = {f"{block}.experts.{n}.{w}" for n in range(3) for w in ("w1", "w3")}
    assert lines["model.layers.0.post_attention_layernorm"] == {f"{block}.gate", *experts}


def test_what_has_no_line_says_why() -> None:
    found = find_symmetries(
        net=define(decoders.llama(keys=1, layers=1).eval(), decoders.example_inputs()), format="awq"
    ).to_json()
    (values,) = (left for left in found["left_out"] if left["smooth"] == ("model.layers.0.self_attn.v_proj",))
    assert values["reason"].endswith("here 4 are for 4 rows and 8 columns")


SPIN = {
    "embedding": "re:.*embed_tokens$", "attn": "re:.*self_attn$", "attn_q": "re:.*q_proj$", "attn_k": "re:.*k_proj$",
    "attn_v": "re:.*v_proj$", "attn_o": "re:.*o_proj$", "mlp_in": ["re:.*up_proj$", "re:.*gate_proj$"],
    "mlp_out": ["re:.*down_proj$"], "lm_head": "re:.*lm_head$",
}  # fmt: skip
NORMS = [*SMOOTH, ("model.norm", ["lm_head"])]


@pytest.mark.parametrize("options", [{}, {"keys": 1, "layers": 1}, {"experts": True, "layers": 1}], ids=str)
def test_spinquant_has_the_published_roles(options: dict[str, Any]) -> None:
    module = decoders.llama(**options).eval()
    paths = paths_of(module)
    found = find_symmetries(net=define(module, decoders.example_inputs()), format="spinquant").to_json()
    recipe = found["recipe"]["SpinQuantModifier"]
    mixtral = {"mlp_in": ["re:.*w1$", "re:.*w3$", "re:.*gate$"], "mlp_out": ["re:.*w2$"]}
    for role, targets in (SPIN | (mixtral if "experts" in options else {})).items():
        own = recipe["mappings"][role]
        sides = [[side] if isinstance(side, str) else side for side in (targets, own)]
        wanted, given = ({path for target in side for path in matching(target, paths)} for side in sides)
        assert given == wanted
    norms = {(e["norm"], *e["linears"]) for e in recipe["norm_mappings"]}
    named = [NORMS[0], EXPERTS[0], NORMS[2]] if "experts" in options else NORMS
    for norm, linears in named:
        published = dict(resolved(norm, linears, paths))
        assert any(dict(resolved(first, rest, paths)) == published for first, *rest in norms)
    assert max(found["tested_errors"].values()) < 1e-12
    assert {"embedding", "attn_v"} < found["tested_errors"].keys()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: decoders.llama(tied=True, layers=1), "0 residual streams may be rotated"),
        pytest.param(decoders.opt, "layer norms subtract", marks=pytest.mark.slow),
        pytest.param(
            lambda: decoders.llama(shifted=True, layers=1), "gains are more than a factor", marks=pytest.mark.slow
        ),
        (lambda: decoders.llama(fused=True, layers=1), "model.layers.0.self_attn.qkv_proj"),
        (lambda: nn.Sequential(nn.Embedding(decoders.WORDS, 4), nn.Linear(4, 3)), "residual streams"),
    ],
)
def test_spinquant_says_why_there_is_none(make: Callable[[], nn.Module], reason: str) -> None:
    with pytest.raises(ValueError, match="no SpinQuant mapping of this network") as error:
        find_symmetries(net=define(make().eval(), decoders.example_inputs()), format="spinquant")
    assert reason in str(error.value)
