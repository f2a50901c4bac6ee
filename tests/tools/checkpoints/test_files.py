"""Checkpoints in every form: read tensor by tensor, written back as they were but for the values."""

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from published_writers import Marker

from nfn_monomial.adapters.files import FileError
from nfn_monomial.errors import MissingFileError
from nfn_monomial.tools.checkpoints.files import checkpoints_in, read_checkpoint

STATE = {
    "a.weight": torch.randn(3, 2),
    "a.bias": torch.randn(3, dtype=torch.float16),
    "b.weight": torch.randn(2, 3, dtype=torch.bfloat16),
    "steps": torch.tensor(7),
}


def sharded(folder: Path) -> Path:
    folder.mkdir(parents=True)
    parts = {"one.safetensors": ["a.weight", "steps"], "two.safetensors": ["a.bias", "b.weight"]}
    for name, keys in parts.items():
        safetensors.torch.save_file({key: STATE[key] for key in keys}, folder / name, {"part": name})
    index = {"metadata": {"total_size": 1}, "weight_map": {key: name for name, keys in parts.items() for key in keys}}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index), encoding="utf-8")
    return path


def single(folder: Path) -> Path:
    folder.mkdir(parents=True)
    safetensors.torch.save_file(STATE, folder / "net.safetensors", {"made": "here"})
    return folder / "net.safetensors"


def plain(folder: Path) -> Path:
    folder.mkdir(parents=True)
    torch.save(STATE, folder / "net.pt")
    return folder / "net.pt"


def wrapped(folder: Path) -> Path:
    folder.mkdir(parents=True)
    torch.save({"epoch": 3, "loss": torch.tensor(0.5), "model": STATE, "optimizer": {"state": {}}}, folder / "net.pth")
    return folder / "net.pth"


@pytest.mark.parametrize("make", [single, sharded, plain, wrapped])
def test_what_is_written_is_what_was_read_but_for_the_values(make: Callable[[Path], Path], tmp_path: Path) -> None:
    checkpoint = read_checkpoint(make(tmp_path / "given"))
    assert {key: tuple(t.shape) for key, t in STATE.items()} == checkpoint.shapes
    for key, tensor in STATE.items():
        torch.testing.assert_close(checkpoint[key], tensor, rtol=0, atol=0)
    name = checkpoint.name
    new = {"a.bias": torch.arange(3, dtype=torch.float64), "b.weight": torch.ones(2, 3, dtype=torch.float64)}
    checkpoint.write(tmp_path / "out", name, new)
    assert sorted(p for p in (tmp_path / "out").rglob("*") if p.is_file()) == sorted(
        tmp_path / "out" / path for path in checkpoint.outputs(name)
    )
    again = read_checkpoint(tmp_path / "out" / name)
    for key, tensor in STATE.items():
        torch.testing.assert_close(again[key], new.get(key, tensor).to(tensor.dtype), rtol=0, atol=0)


def test_metadata_and_what_stands_beside_the_state_dict_are_kept(tmp_path: Path) -> None:
    read_checkpoint(single(tmp_path / "s")).write(tmp_path, "out.safetensors", {})
    with safetensors.safe_open(tmp_path / "out.safetensors", "pt") as file:
        assert file.metadata() == {"made": "here"}
    read_checkpoint(wrapped(tmp_path / "w")).write(tmp_path, "out.pth", {})
    found = torch.load(tmp_path / "out.pth", weights_only=True)
    assert (list(found), found["epoch"]) == (["epoch", "loss", "model", "optimizer"], 3)
    given = sharded(tmp_path / "p")
    read_checkpoint(given).write(tmp_path, "out", {})
    assert (tmp_path / "out" / given.name).read_bytes() == given.read_bytes()


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_objects_beside_the_weights_stay_what_they_are(options: dict[str, bool], tmp_path: Path) -> None:
    weight = torch.arange(6.0).view(2, 3)
    model = {"whole": weight, "transposed": weight.T, "row": weight[1], "scale": torch.nn.Parameter(torch.ones(3))}
    torch.save(
        {"model": model, "args": Namespace(rate=0.1), "mark": Marker(tmp_path / "ran")}, tmp_path / "a.pt", **options
    )
    checkpoint = read_checkpoint(tmp_path / "a.pt")
    checkpoint.write(tmp_path / "out", "b.pt", {"row": -torch.ones(3, dtype=torch.float64), "scale": torch.zeros(3)})
    assert not (tmp_path / "ran").exists()
    torch.testing.assert_close(checkpoint["row"], weight[1])
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


