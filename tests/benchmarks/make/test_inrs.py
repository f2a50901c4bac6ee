"""Corpora of fitted SIRENs: what is stored shows the images, whatever interrupted its making; figure and command."""

from dataclasses import replace
from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from nfn_monomial.benchmarks.data.formats.made import MadeInrs
from nfn_monomial.benchmarks.data.images import load_pictures
from nfn_monomial.benchmarks.data.sirens import Siren
from nfn_monomial.benchmarks.make.inrs import InrConfig, _plan
from nfn_monomial.benchmarks.make.siren_fit import psnr
from nfn_monomial.tools.cli.application import app

# Corpora


def test_stored_weights_show_the_images_with_the_stored_psnr(inrs: Path) -> None:
    corpus = MadeInrs.load(inrs)
    assert corpus.pixels is not None
    stored = torch.cat([load_file(path)["psnr"] for path in sorted(inrs.glob("shard-*"))])
    split = torch.cat([load_file(path)["split"] for path in sorted(inrs.glob("shard-*"))])
    for number, part in enumerate((corpus.train, corpus.val, corpus.test)):
        tensors, pixels = part.tensors, corpus.pixels[part.image]
        torch.testing.assert_close(
            psnr(corpus.siren.render(tensors), pixels), stored[split == number], rtol=1e-4, atol=1e-3
        )
        assert stored[split == number].min() > 25
        wrong = replace(corpus.siren, omega_0=29.0)  # a little off is far off
        assert (psnr(wrong.render(tensors), pixels) < 20).all()
    assert corpus.info["made"]["psnr"]["median"] == pytest.approx(stored.median().item())


def test_parts_share_no_image_and_only_training_images_have_several_networks(inrs: Path) -> None:
    corpus, pictures = MadeInrs.load(inrs), load_pictures("digits")
    parts = {name: getattr(corpus, name) for name in ("train", "val", "test")}
    for name, part in parts.items():
        assert set(part.image.tolist()) <= set(getattr(pictures, name).tolist())
        assert torch.equal(part.labels, pictures.labels[part.image])
        assert (part.image.unique(return_counts=True)[1] == (2 if name == "train" else 1)).all()
        assert len(part) == {"train": 64, "val": 4, "test": 4}[name]
    train = parts["train"].tensors["weight.0"].flatten(1)
    assert len(train.unique(dim=0)) == len(train)  # fits of one image begin elsewhere
    assert corpus.classes == 10


@pytest.mark.parametrize("images", ["digits", "crops"])
def test_as_many_images_are_fitted_as_are_asked_for(images: Literal["digits", "crops"]) -> None:
    pictures = load_pictures(images)
    for limit in (*range(3, 40), len(pictures) // 3, len(pictures) - 1, len(pictures)):
        image, _, split = _plan(InrConfig(images, limit=limit), pictures)
        assert len(image) == len(image.unique()) == limit
        assert split.unique().tolist() == [0, 1, 2], limit
    with pytest.raises(ValueError, match="limit is 2: at least 3, an image each of train, val, test"):
        _plan(InrConfig(images, limit=2), pictures)


# Figure and command


def test_command_makes_a_corpus_of_colour_images_and_continues(tmp_path: Path) -> None:
    command = ["inr", "make", "--images", "crops", "--networks", "12", "--steps", "8", "--out", str(tmp_path)]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    assert "12 networks, 12 fitted in" in first.output
    assert (tmp_path / "reconstructions.png").read_bytes().startswith(b"\x89PNG")
    corpus = MadeInrs.load(tmp_path)
    assert corpus.siren == Siren((2, 32, 32, 3), 30.0, (3, 32, 32))
    quality = [f"{corpus.info['made']['psnr'][level]:.1f}" for level in ("min", "median", "max")]
    cells = [
        "crops",
        "2-32-32-3",
        *(str(len(part)) for part in (corpus.train, corpus.val, corpus.test)),
        "1",
        "8",
        *quality,
    ]
    told = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert f"| {' | '.join(cells)} |" in told
    (tmp_path / "table.md").unlink()
    second = CliRunner().invoke(app, command)
    assert "12 networks, all were already there" in second.output
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == told
    assert "seed is 0 there, 1 asked for" in CliRunner().invoke(app, [*command, "--seed", "1"]).output


def test_somebody_elses_table_stays(tmp_path: Path) -> None:
    (tmp_path / "table.md").write_text("mine", encoding="utf-8")
    refused = CliRunner().invoke(app, ["inr", "make", "--images", "digits", "--networks", "3", "--out", str(tmp_path)])
    assert refused.exit_code == 2
    assert "table.md is not of this command, and would be replaced" in " ".join(refused.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["table.md"]


def test_another_set_is_made_though_it_was_cut_off_between_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of the set of before is this command's, though its networks are gone."""
    command = ["inr", "make", "--images", "digits", "--networks", "3", "--steps", "2", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    other = [*command, "--seed", "1", "--overwrite"]
    with monkeypatch.context() as cut:
        cut.setattr("nfn_monomial.benchmarks.make.jobs.write_json", Mock(side_effect=KeyboardInterrupt))
        assert CliRunner().invoke(app, other).exit_code
    assert not list(tmp_path.glob("shard-*"))
    again = CliRunner().invoke(app, other)
    assert "3 networks, 3 fitted" in again.output, again.output
