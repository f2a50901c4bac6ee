"""Maps of the package transformers' own decoders: the page shows what its commands print, and tables are contained."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from invoking import invoke
from networks.of_packages.architectures import WORDS, language

from nfn_monomial.tools import find_symmetries
from nfn_monomial.tools.definitions.define import define

pytestmark = pytest.mark.networks
PAGE = (Path(__file__).parents[3] / "docs" / "quantisers.md").read_text(encoding="utf-8")
NORMS = {"re:.*input_layernorm$": ["q", "k", "v"], "re:.*post_attention_layernorm$": ["gate", "up"]}


def test_the_page_shows_what_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    Path("llama.py").write_text(code, encoding="utf-8")
    shown = re.findall(r"```sh\nnfn-monomial ([^\n]*)\n```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) == 2
    for command, text in shown:
        printed = invoke(*shlex.split(command)).stdout
        masked = [re.sub(r"\d\.\de-\d\d", "#", found).strip() for found in (printed, text)]
        assert masked[0] == masked[1]


@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
def test_tables_of_llama_are_contained(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    build, inputs = language(kind, **WORDS, num_key_value_heads=2)
    found = find_symmetries(net=define(build(transformers), inputs()), format="awq").to_json()
    lines = {line["smooth_layer"]: line["balance_layers"] for line in found["recipe"]["AWQModifier"]["mappings"]}
    wanted = {norm: [f"re:.*{n}_proj$" for n in names] for norm, names in NORMS.items()}
    assert lines.items() >= (wanted | {"re:.*up_proj$": ["re:.*down_proj$"]}).items()
    assert max(found["tested_errors"].values()) < 1e-12
