"""The study of kinship in small: children are made as they are called, and the command says what it found."""

import json
from pathlib import Path

import pytest
import torch
from invoking import said

from nfn_monomial.benchmarks.data.images import load_images
from nfn_monomial.benchmarks.experiments.kinship import KinshipConfig
from nfn_monomial.benchmarks.studies import kinship as study

IMAGES = load_images("digits")


@pytest.mark.parametrize("kind", ["residual", pytest.param("transformer", marks=pytest.mark.slow)])
def test_children_are_what_they_are_called(kind: str) -> None:
    config = KinshipConfig(parents=2, steps=2, draws=49)
    made = study.architecture(kind, IMAGES)
    generator = torch.Generator().manual_seed(0)
    parents, first = (
        {n: torch.rand(2, *s, generator=generator) - 0.4 * (len(s) > 1) for n, s in made.space.shapes().items()}
        for _ in range(2)
    )
    x = IMAGES.x[IMAGES.test[:20]]

    def outputs(networks: study.Networks) -> torch.Tensor:
        return study._logits(made, networks, x, None)

    found = study.children(made, parents, first, IMAGES, config)
    torch.testing.assert_close(
        outputs(found["fine-tuned and moved"][1]), outputs(found["fine-tuned"][1]), rtol=1e-3, atol=1e-3
    )
    name = max(parents, key=lambda name: parents[name][0].numel())
    assert (found["pruned, 90 %"][1][name] == 0).double().mean() == pytest.approx(0.9, abs=0.05)
    assert all(len(x.unique()) <= 7 for x in found["3 bits"][1][name])
    matrix = found["low rank"][1][name].flatten(2)
    assert int(torch.linalg.matrix_rank(matrix).max()) == max(1, min(matrix.shape[1:]) // 4)
    one, other = found["same first weights"]
    assert not torch.equal(one[name], other[name])
    for networks in (one, other, found["distilled"][1]):
        assert (networks[name] - first[name]).abs().max() < 3 * config.steps * config.learning_rate
    still = {n for n, m in made.names.items() if m in dict(made.sized().named_buffers())}
    assert all(torch.equal(found["fine-tuned"][1][n], parents[n]) for n in still)
    for label in ("pruned, 50 %", "merged, first parent"):
        seen = study.measured(made, *found[label], IMAGES, config)
        assert len(seen["p"]) == len(seen["partners"]) == 2
        assert max(seen["p"]) < 1e-3


def test_a_command_finds_all_and_goes_on_where_it_was(tmp_path: Path) -> None:
    options = ["--set", "networks=mlp", "--set", "pairs=12", "--set", "parents=3", "--set", "epochs=1"]
    options += ["--set", "steps=3", "--set", "draws=99", "--out", str(tmp_path)]
    text = said("kinship", *options)
    assert "Networks that were trained apart" in text
    found = json.loads((tmp_path / "results.json").read_text())
    apart = found["found"]["mlp"].pop("trained apart")
    assert len(apart["p"]) == 12
    assert len({*apart["p"]}) > 6
    shares = found["shares"]["mlp"]
    assert list(shares) == list(found["found"]["mlp"])
    for name in ("fine-tuned", "pruned, 50 %", "merged, first parent", "same first weights"):
        assert shares[name]["weights"] == 1
    assert shares["fine-tuned and moved"]["weights"] == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.piece")}
    assert len(before) == 4
    assert said("kinship", *options) == text
    assert all(path.stat().st_mtime_ns == time for path, time in before.items()), "nothing was done again"
