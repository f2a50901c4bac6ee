"""Checkpoints in every form: read tensor by tensor, written back as they were but for the values."""

import io
import json
import math
import pickle
from argparse import Namespace
from pathlib import Path

import numpy
import pytest
import safetensors
import safetensors.torch
import torch
from published_writers import Marker

from nfn_monomial.tools.files.checkpoints import checkpoints_in, read_checkpoint, real_files
from nfn_monomial.tools.files.networks import load_checkpoint
from nfn_monomial.tools.files.untrusted import FileError

STATE = {
    "a.weight": torch.randn(3, 2),
    "a.bias": torch.randn(3, dtype=torch.float16),
    "b.weight": torch.randn(2, 3, dtype=torch.bfloat16),
    "steps": torch.tensor(7),
}
INDEX = "model.safetensors.index.json"
INDEX_OF_TORCH = "pytorch_model.bin.index.json"


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
    if form == "sharded torch":
        parts = {f"pytorch_model-0000{i}-of-00002.bin": [*STATE][3 * i - 3 : 3 * i] for i in (1, 2)}
        for name, keys in parts.items():
            torch.save({key: STATE[key] for key in keys}, folder / name)
        places = {key: name for name, keys in parts.items() for key in keys}
        (folder / INDEX_OF_TORCH).write_text(json.dumps({"metadata": {}, "weight_map": places}), encoding="utf-8")
        return folder / INDEX_OF_TORCH
    if form == "single":
        safetensors.torch.save_file(STATE, folder / "net.safetensors", {"made": "here"})
        return folder / "net.safetensors"
    beside = {"epoch": 3, "loss": torch.tensor(0.5), "model": STATE, "optimizer": {"state": {}}}
    path = folder / {"plain": "net.pt", "wrapped": "net.pth.tar"}[form]
    torch.save(STATE if form == "plain" else beside, path)
    return path


