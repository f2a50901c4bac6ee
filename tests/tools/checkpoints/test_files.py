"""Checkpoints in every form: read tensor by tensor, written back as they were but for the values."""

import json
import pickle
from argparse import Namespace
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from published_writers import Marker

from nfn_monomial.adapters.files import FileError
from nfn_monomial.adapters.modules import load_checkpoint
from nfn_monomial.tools.checkpoints.files import checkpoints_in, read_checkpoint

STATE = {
    "a.weight": torch.randn(3, 2),
    "a.bias": torch.randn(3, dtype=torch.float16),
    "b.weight": torch.randn(2, 3, dtype=torch.bfloat16),
    "steps": torch.tensor(7),
}
INDEX = "model.safetensors.index.json"


def made(form: str, folder: Path) -> Path:
    """A checkpoint of this form in a new folder: its path."""
    folder.mkdir(parents=True)
    if form == "sharded":
        parts = {"one.safetensors": ["a.weight", "steps"], "two.safetensors": ["a.bias", "b.weight"]}
        for name, keys in parts.items():
            safetensors.torch.save_file({key: STATE[key] for key in keys}, folder / name, {"part": name})
        places = {key: name for name, keys in parts.items() for key in keys}
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}), encoding="utf-8")
        return folder / INDEX
    if form == "single":
        safetensors.torch.save_file(STATE, folder / "net.safetensors", {"made": "here"})
        return folder / "net.safetensors"
    beside = {"epoch": 3, "loss": torch.tensor(0.5), "model": STATE, "optimizer": {"state": {}}}
    path = folder / {"plain": "net.pt", "wrapped": "net.pth.tar"}[form]
    torch.save(STATE if form == "plain" else beside, path)
    return path


@pytest.mark.parametrize("form", ["single", "sharded", "plain", "wrapped"])
def test_what_is_written_is_what_was_read_but_for_the_values(form: str, tmp_path: Path) -> None:
    path = made(form, tmp_path / "given")
    checkpoint = read_checkpoint(path)
    assert {key: tuple(t.shape) for key, t in STATE.items()} == checkpoint.shapes
    assert all(torch.equal(checkpoint[key], tensor) for key, tensor in STATE.items())
    name, out = checkpoint.name, tmp_path / "out"
    assert checkpoint.renamed("net") == name or form == "sharded"
    new = {"a.bias": torch.arange(3, dtype=torch.float64), "b.weight": torch.ones(2, 3, dtype=torch.float64)}
    checkpoint.write(out, name, new)
    assert {p for p in out.rglob("*") if p.is_file()} == {out / place for place in checkpoint.outputs(name)}
    again = read_checkpoint(out / name)
    for key, tensor in STATE.items():
        torch.testing.assert_close(again[key], new.get(key, tensor).to(tensor.dtype), rtol=0, atol=0)
    if form == "single":
        with safetensors.safe_open(out / name, "pt") as file:
            assert file.metadata() == {"made": "here"}
    elif form == "sharded":
        assert (out / name / INDEX).read_bytes() == path.read_bytes()
    elif form == "wrapped":
        found = torch.load(out / name, weights_only=True)
        assert (list(found), found["epoch"]) == (["epoch", "loss", "model", "optimizer"], 3)


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_objects_beside_the_weights_stay_what_they_are(options: dict[str, bool], tmp_path: Path) -> None:
    weight = torch.arange(6.0).view(2, 3)
    model = {"whole": weight, "transposed": weight.T, "row": weight[1], "scale": torch.nn.Parameter(torch.ones(3))}
    content = {"model": model, "args": Namespace(rate=0.1), "mark": Marker(tmp_path / "ran")}
    torch.save(content, tmp_path / "a.pt", **options)
    checkpoint = read_checkpoint(tmp_path / "a.pt")
    checkpoint.write(tmp_path / "out", "b.pt", {"row": -torch.ones(3, dtype=torch.float64), "scale": torch.zeros(3)})
    assert not (tmp_path / "ran").exists()
    assert torch.equal(checkpoint["row"], weight[1])
    found = torch.load(tmp_path / "out" / "b.pt", weights_only=False, mmap=not options)  # torch runs it
    assert (tmp_path / "ran").exists()
    assert found["args"] == Namespace(rate=0.1)
    for key, tensor in read_checkpoint(tmp_path / "out" / "b.pt").items():
        torch.testing.assert_close(found["model"][key], tensor, rtol=0, atol=0)
    expected = torch.tensor([[0.0, 1, 2], [-1, -1, -1]])
    torch.testing.assert_close(found["model"]["transposed"], expected.T, rtol=0, atol=0)
    torch.testing.assert_close(found["model"]["whole"], expected, rtol=0, atol=0)
    assert not found["model"]["scale"].any()


def test_tensors_lie_where_torch_maps_them(tmp_path: Path) -> None:
    torch.save({f"layer.{'x' * i}": torch.ones(3, dtype=torch.float64) for i in range(20)}, tmp_path / "a.pt")
    read_checkpoint(tmp_path / "a.pt").write(tmp_path / "out", "a.pt", {})
    file = torch._C.PyTorchFileReader(str(tmp_path / "out" / "a.pt"))
    assert {file.get_record_offset(f"data/{i}") % 64 for i in range(20)} == {0}
    assert not file.has_record(".format_version")


