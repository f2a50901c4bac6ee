"""Folders of networks in the style of the Hugging Face hub: a snapshot a network, each with ``model.safetensors``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from nfn_monomial import symmetry_of
from nfn_monomial.adapters.chains import shape_of
from nfn_monomial.adapters.definitions import Definition, DefinitionError, read_definition
from nfn_monomial.adapters.files import damaged, listed, shown
from nfn_monomial.adapters.matching import match_names
from nfn_monomial.benchmarks.data.networks import Corpus, Part
from nfn_monomial.benchmarks.data.rows import IN_MEMORY_BYTES
from nfn_monomial.benchmarks.reading import read_json, read_rows
from nfn_monomial.tools.predictors.models import NetworkInfo

from .base import CorpusError, Format, OnProgress, register_format
from .checkpoints import read_layers, read_safetensors, require_folder, silent, some_folders
from .model_zoos import share, split, stack_parts

__all__ = ["HubFolder"]

FILE = "model.safetensors"
RESULTS = ("results.json", "metrics.json")
ACCURACY = ("accuracy", "test_accuracy", "eval_accuracy", "test_acc")
ACTIVATION = ("activation", "hidden_act", "activation_function")
NET = "net (--data-option net=module.py:Class, net=package.module:Class, or net=PATH.pt2)"
_PLACES = (f"*/{FILE}", f"models--*/snapshots/*/{FILE}")  # plain folders, and the layout of the hub's own cache


class _Snapshot(NamedTuple):
    repo: str
    file: Path
    activation: str
    accuracy: float


@register_format("hub")
class HubFolder(Format):
    """``{repo}/model.safetensors``, or the hub's cache ``models--{owner}--{name}/snapshots/{revision}/...``.

    All networks have one architecture: that of ``net``, which may be any, a class or an exported program. Both are code
    that runs when they are read, so they are never looked for: not beside the weights either.

    Without ``net`` it is a chain of convolutions and linear layers with keys ``{layer}.weight`` and ``{layer}.bias``.
    Layers run in this order: convolutions, then linear layers, each by the numbers in their names; where sizes and
    numbers leave the order open, that is an error.
    """

    kind = "generalization"
    looks_for = f"{FILE} in folders of its own, or the hub's cache models--*/snapshots/*/{FILE}"

    @staticmethod
    def detects(path: Path) -> bool:
        return any((f / FILE).is_file() or (f.name.startswith("models--") and f.is_dir()) for f in some_folders(path))

    @staticmethod
    def load(
        path: str | Path,
        *,
        net: str | None = None,
        input_shape: tuple[int, ...] | None = None,
        activation: str | None = None,
        targets: str | Path | None = None,
        seed: int = 0,
        limit: int | None = None,
        in_memory_bytes: int = IN_MEMORY_BYTES,
        on_progress: OnProgress = silent,
    ) -> dict[str, Corpus]:
        """Load all snapshots, by activation or under the name of ``net``; 70, 15 and 15 percent for the three parts.

        Args:
            path: the folder of the snapshots.
            net: the networks' architecture, ``module.py:Class``, ``package.module:Class`` or the path of a program that
                ``torch.export.save`` wrote; a class or function is called without arguments and makes the module, or
                a pair of it and its example inputs. **Its code runs, that in a program too.**
            input_shape: of one input of such a module, as ``3,32,32``, if it states no example inputs.
            activation: of all networks without ``net``; by default ``activation``, ``hidden_act`` or
                ``activation_function`` of each snapshot's ``config.json``.
            targets: CSV file with columns ``repo`` (the folder's name, or ``owner/name`` in the hub's cache) and
                ``accuracy``. By default ``accuracy``, ``test_accuracy``, ``eval_accuracy`` or ``test_acc`` of each
                snapshot's ``results.json``, ``metrics.json`` or the file's metadata.
            seed: of the split.
            limit: take that many training networks of each activation.
            in_memory_bytes: larger sets stay in their files, which are read again for each batch.
            on_progress: called while files are read.

        Raises:
            CorpusError: naming the file, if one is damaged, is of another architecture than ``net`` or has another
                shape than the first, or if an accuracy or activation is not stated anywhere; naming ``net``, if it
                cannot be used.
        """
        folder = require_folder(path)
        stated = None if targets is None else _targets(Path(targets))
        try:
            defined = None if net is None else read_definition(net, input_shape)
        except DefinitionError as error:
            raise CorpusError(str(error)) from error
        by_activation: dict[str, list[_Snapshot]] = defaultdict(list)
        for repo, file in _files(folder).items():
            name = defined.name if defined else _activation(file, activation)
            by_activation[name].append(_Snapshot(repo, file, name, _accuracy(repo, file, stated)))
        files = {
            name: {
                part: [(found[i].file, found[i].accuracy) for i in numbers]
                for part, numbers in split(len(found), seed, f"{folder}, activation {name}", limit).items()
            }
            for name, found in sorted(by_activation.items())
        }
        corpora = {}
        read = partial(_read_defined, defined) if defined else _read
        for name, networks in stack_parts(files, read, in_memory_bytes, on_progress).items():
            if defined:
                info = NetworkInfo(defined.space, name, defined.template, defined.input_shape)
            else:
                info = NetworkInfo(shape_of(networks["train"].rows.shapes).space(name), name)
            source = {
                "format": "hub", "path": str(folder), "split": f"70/15/15 percent of snapshots, seed {seed}",
                "targets": str(targets or "as stated with each snapshot"), "net": net or "a chain of layers",
                **{part: len(found) for part, found in networks.items()},
            }  # fmt: skip
            parts = {part: (Part(found, info),) for part, found in networks.items()}
            corpora[name] = Corpus(name, **parts, info=info, source=source)
        return corpora


def _files(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in sorted(file for pattern in _PLACES for file in folder.glob(pattern)):
        inner = file.relative_to(folder).parts
        repo = inner[0].removeprefix("models--").replace("--", "/") if len(inner) > 2 else inner[0]
        if repo in found:
            raise CorpusError(f"{file} and {found[repo]} are snapshots of the same {repo}: delete all but one")
        found[repo] = file
    if not found:
        raise CorpusError(f"{folder}: no {' and no '.join(_PLACES)}")
    return found


def _activation(file: Path, given: str | None) -> str:
    name = given or _first(_json(file.with_name("config.json")), ACTIVATION)
    if name is None:
        raise CorpusError(
            f"{file.with_name('config.json')} does not state {', '.join(ACTIVATION)}: give activation, as relu "
            f"(--data-option activation=relu), or {NET}"
        )
    if not isinstance(name, str) or len(name) > 80:
        raise CorpusError(f"{file.with_name('config.json')}: the activation is {shown(name)}, expected its name")
    try:
        symmetry_of(name)
    except ValueError as error:
        raise CorpusError(f"{file.parent}: {error}") from error
    return name.lower()


def _accuracy(repo: str, file: Path, targets: Mapping[str, float] | None) -> float:
    if targets is not None:
        if repo not in targets:
            raise CorpusError(f"{file.parent}: targets has no line for repo {repo}")
        return targets[repo]
    metadata = read_safetensors(file)[1]
    places = [(place, _json(place)) for place in map(file.with_name, RESULTS)] + [(file, metadata)]
    accuracy, where = next(
        ((value, place) for place, found in places if (value := _first(found, ACCURACY)) is not None), (None, file)
    )
    if accuracy is None:
        raise CorpusError(
            f"{file.parent}: no {', '.join(ACCURACY)} in {', '.join(RESULTS)} or the metadata of {FILE}: give "
            "targets, a CSV file with columns repo and accuracy (--data-option targets=FILE)"
        )
    return share(accuracy, where, "accuracy")


def _first(found: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((found[key] for key in keys if found.get(key) is not None), None)


def _json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    with damaged(path, "download it again", CorpusError):
        found = read_json(path)
    return found if isinstance(found, Mapping) else {}


def _targets(path: Path) -> dict[str, float]:
    if not path.is_file():
        raise CorpusError(f"targets {path} does not exist, expected a CSV file with columns repo and accuracy")
    found: dict[str, float] = {}
    with damaged(path, "expected a CSV file with columns repo and accuracy", CorpusError):
        lines = read_rows(path)
        _, header = next(lines, (0, []))
        if not {"repo", "accuracy"} <= set(header):
            raise CorpusError(f"{path} has columns {listed(header)}, expected repo and accuracy")
        for place, line in lines:
            values = dict(zip(header, line))  # noqa: B905
            repo = values.get("repo", "")
            if repo in found:
                raise CorpusError(f"{path}, line {place}: repo {listed([repo])} occurs twice")
            found[repo] = share(values.get("accuracy"), f"{path}, line {place}", "accuracy")
    return found


def _read_defined(defined: Definition, path: Path) -> dict[str, Tensor]:
    try:
        return defined.parameters(read_safetensors(path)[0])
    except DefinitionError as error:
        raise CorpusError(f"{path}: {error}") from error


def _read(path: Path) -> dict[str, Tensor]:
    state = read_safetensors(path)[0]
    layer = {".weight": (2, 3, 4, 5), ".bias": (1,)}
    if odd := [key for key, t in state.items() if t.ndim not in layer.get(f".{key.rpartition('.')[2]}", ())]:
        found = listed((f"{key} {tuple(state[key].shape)}" for key in odd), 5)
        raise CorpusError(
            f"{path} has {found}: no chain of layers with {{layer}}.weight and {{layer}}.bias; say what it is by {NET}"
        )
    _, tensors = read_layers(state, path, r".+", "{layer}.weight and {layer}.bias", biases=False)
    space = shape_of({name: t.shape for name, t in tensors.items()}).space("permutation")
    try:
        match_names(state, space)  # which finds out whether another order would fit as well
    except ValueError as error:
        raise CorpusError(
            f"{path}: the order of the layers is not clear ({error}): number them in their names"
        ) from error
    return tensors