@pytest.mark.parametrize("form", ["single", "sharded", "sharded torch", "plain", "wrapped"])
def test_what_is_written_is_what_was_read_but_for_the_values(form: str, tmp_path: Path) -> None:
    path = made(form, tmp_path / "given")
    checkpoint = read_checkpoint(path)
    assert {key: tuple(t.shape) for key, t in STATE.items()} == checkpoint.shapes
    assert all(torch.equal(checkpoint[key], tensor) for key, tensor in STATE.items())
    name, out = checkpoint.name, tmp_path / "out"
    assert checkpoint.renamed("net") == name or "sharded" in form
    new = {"a.bias": torch.arange(3, dtype=torch.float64), "b.weight": torch.ones(2, 3, dtype=torch.float64)}
    checkpoint.write(out, name, new)
    assert {p for p in out.rglob("*") if p.is_file()} == {out / place for place in checkpoint.outputs(name)}
    again = read_checkpoint(out / name)
    for key, tensor in STATE.items():
        torch.testing.assert_close(again[key], new.get(key, tensor).to(tensor.dtype), rtol=0, atol=0)
    if form == "single":
        with safetensors.safe_open(out / name, "pt") as file:
            assert file.metadata() == {"made": "here"}
    elif "sharded" in form:
        assert (out / name / path.name).read_bytes() == path.read_bytes()
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
    assert read_checkpoint(made("sharded torch", tmp_path / "q").parent).name == "q"
    made("plain", tmp_path / "t")
    names = [path.relative_to(tmp_path).as_posix() for path in checkpoints_in(tmp_path)]
    assert names == [f"p/{INDEX}", f"q/{INDEX_OF_TORCH}", "s/net.safetensors", "t/net.pt"], (
        "files of an index are parts"
    )
    with pytest.raises(FileError, match=r"holds 4 checkpoints, expected one: (?!.*Path).*; name it"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(("form", "index"), [("sharded", INDEX), ("sharded torch", INDEX_OF_TORCH)])
def test_shards_that_are_missing_or_of_two_checkpoints_are_named(form: str, index: str, tmp_path: Path) -> None:
    path = made(form, tmp_path / "p")
    shard = min(p for p in path.parent.iterdir() if p != path)
    data = shard.read_bytes()
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{index} names {shard.name}, which is not beside it: download"):
        read_checkpoint(path.parent)
    shard.write_bytes(data[:-20])
    with pytest.raises(FileError, match=rf"p/{shard.name} is damaged"):
        read_checkpoint(path.parent)
    shard.write_bytes(max(p for p in path.parent.iterdir() if p != path).read_bytes())
    with pytest.raises(FileError, match=rf"{index}: a key occurs in several files"):
        read_checkpoint(path.parent)


def test_a_variant_of_an_index_and_one_with_damage_keep_their_shards(tmp_path: Path) -> None:
    path = made("sharded torch", tmp_path / "p")
    variant = path.rename(path.with_name("pytorch_model.bin.index.fp16.json"))
    assert list(read_checkpoint(tmp_path)) == list(STATE), "in the order of the files"
    variant.write_text("{", encoding="utf-8")
    assert checkpoints_in(tmp_path) == [variant]
    with pytest.raises(FileError, match=r"index\.fp16\.json is damaged"):
        read_checkpoint(variant)


@pytest.mark.parametrize("form", ["sharded", "sharded torch"])
def test_two_checkpoints_may_share_their_index(form: str, tmp_path: Path) -> None:
    """As in the cache of Hugging Face, where files of one content are one file with links to it."""
    path = made(form, tmp_path / "blobs")
    shards = [p for p in path.parent.iterdir() if p != path]
    for revision in ("first", "second", "again"):
        place = tmp_path / "snapshots" / revision
        place.mkdir(parents=True)
        for p in (path, *shards):
            target = p
            if p == shards[0] and revision != "first":
                target = p.with_name("other")
                target.write_bytes(p.read_bytes())
            (place / p.name).symlink_to(target)
    found = checkpoints_in(tmp_path / "snapshots")
    assert len(found) == 2
    assert [read_checkpoint(p).name for p in found] == [p.parent.name for p in found]
    first, second, again = (
        real_files(tmp_path / "snapshots" / name / path.name) for name in ("first", "second", "again")
    )
    assert first != second == again


def test_the_names_of_torchs_own_examples(tmp_path: Path) -> None:
    for run in ("a", "b"):
        for name in ("checkpoint", "model_best"):
            torch.save(
                {"epoch": 3, "state_dict": STATE, "best_acc1": torch.tensor(71.5)},
                made_folder(tmp_path, run) / f"{name}.pth.tar",
            )
    names = [path.relative_to(tmp_path).as_posix() for path in checkpoints_in(tmp_path)]
    assert names == [f"{run}/{name}.pth.tar" for run in "ab" for name in ("checkpoint", "model_best")]
    with pytest.raises(
        FileError, match=r"a holds 2 checkpoints, .*: checkpoint\.pth\.tar, model_best\.pth\.tar; name it"
    ):
        read_checkpoint(tmp_path / "a")
    best = read_checkpoint(tmp_path / "a" / "model_best.pth.tar")
    assert (list(best), best.renamed("merged")) == (list(STATE), "merged.pth.tar")


def made_folder(*parts: object) -> Path:
    """A folder that may be there."""
    folder = Path(*map(str, parts))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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
    monkeypatch.setattr("nfn_monomial.tools.files.checkpoints.MOST", 3)
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


LONG = "a" * 100
KEYS: dict[str, tuple[tuple[object, ...], list[str]]] = {
    "whole numbers": ((0, 1), ["0", "1"]),
    "a large number": ((2**80, -1), [str(2**80), "-1"]),
    "floats": ((0.5, math.inf), ["0.5", "inf"]),
    "tuples": ((("a", 1), ("a", 2)), ["a,1", "a,2"]),
    "sets": ((frozenset({"b", "a"}), frozenset({1})), ["a,b", "1"]),
    "nothing": ((None, "x"), ["None", "x"]),
    "text and number": (("0", 0), ["str:0", "int:0"]),
    "three of one name": (("0", 0, "int:0"), ["str:0", "int:0", "int:0#2"]),
    "tuples within each other": (((("a", 1), 2), (("a", 1), 3)), ["('a', 1),2", "('a', 1),3"]),
    "one name for two tuples": ((("a", "1"), ("a", 1)), ["tuple:a,1", "Inert"]),
    "two lines": (("a\nb", "c\nd"), ["a\\nb", "c\\nd"]),
    "long texts": ((f"{LONG}1{LONG}", f"{LONG}2{LONG}"), [f"{LONG}1{LONG}", f"{LONG}2{LONG}"]),
    "nan": ((math.nan, float("nan")), ["float:nan", "float:nan#2"]),
    "bytes": ((b"a", b"b"), ["b'a'", "b'b'"]),
    "dtypes": ((torch.float16, torch.float32), ["torch.float16", "torch.float32"]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_any_kind_are_called_as_messages_call_them(kind: str, tmp_path: Path) -> None:
    keys, names = KEYS[kind]
    path = tmp_path / "net.pt"
    torch.save({key: {"a": torch.full((1,), float(i))} for i, key in enumerate(keys)}, path)
    with pytest.raises(FileError, match=r"^[^\n]*holds several state dicts, [^\n]*$") as caught:
        read_checkpoint(path)
    told = str(caught.value).rpartition("--key ")[2]
    assert read_checkpoint(path, told)["a"].item() == 0
    if kind != "one name for two tuples":
        assert [read_checkpoint(path, name)["a"].item() for name in names] == list(range(len(keys)))
    with pytest.raises(FileError, match=r"^[^\n]*has no state dict 'none of\\nthem'; it holds [^\n]*$"):
        read_checkpoint(path, "none of\nthem")
    listing = str(caught.value).partition("dicts, ")[2].partition(": say which")[0]
    assert listing.startswith(told)


def test_two_tensors_of_one_name_are_both_there(tmp_path: Path) -> None:
    torch.save({0: torch.ones(1, 2), "0": torch.zeros(3, 1), ("a", 0): torch.ones(2)}, tmp_path / "net.pt")
    found = read_checkpoint(tmp_path / "net.pt")
    assert found.shapes == {"int:0": (1, 2), "str:0": (3, 1), "a,0": (2,)}


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


def archive_of_arrays() -> bytes:
    file = io.BytesIO()
    numpy.savez(file, weight=numpy.ones(2))
    return file.getvalue()


BROKEN: list[tuple[str, object, str]] = [
    ("no.pt", None, r"no\.pt: no such file, expected a \.safetensors file"),
    ("", None, r"has no checkpoints, expected a \.safetensors file"),
    ("net.h5", b"HDF", r"is called \.h5, expected .*; it is of TensorFlow: read it there"),
    ("net.pt", archive_of_arrays(), r"net\.pt is damaged .*torch\.from_numpy"),
    ("net.npz", b"PK", r"it holds arrays of numpy: .*torch\.from_numpy"),
    ("net.gguf", b"GGUF", r"it is of llama\.cpp: from_pretrained\(folder, gguf_file=name\)"),
    ("net", b"GGUF", r"is called without a suffix, .*it is of llama\.cpp"),
    ("net.bin", b"GGUF" + bytes(60), r"it is of llama\.cpp"),
    ("net.onnx", b"", r"it is a program of ONNX: save the state dict of the module"),
    ("flax_model.msgpack.index.json", b"{}", r"it is of Flax"),
    ("net.pt2", b"PK", r"it says what network it is, --net PATH\.pt2"),
    ("net.safetensors", b"version https://git-lfs.github.com/spec/v1\noid", r"pointer of Git LFS: git lfs pull"),
    ("net.pt", b"<!DOCTYPE html><html>", r"it is a web page: download the file itself"),
    ("net.pt", b"", r"net\.pt is damaged or of another kind \(it is empty\)"),
    ("net.pt", safetensors.torch.save({"a": torch.ones(2)}), r"it is a safetensors file: call it \*\.safetensors"),
    ("net.safetensors", safetensors.torch.save({"a": torch.ones(2)})[:-1], r"is damaged .*: download it again"),
    ("net.pt", torch.ones(2), r"holds a Tensor, .*save it under the name that it has in the network"),
    ("net.pt", numpy.ones(2), r"holds a numpy\S*, .*torch\.from_numpy"),
    ("net.pt", {"a": numpy.ones(2)}, r"holds no tensors but a .*torch\.from_numpy"),
    ("net.pt", {"a": torch.ones(2, 2), "b": numpy.ones(2)}, r"net\.pt: b is an array of numpy, expected a tensor"),
    ("net.pt", {"module": {"a.weight": torch.ones(0)}}, r"of shape \(0,\) are a\.weight: .*python zero_to_fp32\.py"),
    ("net.pt", {"module": {"a.weight": torch.ones(2, 2)}, "mp_world_size": 2}, "holds one of 2 slices of each tensor"),
    ("zero_pp_rank_1_mp_rank_00_model_states.pt", {"module": {"a": torch.ones(2)}}, r"python zero_to_fp32\.py"),
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


def test_folders_of_pieces_say_how_they_are_joined(tmp_path: Path) -> None:
    """Those of torch.distributed.checkpoint, and of DeepSpeed where each process has a piece of every tensor."""
    place = made_folder(tmp_path, "dcp", "step-10")
    for name in (".metadata", "__0_0.distcp", "__1_0.distcp"):
        (place / name).write_bytes(b"PK")
    with pytest.raises(FileError, match=r"dcp has no checkpoints.*__0_0\.distcp: .*format_utils dcp_to_torch"):
        read_checkpoint(tmp_path / "dcp")
    for stage, names in {
        "three": ("zero_pp_rank_0_mp_rank_00", "zero_pp_rank_1_mp_rank_00"),
        "two": ("mp_rank_00",),
    }.items():
        place = made_folder(tmp_path, stage, "global_step5")
        for name in names:
            torch.save({"module": STATE, "mp_world_size": 1}, place / f"{name}_model_states.pt")
        torch.save(
            {"optimizer_state_dict": {"flat": [torch.zeros(9)]}}, place / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
        )
        (place.parent / "latest").write_text("global_step5", encoding="utf-8")
    assert list(read_checkpoint(tmp_path / "two")) == list(STATE)
    with pytest.raises(FileError, match=r"three holds 2 checkpoints.*python zero_to_fp32\.py"):
        read_checkpoint(tmp_path / "three")


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