@pytest.mark.parametrize("form", ["single", "plain"])
def test_a_file_that_changes_meanwhile_is_no_network(form: str, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(made(form, tmp_path / "a"))
    made(form, tmp_path / "b").replace(checkpoint.path)
    with pytest.raises(FileError, match=r"was changed (while|after) it was read: start again"):
        checkpoint.write(tmp_path, "out.pt", {})


def test_values_that_the_dtype_cannot_hold_are_refused(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(made("single", tmp_path / "s"))
    with pytest.raises(FileError, match=r"a\.bias gets entries of up to 1\.0e\+05, more than torch\.f"):
        checkpoint.write(tmp_path, "out.safetensors", {"a.bias": torch.full((3,), 1e5)})
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_folder_stands_for_the_checkpoint_in_it(tmp_path: Path) -> None:
    assert read_checkpoint(made("sharded", tmp_path / "p").parent).name == "p"
    assert read_checkpoint(made("single", tmp_path / "s").parent).name == "net.safetensors"
    made("plain", tmp_path / "t")
    names = [path.relative_to(tmp_path).as_posix() for path in checkpoints_in(tmp_path)]
    assert names == [f"p/{INDEX}", "s/net.safetensors", "t/net.pt"], "files of an index are parts"
    with pytest.raises(FileError, match=r"holds 3 checkpoints, expected one: (?!.*Path).*; name it"):
        read_checkpoint(tmp_path)


def test_folders_as_trainers_leave_them(tmp_path: Path) -> None:
    """Those of Hugging Face and of Lightning, with the names and contents of both, and links."""
    for step in (500, 1000):
        folder = tmp_path / "run" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        safetensors.torch.save_file({"a": STATE["a.weight"]}, folder / "model.safetensors")
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "rng_state_0.pth", "training_args.bin"):
            torch.save({"state": {0: {"step": torch.ones(3)}}, "args": Namespace(rate=0.1)}, folder / name)
        (folder / "trainer_state.json").write_text("{}", encoding="utf-8")
    for epoch in (9, 10):
        folder = tmp_path / "lightning_logs" / "version_0" / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"state_dict": STATE, "epoch": epoch}, folder / f"epoch={epoch}-step=2.ckpt")
    (folder / "last.ckpt").symlink_to("epoch=10-step=2.ckpt")
    (tmp_path / "run" / "best").symlink_to("checkpoint-500")
    (tmp_path / "run" / "all").symlink_to(tmp_path)
    (tmp_path / ".cache").mkdir()
    torch.save(STATE, tmp_path / ".cache" / "net.pt")
    torch.save(STATE, tmp_path / "net.pkl")
    (tmp_path / "words.pkl").write_bytes(pickle.dumps(["a"]))
    (tmp_path / "images.tar").write_bytes(bytes(1024))
    names = [path.relative_to(tmp_path).as_posix() for path in checkpoints_in(tmp_path)]
    assert names == [
        "lightning_logs/version_0/checkpoints/epoch=9-step=2.ckpt",
        "lightning_logs/version_0/checkpoints/epoch=10-step=2.ckpt",
        "net.pkl",
        "run/checkpoint-500/model.safetensors",
        "run/checkpoint-1000/model.safetensors",
    ]
    assert read_checkpoint(tmp_path / "run" / "best").shapes == {"a": (3, 2)}


def test_a_folder_of_too_much_is_no_folder_of_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(4):
        (tmp_path / f"{i}.txt").touch()
    monkeypatch.setattr("nfn_monomial.tools.checkpoints.files.MOST", 3)
    with pytest.raises(FileError, match=r"has more than 3 files and folders below it: name one further down"):
        checkpoints_in(tmp_path)


