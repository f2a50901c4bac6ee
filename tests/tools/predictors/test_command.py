"""``nfn-monomial predict`` as a user types it: tables, JSON, edited networks, pictures, and one line for an error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from invoking import invoke, said
from PIL import Image
from safetensors.torch import load_file, save_file
from small_predictors import SIREN, Left
from torch import nn

from nfn_monomial.benchmarks.models.inr import SineNetwork
from nfn_monomial.tools.predictors import Predictor
from nfn_monomial.tools.predictors.answers import Answers


def cnn(width: int = 16) -> nn.Sequential:
    """One of the demo's networks."""
    sizes = [(1, width), (width, width), (width, width)]
    layers = [m for a, b in sizes for m in (nn.Conv2d(a, b, 3, 2, 1), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    """A folder of networks as people keep them."""
    folder = tmp_path / "nets"
    folder.mkdir()
    save_file(cnn().state_dict(), folder / "a.safetensors")
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": t for k, t in cnn(20).state_dict().items()}}, folder / "b.pt")
    torch.save(cnn().half().state_dict(), folder / "c.pth")
    (folder / "notes.txt").touch()
    return folder


def answered(*arguments: object) -> Any:
    """What is printed with ``--json``, and nothing else is."""
    result = invoke("predict", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_shipped_predictor_ranks_a_folder(nets: Path, tmp_path: Path) -> None:
    found = answered(nets)
    assert found["predictor"]["reads"].startswith("4 layers 1-16-16-16-10, kernels 3x3, 3x3, 3x3, relu")
    assert [Path(entry["path"]).name for entry in found["networks"]] == ["a.safetensors", "b.pt", "c.pth"]
    accuracies = [entry["accuracy"] for entry in found["networks"]]
    assert all(accuracy < 0.35 for accuracy in accuracies), "untrained, so at chance"
    order = sorted(accuracies, reverse=True)
    assert [entry["rank"] for entry in found["networks"]] == [1 + order.index(a) for a in accuracies]
    assert accuracies[0] == pytest.approx(float(Predictor.load()(load_file(nets / "a.safetensors"))), rel=1e-5)
    words = said("predict", nets / "a.safetensors", nets, "--out", tmp_path / "said")
    assert "Trained on networks of 4 layers 1-16-16-16-10" in words
    assert "On test networks of that kind: tau 0." in words
    assert f"{accuracies[0]:.3f}" in words
    assert json.loads((tmp_path / "said/predictions.json").read_text(encoding="utf-8")) == found, "each file once"
    assert not list((tmp_path / "said").glob("*.safetensors"))


def test_names_of_files_are_names(nets: Path, tmp_path: Path) -> None:
    odd = (nets / "a.safetensors").rename(nets / "[red]:llama:[b].safetensors")
    words = said("predict", odd, "--out", tmp_path / "[bold]:llama:")
    assert "[red]:llama:[b].safetensors" in words.replace(" ", "")
    assert "[bold]:llama:/predictions.json" in words


def test_files_that_cannot_be_used_are_left_out_and_told(nets: Path, tmp_path: Path) -> None:
    torch.save(cnn().state_dict() | {"0.bias": torch.full((16,), torch.nan)}, nets / "nan.pt")
    torch.save({"table": torch.ones(3)}, nets / "other.pt")
    (nets / "broken.pt").write_bytes(b"PK")
    assert "broken.pt is damaged" in (text := said("predict", nets, code=2))
    assert "; --skip-bad goes on without such files" in text
    found = answered(nets, "--skip-bad")
    assert [Path(entry["path"]).name for entry in found["networks"]] == ["a.safetensors", "b.pt", "c.pth"]
    reasons = {Path(entry["file"]).name: entry["reason"] for entry in found["skipped"]}
    assert list(reasons) == ["broken.pt", "nan.pt", "other.pt"]
    assert reasons["nan.pt"].startswith("0.bias holds NaN")
    assert reasons["other.pt"].startswith("this predictor reads networks of 4 layers")
    told = invoke("predict", nets, "--skip-bad").output.splitlines()
    lines = [f"left out: {entry['file']}: {entry['reason']}" for entry in found["skipped"]]
    assert [line for line in told if line.startswith("left out")] == lines, "a line for each file, unbroken"
    for path in sorted(nets.iterdir())[:2]:
        path.unlink()
    assert "none of these 1 files can be used" in said("predict", nets / "nan.pt", "--skip-bad", code=2)


def test_the_order_of_layers_is_said_or_asked_for(tmp_path: Path) -> None:
    state, paths = cnn().state_dict(), [tmp_path / f"{i}.pt" for i in range(2)]
    for path, names in zip(paths, (["in", "mid1", "mid2", "out"], ["in", "mid2", "mid1", "out"]), strict=True):
        keys = dict(zip(dict.fromkeys(key.partition(".")[0] for key in state), names, strict=True))
        torch.save({f"{keys[key.partition('.')[0]]}.{key.partition('.')[2]}": t for key, t in state.items()}, path)
    assert "Layers are taken in the order in, mid2, mid1, out: if they run in" in said("predict", paths[1])
    given, plain = answered(paths[1], "--order", "in,mid2,mid1,out"), answered(paths[0])
    assert given["networks"][0]["accuracy"] == plain["networks"][0]["accuracy"]
    assert (given["notes"], len(plain["notes"])) == ([], 1)
    other = answered(paths[1], "--order", "in,mid1,mid2,out")
    assert other["networks"][0]["accuracy"] != plain["networks"][0]["accuracy"]
    assert "expected each layer once" in said("predict", paths[1], "--order", "in,out", code=2)


def test_equal_networks_share_a_rank_and_what_is_not_finite_has_none(nets: Path) -> None:
    predictor = Predictor.load()
    (one,) = predictor.predict([nets / "a.safetensors"])
    values = (0.2, 0.9, 0.9, torch.nan, 0.1)
    answers = Answers(predictor, tuple(one._replace(answer=torch.tensor(value)) for value in values))
    found = answers.to_json()["networks"]
    assert [entry["rank"] for entry in found] == [3, 1, 1, None, 4]
    assert found[3]["accuracy"] is None
    assert answers.rows()[1][3][1:] == ("not finite", "-")


def test_classifiers_say_class_and_probabilities(classifiers: Left, tmp_path: Path) -> None:
    torch.save(SineNetwork(SIREN).state_dict(), tmp_path / "siren.pt")
    path = classifiers["inr-message-passing"][1]
    (entry,) = answered(tmp_path / "siren.pt", "--predictor", path)["networks"]
    assert entry["probabilities"].keys() == {"0", "1"}
    assert sum(entry["probabilities"].values()) == pytest.approx(1)
    assert entry["class"] == max(entry["probabilities"], key=entry["probabilities"].__getitem__)
    words = said("predict", tmp_path / "siren.pt", "-p", path)
    assert f"{entry['class']} {entry['probabilities'][entry['class']]:.3f}" in words


def test_editors_write_networks_and_pictures(editors: Left, tmp_path: Path) -> None:
    module = SineNetwork(SIREN).double()
    torch.save(module.state_dict(), tmp_path / "siren.pt")
    call = ["predict", tmp_path / "siren.pt", "-p", editors["message-passing"][1]]
    out = tmp_path / "edited"
    assert "give a folder for them, --out DIR" in said(*call, code=2)
    assert "pixels changed by" in said(*call, "--out", out)
    edited = torch.load(out / "siren.pt", weights_only=True)
    assert {key: t.dtype for key, t in edited.items()} == {key: t.dtype for key, t in module.state_dict().items()}
    with Image.open(out / "siren.png") as picture:
        _, height, width = SIREN.image
        assert (picture.size, picture.mode) == ((8 * (2 * width + 1), 8 * height), "L")
        shown = torch.from_numpy(np.array(picture))[4::8, 4::8] / 255
    names = dict(zip(SIREN.space.parameters, module.state_dict(), strict=True))
    image = SIREN.render({name: edited[key].float()[None] for name, key in names.items()})[0, 0].clamp(0, 1)
    torch.testing.assert_close(shown[:, width + 1 :], image, atol=0.5 / 255 + 1e-5, rtol=0)

    before = (out / "siren.pt").read_bytes()
    assert "is there already" in said(*call, "--out", out, code=2)
    said(*call, "--out", out, "--force")
    again = said("predict", out / "siren.pt", *call[2:], "--out", out, "--force", code=2)
    assert "which was read, and is not written over" in again
    assert (out / "siren.pt").read_bytes() == before, "an input is never replaced"
    two = said(*call, out / "siren.pt", "--out", tmp_path / "two", code=2)
    assert "siren.png, siren.pt would be written twice" in two
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["unfinished"]


def test_what_cannot_be_used_is_said_in_a_line(nets: Path, classifiers: Left) -> None:
    wrong = {
        (nets, "-p", nets / "a.safetensors"): "has no checksum",
        (nets, "-p", classifiers["mlp"][1]): "reads networks of 3 layers 2-6-6-1, sin with omega_0 5; this one has 4",
    }
    for arguments, words in wrong.items():
        result = invoke("predict", *arguments)
        assert result.exit_code == 2, result.output
        (line,) = result.output.splitlines()
        assert line.startswith("error: ")
        assert words in line