def test_a_torch_file_that_changes_before_it_is_written_is_no_network(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(plain(tmp_path / "t"))
    torch.save(STATE | {"steps": torch.tensor(8)}, tmp_path / "b.pt")
    (tmp_path / "b.pt").replace(checkpoint.path)
    with pytest.raises(FileError, match="was changed after it was read"):
        checkpoint.write(tmp_path, "out.pt", {})


def test_values_that_the_dtype_cannot_hold_are_refused(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(single(tmp_path / "s"))
    with pytest.raises(FileError, match=r"a\.bias gets entries of up to 1\.0e\+05, more than torch\.f"):
        checkpoint.write(tmp_path, "out.safetensors", {"a.bias": torch.full((3,), 1e5)})
    assert not list(tmp_path.glob("*.safetensors"))
    assert not list(tmp_path.glob(".*"))


def test_a_folder_stands_for_the_checkpoint_in_it(tmp_path: Path) -> None:
    assert read_checkpoint(sharded(tmp_path / "p").parent).name == "p"
    assert read_checkpoint(single(tmp_path / "s").parent).name == "net.safetensors"
    plain(tmp_path / "t")
    names = [path.relative_to(tmp_path).as_posix() for path in checkpoints_in(tmp_path)]
    assert names == ["p/model.safetensors.index.json", "s/net.safetensors", "t/net.pt"], "files of an index are parts"
    with pytest.raises(FileError, match=r"holds 3 checkpoints, expected one: (?!.*Path).*; name it"):
        read_checkpoint(tmp_path)


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


def write(name: str, content: bytes = b"") -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def index(**found: object) -> Callable[[Path], None]:
    return write("m.safetensors.index.json", json.dumps(found).encode())


BROKEN: list[tuple[Callable[[Path], object], str, str]] = [
    (lambda f: None, "no.pt", r"no\.pt: no such file, expected a \.safetensors file"),
    (lambda f: None, "", r"has no checkpoints, expected a \.safetensors file"),
    (lambda f: (f / "net.pt").symlink_to("/dev/zero"), "net.pt", "no such file"),
    (write("net.h5", b"HDF"), "net.h5", r"is called \.h5, expected"),
    (write("net.safetensors", b"\x00" * 20), "net.safetensors", r"net\.safetensors is damaged or of another kind"),
    (write("net.pt", b"PK\x03\x04"), "net.pt", r"net\.pt is damaged or of another kind"),
    (lambda f: torch.save([1], f / "net.pt"), "net.pt", "holds a list, expected a state dict"),
    (lambda f: torch.save({"epoch": 1}, f / "net.pt"), "net.pt", "holds no tensors but epoch"),
    (
        lambda f: torch.save({"model": torch.nn.ReLU()}, f / "net.pt"),
        "net.pt",
        r"but model \(torch.nn.*ReLU\), .*: save one",
    ),
    (lambda f: torch.jit.script(torch.nn.ReLU()).save(f / "net.pt"), "net.pt", "TorchScript"),
    (
        write("m.safetensors.index.json", b"[" * 100_000),
        "m.safetensors.index.json",
        "is damaged .* nested more than 64 deep",
    ),
    (index(weight_map=[]), "m.safetensors.index.json", "is no index of .safetensors files, it has no weight_map"),
    (index(weight_map={"a": "../a.safetensors"}), "m.safetensors.index.json", r"names \.\./a\.safetensors, expected"),
    (index(weight_map={"a": "a.safetensors"}), "m.safetensors.index.json", "which is not beside it: download it again"),
]


@pytest.mark.parametrize(
    ("make", "name", "message"), BROKEN, ids=[f"{i}-{name}" for i, (_, name, _) in enumerate(BROKEN)]
)
def test_broken_checkpoints_are_named(make: Callable[[Path], object], name: str, message: str, tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises((FileError, MissingFileError, ValueError), match=message):
        read_checkpoint(tmp_path / name)


def test_an_index_and_its_files_agree(tmp_path: Path) -> None:
    path = sharded(tmp_path / "p")
    found = json.loads(path.read_text(encoding="utf-8"))
    del found["weight_map"]["steps"]
    path.write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(FileError, match="and its files have other keys: steps"):
        read_checkpoint(path)


def test_a_file_that_changes_while_it_is_read_is_no_network(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({"x": torch.ones(3)}, path)
    found = read_checkpoint(path)
    torch.testing.assert_close(found["x"], torch.ones(3))
    safetensors.torch.save_file({"x": torch.zeros(4)}, tmp_path / "b.safetensors")
    (tmp_path / "b.safetensors").replace(path)
    with pytest.raises(FileError, match="was changed while it was read"):
        found["x"]