def test_a_key_says_which_state_dict(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.save({"model": STATE, "average": {"a": torch.ones(1)}}, path)
    with pytest.raises(FileError, match=r"holds several state dicts, model, average: say which by --key"):
        read_checkpoint(path)
    assert list(read_checkpoint(path, "average")) == ["a"]
    with pytest.raises(FileError, match=r"has no state dict 'ema'; it holds model, average"):
        read_checkpoint(path, "ema")
    torch.save(STATE, path)
    assert list(read_checkpoint(path, "average")) == list(STATE)
    torch.save({"epoch": 3}, path)
    with pytest.raises(FileError, match=r"has no state dict 'average'; it holds epoch"):
        read_checkpoint(path, "average")


class Averaged(torch.nn.Module):
    """With all that a state dict leaves out or has twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.again = torch.nn.Linear(2, 3)
        self.norm, self.none = torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1, bias=False)
        self.register_buffer("order", torch.arange(3), persistent=False)
        self.heads = torch.nn.ModuleList([torch.nn.Linear(3, 1)])


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
@pytest.mark.parametrize("inside", [False, True])
def test_whole_modules_are_read_without_their_code(options: dict[str, bool], inside: bool, tmp_path: Path) -> None:
    module, path = torch.nn.DataParallel(Averaged()), tmp_path / "whole.pt"
    content = {"model": module, "mark": Marker(tmp_path / "ran"), "epoch": 3} if inside else module
    torch.save(content, path, **options)
    checkpoint, state = read_checkpoint(path), module.state_dict()
    assert checkpoint.shapes == {key: tuple(t.shape) for key, t in state.items()}
    assert all(torch.equal(checkpoint[key], tensor) for key, tensor in state.items())
    checkpoint.write(tmp_path / "out", "b.pt", {"module.heads.0.weight": torch.ones(1, 3)})
    assert not (tmp_path / "ran").exists()
    found = torch.load(tmp_path / "out" / "b.pt", weights_only=False)
    written = found["model"] if inside else found
    assert type(written) is torch.nn.DataParallel
    torch.testing.assert_close(written.state_dict(), {**state, "module.heads.0.weight": torch.ones(1, 3)})
    if not inside:
        torch.testing.assert_close(load_checkpoint(path), dict(state))


def test_modules_that_are_none_are_refused(tmp_path: Path) -> None:
    endless, odd = Averaged(), Averaged()
    endless.add_module("loop", endless)
    odd._modules["odd"] = Namespace()  # type: ignore[assignment]
    for module, message in ((endless, "the keys of its modules have some"), (odd, r"odd\. is a .*Namespace")):
        torch.save(module, tmp_path / "net.pt")
        with pytest.raises(FileError, match=rf"net\.pt is damaged .*{message}.*weights_only=False\)\.state_dict"):
            read_checkpoint(tmp_path / "net.pt")


def test_states_of_optimisers_and_generators_are_no_networks(tmp_path: Path) -> None:
    module = Averaged()
    optimizer = torch.optim.Adam(module.parameters())
    sum(p.square().sum() for p in module.parameters()).backward()
    optimizer.step()
    beside = {
        "optimizer_state_dict": optimizer.state_dict(),
        "args": Namespace(rate=0.1),
        "rng": {"cpu": torch.get_rng_state(), "seed": 3},
        "best": {"accuracy": torch.tensor(0.9)},
    }
    torch.save({"state_dict": module.state_dict(), **beside}, tmp_path / "net.pth.tar")
    assert list(read_checkpoint(tmp_path / "net.pth.tar")) == list(module.state_dict())
    torch.save({"model": module.state_dict(), "model_ema": module.state_dict(), **beside}, tmp_path / "net.ckpt")
    with pytest.raises(FileError, match=r"several state dicts, model, model_ema: say which by --key, as --key model$"):
        read_checkpoint(tmp_path / "net.ckpt")


def index(**found: object) -> bytes:
    return json.dumps(found).encode()


BROKEN: list[tuple[str, object, str]] = [
    ("no.pt", None, r"no\.pt: no such file, expected a \.safetensors file"),
    ("", None, r"has no checkpoints, expected a \.safetensors file"),
    ("net.h5", b"HDF", r"is called \.h5, expected"),
    ("net.safetensors", b"\x00" * 20, r"net\.safetensors is damaged or of another kind"),
    ("net.pt", b"PK\x03\x04", r"net\.pt is damaged or of another kind"),
    ("net.pt", [1], "holds a list, expected a state dict"),
    ("net.pt", {"epoch": 1}, "holds no tensors but epoch"),
    ("net.pt", {"model": torch.nn.ReLU()}, r"but model \(torch.nn.*ReLU\), .*: save one"),
    (INDEX, b"[" * 100_000, "is damaged .* nested more than 64 deep"),
    (INDEX, index(weight_map=[]), "is no index of .safetensors files, it has no weight_map"),
    (INDEX, index(weight_map={"a": "../a.safetensors"}), r"names \.\./a\.safetensors, expected"),
    (INDEX, index(weight_map={"a": "a.safetensors"}), "which is not beside it: download it again"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN, ids=range(len(BROKEN)))
def test_broken_checkpoints_are_named(name: str, content: object, message: str, tmp_path: Path) -> None:
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        torch.save(content, tmp_path / name)
    with pytest.raises((FileError, FileNotFoundError), match=message):
        read_checkpoint(tmp_path / name)


def test_odd_files_and_indices_are_named(tmp_path: Path) -> None:
    (tmp_path / "zero.pt").symlink_to("/dev/zero")
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_checkpoint(tmp_path / "zero.pt")
    torch.jit.script(torch.nn.ReLU()).save(tmp_path / "net.pt")
    with pytest.raises(FileError, match=r"TorchScript program; .*torch\.jit\.load\(path\)\.state_dict"):
        read_checkpoint(tmp_path / "net.pt")
    path = made("sharded", tmp_path / "p")
    path.write_text(path.read_text(encoding="utf-8").replace('"steps"', '"step"'), encoding="utf-8")
    with pytest.raises(FileError, match="and its files have other keys: step, steps"):
        read_checkpoint(path)
