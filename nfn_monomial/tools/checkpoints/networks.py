"""Checkpoints matched with their architecture: points of its weight space.

An architecture is named by a user, or read off the checkpoint, see `read_architecture`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, Unpack

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial import fingerprint
from nfn_monomial.adapters.matching import match_in_order
from nfn_monomial.canonical.fingerprint import STEPS
from nfn_monomial.checks import listed
from nfn_monomial.errors import InvalidValueError, MonomialError
from nfn_monomial.fibre import NormalForm, fingerprint_fibre
from nfn_monomial.running import answers, doubled, largest_change, running, steady_answers
from nfn_monomial.space.packing import check_tensors, is_counter
from nfn_monomial.tools.definitions.architectures import Architectures, Naming, configuration_beside
from nfn_monomial.tools.definitions.chains import NET
from nfn_monomial.tools.definitions.define import Definition, DefinitionError, one_value
from nfn_monomial.tools.definitions.folding import folded, unfused
from nfn_monomial.tools.definitions.loading import Loaded, described, load_state, tensors_of
from nfn_monomial.tools.definitions.lora import PAIRS, Adapter
from nfn_monomial.tools.definitions.packages import significant
from nfn_monomial.tools.files.checkpoints import (
    Checkpoint,
    checkpoints_at,
    read_checkpoint,
    real_files,
    skipping,
    suffix_of,
)
from nfn_monomial.tools.files.untrusted import FileError

__all__ = ["Naming", "Network", "naming_files", "read_networks", "read_several"]

PathLike: TypeAlias = "str | Path"
REASONS = 3  # in a message
ROUNDING = 1e-8  # largest change of outputs in float64 that may be due to rounding
SHOWN = 40  # characters of a setting in a message


class Network(Mapping[str, Tensor]):
    """A checkpoint as a point of a weight space: parameter of the space -> tensor ``(*shape)``, read when asked for.

    Args:
        definition: the architecture; keys and shapes are checked, values when they are read.
        checkpoint: where the tensors are; its keys may have a prefix more, see `prefix_of`.
        label: its name in messages, by default the path.
        order: of the layers of a chain, by name, in which they run, if that is known.
        fused: whether batch norms of the architecture may be missing because they are folded into the layers before
            them.

    Attributes:
        fused: whether they are.
        settings: all else that determines its function, name -> in words: the arguments of its class, and what the
            class takes from the file beside tensors.
        configuration: the same by the ``config.json`` beside the file; None if there is none, or the class was built
            from it.
        taken: names of arguments that the class has taken from its file, or from files that it is compared with.
        doubt: a note on the order in which the layers of a chain were taken, if none was stated.
        space: its weight space.
        sizes: node -> number of neurons.
        stored: the parameters as the file has them, before batch norms were folded.
        others: key in the module, or else in the checkpoint, of tensors that are not in the space -> shape.

    Raises:
        FileError: naming the file and the keys, if it is of another architecture.
    """

    def __init__(
        self,
        definition: Definition,
        checkpoint: Checkpoint,
        label: str = "",
        order: Sequence[str] | None = None,
        fused: bool = False,
    ) -> None:
        self.checkpoint, self.label, self.doubt = checkpoint, label or str(checkpoint.path), ""
        try:
            file_keys = definition.places([*checkpoint, *checkpoint.objects])
            self._file_key = {key: full for key, full in file_keys.items() if full in checkpoint.shapes}
            self._objects = {k: checkpoint.objects[full] for k, full in file_keys.items() if k not in self._file_key}
            self._loaded: Loaded | None = None
            self._tensors: Mapping[str, Tensor] = Renamed(checkpoint, self._file_key)
            shapes = {key: checkpoint.shapes[full] for key, full in self._file_key.items()}
            if definition.saved is not None:
                definition, self._loaded = definition.loaded(*self._state)
                self._tensors = self._loaded.tensors
            missing = not definition.required <= shapes.keys()
            with_norms = unfused(self._tensors, definition.folds) if fused and missing else None
            self.fused = with_norms is not None
            if with_norms is not None:
                self._tensors = with_norms
            if with_norms is not None or self._loaded is not None:
                shapes = {key: tuple(t.shape) for key, t in self._tensors.items()}
            self.definition, self.space = definition, definition.space
            if definition.chain:
                meta = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
                matched, self.doubt = match_in_order(meta, self.space, order)
                self._keys = {name: [key] for name, key in matched.items()}
            else:
                self._keys = definition.keys(shapes, widths=self._loaded is None, state=self._tensors)
        except ValueError as error:
            raise FileError(f"{checkpoint.path}: {error}") from error
        self.settings = {**definition.settings, **(self._loaded.settings if self._loaded else {})}
        self.configuration = configuration_beside(checkpoint.path)
        self.taken: Collection[str] = ()
        self._shapes = {name: shapes[same[0]] for name, same in self._keys.items()}
        in_space = {key for same in self._keys.values() for key in same}
        unseen = () if self._loaded is None else self._loaded.unexpected
        used = {full for key, full in self._file_key.items() if key not in unseen}
        # a key outside the prefix that is called as one of the network's is not the network's
        left = [full for full in checkpoint if full not in used and full not in definition.shapes]
        self.others = {key: shape for key, shape in shapes.items() if key not in in_space}
        self.others |= {full: checkpoint.shapes[full] for full in left}
        self._checked: set[str] = set()  # names whose values were looked at
        self.stored: Mapping[str, Tensor] = self
        self.sizes = self._sizes()

    def _sizes(self) -> dict[str, int]:
        meta = {name: torch.empty((1, 1, *shape), device="meta") for name, shape in self._shapes.items()}
        return check_tensors(self.space, meta)

    @property
    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
        """Tensors, other objects, and versions, by the keys that the module's own methods take."""
        file_path: dict[str, str] = {}  # path of a part of the module -> its path in the file
        for key, full in self._file_key.items():
            a, b = key.split(".")[:-1], full.split(".")[:-1]
            file_path.setdefault(".".join(a), ".".join(b))
            while a and b and a.pop() == b.pop():
                file_path.setdefault(".".join(a), ".".join(b))
        versions = self.checkpoint.versions
        versions = {path: versions[full] for path, full in file_path.items() if full in versions}
        return {key: self.checkpoint[full] for key, full in self._file_key.items()}, self._objects, versions

    def __getitem__(self, name: str) -> Tensor:
        keys = self._keys[name]
        if name in self._checked:
            return self._tensors[keys[0]].detach()
        try:
            value = one_value(keys, self._tensors)
        except DefinitionError as error:
            raise FileError(f"{self.checkpoint.path}: {error}") from error
        self._checked.add(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.space.parameters)

    def __len__(self) -> int:
        return len(self.space.parameters)

    def _other(self, key: str) -> Tensor:
        return self._tensors[key] if key in self._tensors else self.checkpoint[key]

    def _reads(self, key: str) -> bool:
        """Checks whether the function reads a tensor of the file: one that its class loads."""
        return key in self.definition.read and key in self.definition.shapes

    @property
    def unmoved(self) -> dict[str, Tensor]:
        """Key in the module -> tensor that the function reads and no symmetry moves, such as a mask or a scale."""
        return {key: self._other(key) for key in self.others if self._reads(key)}

    @property
    def unread(self) -> dict[str, Tensor]:
        """Key in the module -> tensor that the function does not read, such as an auxiliary head; without counters."""
        shapes = self.definition.shapes
        return {k: self._other(k) for k in sorted(self.others) if not self._reads(k) and not is_counter(k, shapes)}

    @property
    def state(self) -> Mapping[str, Tensor]:
        """All tensors that the function reads: the parameters, each read when asked for, and those that are unmoved."""
        parameters: Any = self
        return ChainMap(self.unmoved, parameters)

    def put_beside(self, first: Network) -> None:
        """Takes the space of another network with the same parameters, if their classes were built separately.

        Raises:
            FileError: naming both, if they differ in parameters or widths.
        """
        path, other = self.checkpoint.path, first.checkpoint.path
        if self.space is not first.space and self._shapes == first._shapes:
            self.space = first.space
            self.sizes = self._sizes()
        if differ := sorted(set(self).symmetric_difference(first)):
            beside = f", as {'; '.join(first.differences(self)[:REASONS])}" if first.differences(self) else ""
            raise FileError(f"{path} and {other} have other parameters{beside}: {listed(differ, REASONS)}")
        for node, size in self.sizes.items():
            if size != first.sizes.get(node, size):
                raise FileError(
                    f"{path} has {size} neurons of node {node}, but {other} has {first.sizes[node]}: only networks of "
                    "the same widths can be compared"
                )

    def fold(self) -> None:
        """Folds all batch norms into the layers before them, see `folded`; only for comparing.

        Raises:
            FileError: if that changes the function.
        """
        tensors, folds = {key: self._tensors[key] for key in self._tensors}, self.definition.folds
        if self.runs:
            module, inputs = self.module(), pytree.tree_map_only(Tensor, doubled, self.definition.inputs)
            wide = doubled_state(module)
            wide |= {key: doubled(t) for key, t in tensors.items() if key in wide}
            before, after = (answers(module, wide | state, inputs) for state in ({}, folded(wide, folds)))
            if not largest_change(after, before) <= ROUNDING:
                raise FileError(
                    f"{self.checkpoint.path}: to fold batch norms into the layers before them changes its outputs: "
                    "fuse the network by its own code, and name that by --net"
                )
        self.stored = {name: self[name] for name in self}
        self._tensors = folded(tensors, folds)

    def differences(self, other: Network) -> list[str]:
        """Describes the settings, and entries of configurations, in which two networks differ."""
        pairs = [(self.settings, other.settings)]
        if self.configuration is not None and other.configuration is not None:
            pairs.append((self.configuration, other.configuration))
        return [
            f"{key} {' and '.join(settings.get(key, 'not given')[:SHOWN] for settings in pair)}"
            for pair in pairs
            for key in sorted({*pair[0], *pair[1]})
            if pair[0].get(key) != pair[1].get(key)
        ]

    def other_arguments(self, other: Network) -> list[str]:
        """Names the trainers' arguments that differ between two files, may matter, and were taken by no class."""
        if not (self.checkpoint.arguments and other.checkpoint.arguments):
            return []
        a, b = (significant({k: described(v) for k, v in n.checkpoint.arguments.items()}) for n in (self, other))
        return [name for name in sorted({*a, *b} - {*self.taken}) if a.get(name) != b.get(name)]

    @functools.cached_property
    def _form(self) -> NormalForm | str:
        return self.definition.normal_form_with(self.state) if self.runs else self.why_not

    @property
    def form(self) -> NormalForm | None:
        """Its normal form, if more than permutations, scales and signs is known to keep its function."""
        form = self._form
        wider = isinstance(form, NormalForm) and form.fibre_dimension > form.whole.group_dimension
        return form if wider and isinstance(form, NormalForm) else None

    def why_no_form(self, *, asked: bool = False) -> list[str]:
        """Says why there is no normal form, if that is not known of a network that runs, or if a user asked for it."""
        form = self._form
        reason = form if isinstance(form, str) else "nothing else is known to leave its function as it is"
        matters = asked or (self.runs and isinstance(form, str))
        return [f"Only permutations, scales and signs were considered: {reason}."] * (matters and self.form is None)

    def fingerprint(self) -> str | None:
        """Returns the fingerprint of its normal form, if there is one, else `nfn_monomial.fingerprint`.

        It is hashed with the tensors that no symmetry moves. None if a tensor's dtype has no fingerprint.
        """
        if any(t.dtype not in STEPS for t in self.values()):
            return None
        form = None if self.definition.chain else self.form
        text = fingerprint(self.space, self) if form is None else fingerprint_fibre(form, self)
        still = {name: t for name, t in self.items() if form is not None and name not in form.whole.parameters}
        settings = dict(self.definition.settings)
        if self._loaded is not None:
            settings |= {key: self._loaded.settings.get(key, "") for key in self._loaded.changed}
        if not (still := self.unmoved | still) and not settings:
            return text
        values = safetensors.torch.save({key: t.detach().clone().contiguous() for key, t in still.items()})
        values += json.dumps(settings, sort_keys=True).encode() if settings else b""
        return hashlib.sha256(text.encode() + values).hexdigest()[: len(text)]

    @property
    def runs(self) -> bool:
        """True if a module computes the same: not if the widths differ from those of the module."""
        shapes = self.definition.shapes
        return bool(self.definition.inputs) and all(
            shapes.get(key, shape) == shape for key, shape in (self._shapes | self.others).items()
        )

    @property
    def why_not(self) -> str:
        """Why `runs` is False, and what to do about it."""
        if self.definition.inputs:
            return f"its widths are not those of {self.definition.name}; give a class with its widths"
        if self.definition.chain:
            return f"strides and pools are not known of a chain of layers; say what it is by {NET}"
        return "the exported program has no positional example inputs; export it with some"

    def module(self) -> nn.Module:
        """Returns a copy of the module with these weights; the caller sets eval mode.

        Raises:
            FileError: if there is none, see `runs`.
        """
        if not self.runs:
            raise FileError(f"{self.label}: no module runs it: {self.why_not}")
        module = self.definition.module()
        if self._loaded is not None:
            load_state(module, *self._state)
            return module
        state = {key: self._other(key) for key in self.others} | {name: self[name] for name in self}
        module.load_state_dict({k: t for k, t in state.items() if k in self.definition.shapes}, strict=False)
        return module

    def outputs(self, inputs: Any) -> list[Tensor]:
        """Runs its class with all that it takes from the file, in float64.

        Raises:
            ValueError: if it does not run on these inputs, or not to outputs that can be compared.
        """
        module = self.module()
        state = doubled_state(module) | {key: doubled(t) for key, t in self.items()}
        with running(module, "these inputs"):
            return steady_answers(module, state, pytree.tree_map_only(Tensor, doubled, inputs))

    def check(self) -> None:
        """Reads all values, and runs the module, if there is one, with them on its example inputs.

        Raises:
            FileError: naming the file, if values are no numbers, or the module does not run, or not to finite outputs.
        """
        for name in self:
            self[name]
        if self.runs:
            module = self.module()
            try:
                with running(module, "its example inputs"):
                    steady_answers(module, {}, self.definition.inputs)
            except ValueError as error:
                raise FileError(f"{self.checkpoint.path}: {error}") from error

    def _dtype_in_file(self, key: str, otherwise: torch.dtype) -> torch.dtype:
        """The dtype in which the file has a tensor of the module, or most of it."""
        sources = [key] if self._loaded is None else self._loaded.sources.get(key, ((), None))[0]
        files = [self._file_key[source] for source in sources if source in self._file_key]
        return self.checkpoint.stored(files[0]).dtype if files else otherwise

    def difference_as_written(self, tensors: Mapping[str, Tensor]) -> float | None:
        """Computes by how much outputs change with other values in the dtypes of the file, relative to the largest.

        ``tensors``, in float64, are an equal network by the group. None if no module runs the network.

        Raises:
            FileError: if the function changes: the group does not keep it, or rounding is too coarse.
        """
        if not self.runs:
            return None
        module = self.module()
        state = doubled_state(module)
        inputs = pytree.tree_map_only(Tensor, doubled, self.definition.inputs)
        before = steady_answers(module, state | {name: doubled(t) for name, t in self.items()}, inputs)
        dtypes = {name: self._dtype_in_file(self._keys[name][0], self[name].dtype) for name in tensors}
        exact, rounded = (
            largest_change(answers(module, state | {name: doubled(t) for name, t in values.items()}, inputs), before)
            for values in (tensors, {name: t.to(dtypes[name]) for name, t in tensors.items()})
        )
        reason, most = "", math.sqrt(max(torch.finfo(self[name].dtype).eps for name in tensors))
        if exact > ROUNDING:
            reason = f"the group of --net does not keep it; build {', '.join(self.unmoved) or 'it'} into the module"
        elif rounded > most:
            reason = (
                f"it is rounded to {', '.join({str(dtype) for dtype in dtypes.values()})}; convert it to float32 first"
            )
        if reason:
            change = f"outputs would change by {max(exact, rounded):.1e} of the largest"
            raise FileError(f"{self.checkpoint.path}: {change}, as {reason}")
        return rounded

    def write(self, folder: Path, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Writes a checkpoint like this one with other values, see `Checkpoint.write`.

        ``tensors`` has all parameters of the space, and other keys in the module if they change, too.

        Raises:
            FileError: if the class makes tensors of the file in a way for which no other values can be written.
        """
        changed = {key: tensors[n] for n, same in self._keys.items() for key in same}
        changed |= {key: tensors[key] for key in self.others if key in tensors}
        if (loaded := self._loaded) is not None:
            # the values, by the keys that the module's own methods take, that these load as the changed tensors
            state, *others = self._state
            try:
                entries = loaded.back(state, changed)
            except ValueError as error:
                raise FileError(f"{self.checkpoint.path}: {error}") from error
            narrow = {key: t.to(self.checkpoint.stored(self._file_key[key]).dtype) for key, t in entries.items()}
            module = self.definition.module()
            load_state(module, state | narrow, *others)
            for key, t in tensors_of(module).items():
                wanted = changed.get(key, loaded.tensors[key])
                wanted = wanted.to(self._dtype_in_file(key, wanted.dtype))
                if not torch.equal(t.detach(), wanted.to(t.dtype)):
                    raise FileError(
                        f"{self.checkpoint.path}: no other values of {key} can be written in the form of this file, as "
                        f"{self.definition.name} makes several tensors of some of it: save the state dict of the "
                        "loaded module, and give that"
                    )
            changed = entries
        self.checkpoint.write(folder, name, {self._file_key.get(key, key): t for key, t in changed.items()})


class Renamed(Mapping[str, Tensor]):
    """Tensors of a checkpoint under other keys, each read when it is asked for."""

    def __init__(self, checkpoint: Checkpoint, file_key: Mapping[str, str]) -> None:
        self._checkpoint, self._file_key = checkpoint, file_key

    def __getitem__(self, key: str) -> Tensor:
        return self._checkpoint[self._file_key[key]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_key)

    def __len__(self) -> int:
        return len(self._file_key)


def doubled_state(module: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters and buffers of a module in float64."""
    return {key: doubled(t) for key, t in (*module.named_parameters(), *module.named_buffers())}


def read_networks(
    paths: Sequence[PathLike],
    skipped: dict[str, str] | None = None,
    *,
    fused: bool = False,
    **naming: Unpack[Naming],
) -> list[Network]:
    """Reads checkpoints (`read_checkpoint`) as networks of one architecture (`read_architecture`) and one width.

    Args:
        paths: of the checkpoints.
        skipped: see `skipping`; files are left out if they cannot be read, do not fit, or have NaN.
        fused: whether batch norms may be missing because they are folded into the layers before them; if so in one
            checkpoint, they are folded in all.
        naming: see `Naming`; the **code** of ``net`` **runs**.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: naming the file or the architecture that cannot be used, and the way out; for two paths of one file.
    """
    checkpoints: dict[tuple[Path, ...], Checkpoint] = {}
    for path in paths:
        with skipping(path, skipped):
            opened = read_checkpoint(path, naming.get("key"))
            same = checkpoints.setdefault(real_files(opened.path), opened)
            if same is not opened:
                raise InvalidValueError(f"{same.path} and {opened.path} are the same file: give two networks")
    architectures = Architectures(**naming)
    networks: list[Network] = []
    for checkpoint in checkpoints.values():
        with skipping(checkpoint.path, skipped):
            definition = architectures.of(checkpoint)
            if definition.name == PAIRS:
                checkpoint = Adapter(checkpoint)
            network = Network(definition, checkpoint, order=naming.get("order"), fused=fused)
            first = networks[0] if networks else network
            network.taken = architectures.taken
            if architectures.configured:
                network.configuration = None
            network.put_beside(first)
            if isinstance(checkpoint, Adapter):
                network.doubt = checkpoint.doubt_beside(first.checkpoint)
            if skipped is not None:
                network.check()
            networks.append(network)
    # labels: paths without the folders that all share, and without names or suffixes of files that are all the same
    parts = [network.checkpoint.path.parts for network in networks]
    if len(parts) == 1:
        parts = [parts[0][-1:]]
    elif parts:
        while len({p[0] for p in parts}) == 1 and min(map(len, parts)) > 1:
            parts = [p[1:] for p in parts]
        while len({p[-1] for p in parts}) == 1 and min(map(len, parts)) > 1:
            parts = [p[:-1] for p in parts]
    labels = ["/".join(p) for p in parts]
    suffix = suffix_of(networks[0].checkpoint.path) if len(networks) > 1 else ""
    cut = all(label.endswith(suffix) for label in labels)
    for network, label in zip(networks, labels, strict=True):
        network.label = label.removesuffix(suffix) if cut else label
    for network in networks if any(network.fused for network in networks) else ():
        network.fold()
    return networks


def read_several(
    command: str, paths: Sequence[PathLike], *, fused: bool = False, **naming: Unpack[Naming]
) -> tuple[list[Network], dict[str, str]]:
    """Reads two networks or more, of paths or a folder (`read_networks`); also returns path -> why it was left out.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: as `read_networks`, and for fewer than two.
    """
    paths, skipped = checkpoints_at(paths), dict[str, str]()
    try:
        networks = read_networks(paths, skipped if naming.get("skip_bad") else None, fused=fused, **naming)
    except FileError as error:
        way_out = "; --skip-bad goes on without such files" * (len(paths) > 2)
        raise FileError(f"{error}{way_out}") from error
    if len(networks) < 2:
        alone = networks[0].label if networks else "nothing"
        reasons = "".join(f"; left out: {path}: {reason}" for path, reason in list(skipped.items())[:REASONS])
        reasons += f"; and {len(skipped) - REASONS} more" * (len(skipped) > REASONS)
        raise InvalidValueError(f"{command} needs two networks, or a folder of them; found {alone} alone{reasons}")
    return networks, skipped


@contextlib.contextmanager
def naming_files(networks: Sequence[Network]) -> Iterator[None]:
    """Makes an error that one of some networks is to blame for name its file."""
    try:
        yield
    except FileError:
        raise
    except MonomialError:
        for network in networks:
            network.check()  # raises for that network
        raise
