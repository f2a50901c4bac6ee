"""Networks of one's own: an architecture, and checkpoints as points of its weight space.

The architecture is what a user names (``module.py:Class``, an importable class, an exported program, or a module that
is there in Python), see `read_definition`. Without one it is a chain of layers, see `chain_of`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, Unpack

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial import fingerprint
from nfn_monomial.adapters.matching import match_in_order, way_out_of
from nfn_monomial.canonical.fingerprint import STEPS
from nfn_monomial.checks import listed
from nfn_monomial.errors import InvalidValueError, MissingFileError
from nfn_monomial.fibre import NormalForm, fingerprint_fibre
from nfn_monomial.running import answers, doubled, largest_change, running, steady_answers
from nfn_monomial.space.packing import check_tensors, is_counter
from nfn_monomial.tools.definitions.define import (
    BATCH,
    PROGRAM,
    Definition,
    DefinitionError,
    one_value,
    read_definition,
)
from nfn_monomial.tools.definitions.folding import folded, unfused
from nfn_monomial.tools.definitions.imports import arguments_of, named
from nfn_monomial.tools.definitions.loading import Loaded, described, inert_kind, load_state, tensors_of
from nfn_monomial.tools.definitions.packages import CONFIG, PACKAGES, significant
from nfn_monomial.tools.files.documents import parse_json, read_bytes
from nfn_monomial.tools.files.strangers import FileError, damaged

from .chains import NET, chain_of
from .files import Checkpoint, checkpoints_in, read_checkpoint, real_files, suffix_of
from .pairs import PAIRS, Adapter, pairs_of

__all__ = [
    "Naming",
    "Network",
    "paths_of",
    "read_architecture",
    "read_networks",
    "read_several",
]

PathLike: TypeAlias = "str | Path"
REASONS = 3  # in a message
KEPT = 1e-8  # change of outputs in float64 that is one of rounding
SHOWN = 40  # characters of a setting in a message


class Naming(TypedDict, total=False):
    """What network it is, and which of the state dicts in its file: keywords of all functions for checkpoints.

    Attributes:
        net: the architecture: its name (``module.py:Class``, an importable class, an exported program), whose **code
            runs**, or what `define` makes of a module; not needed for the checkpoint of a chain of layers.
        net_args: arguments of a class or function that ``net`` names: by name, or as text, ``width=64,depth=3``.
        input_shape: of the example inputs, batch included; of a module that does not state any.
        activation: between the layers of a chain, by name.
        order: of the layers of a chain, by name, in which they run, where that is not the order of the file.
        key: of the state dict in a file of ``torch.save``, where it has several.
        skip_bad: whether files of several that cannot be used are left out, and told; else the first is an error.
    """

    net: str | Definition | None
    net_args: Mapping[str, Any] | str | None
    input_shape: Sequence[int] | None
    activation: str | None
    order: Sequence[str] | None
    key: str | None
    skip_bad: bool


class Network(Mapping[str, Tensor]):
    """A checkpoint as a point of a weight space: parameter of the space -> tensor ``(*shape)``, read when asked for.

    Args:
        definition: the architecture; keys and shapes are checked, values when they are read.
        checkpoint: where the tensors are; its keys may have a prefix more, see `prefix_of`.
        label: what to call it, by default the path.
        order: of the layers of a chain, by name, in which they run, where that is known.
        fused: whether batch norms of the architecture may be missing, as they are folded into the layers before them.

    Attributes:
        fused: whether they are.
        settings: what else is known to reach its function, name -> in words: what its class was built with, and what
            that takes from the file beside tensors.
        configuration: the same as the file beside it says; None where there is none, or the class was built of it.
        taken: names of arguments that the class has taken from its file, or from others that it stands beside.
        doubt: in words, which order of the layers of a chain was taken, where none was given.
        space: its weight space.
        sizes: node -> number of neurons.
        stored: the parameters as the file has them, where they are folded since.
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
            places = definition.places([*checkpoint, *checkpoint.objects])
            self._places = {key: full for key, full in places.items() if full in checkpoint.shapes}
            self._objects = {key: checkpoint.objects[full] for key, full in places.items() if key not in self._places}
            self._loaded: Loaded | None = None
            self._tensors: Mapping[str, Tensor] = Placed(checkpoint, self._places)
            shapes = {key: checkpoint.shapes[full] for key, full in self._places.items()}
            if definition.saved is not None:
                definition, self._loaded = definition.loaded(*self._state)
                self._tensors = self._loaded.tensors
            whole = (
                unfused(self._tensors, definition.folds) if fused and not definition.required <= shapes.keys() else None
            )
            self.fused = whole is not None
            if whole is not None or self._loaded is not None:
                self._tensors = self._tensors if whole is None else whole
                shapes = {key: tuple(t.shape) for key, t in self._tensors.items()}
            self.definition, self.space = definition, definition.space
            if definition.chain:
                meta = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
                matched, self.doubt = match_in_order(meta, self.space, order)
                self._own = {name: [key] for name, key in matched.items()}
            else:
                self._own = definition.keys(shapes, widths=self._loaded is None, state=self._tensors)
        except ValueError as error:
            raise FileError(f"{checkpoint.path}: {error}") from error
        self.settings = {**definition.settings, **(self._loaded.settings if self._loaded else {})}
        self.configuration = configuration_beside(checkpoint.path)
        self.taken: Collection[str] = ()
        self._shapes = {name: shapes[same[0]] for name, same in self._own.items()}
        known = {key for same in self._own.values() for key in same}
        unseen = () if self._loaded is None else self._loaded.unexpected
        used = {full for key, full in self._places.items() if key not in unseen}
        # what is behind no prefix and is called as one of the network's own is not that
        left = [full for full in checkpoint if full not in used and full not in definition.shapes]
        self.others = {key: shape for key, shape in shapes.items() if key not in known}
        self.others |= {full: checkpoint.shapes[full] for full in left}
        self._seen: set[str] = set()  # names whose values were looked at
        self.stored: Mapping[str, Tensor] = self
        self.sizes = self._sizes()

    def _sizes(self) -> dict[str, int]:
        meta = {name: torch.empty((1, 1, *shape), device="meta") for name, shape in self._shapes.items()}
        return check_tensors(self.space, meta)

    def put_beside(self, first: Network) -> None:
        """Take the space of another network with the same parameters, if the classes were built otherwise.

        Raises:
            FileError: naming both, if their parameters or widths are others.
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
                    f"{path} has {size} neurons of node {node}, but {other} has {first.sizes[node]}: networks of one "
                    "width can be put side by side"
                )

    @property
    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
        """Tensors, other objects, and versions, by the keys that the module's own methods take."""
        paths: dict[str, str] = {}  # of parts of the module, those of the file
        for own, full in self._places.items():
            a, b = own.split(".")[:-1], full.split(".")[:-1]
            paths.setdefault(".".join(a), ".".join(b))
            while a and b and a.pop() == b.pop():
                paths.setdefault(".".join(a), ".".join(b))
        written = self.checkpoint.versions
        versions = {own: written[full] for own, full in paths.items() if full in written}
        return {key: self.checkpoint[full] for key, full in self._places.items()}, self._objects, versions

    def _files(self, key: str) -> list[str]:
        """The keys of the file that make a tensor of the module."""
        keys = [key] if self._loaded is None else self._loaded.sources.get(key, ((), None))[0]
        return [self._places[own] for own in keys if own in self._places]

    def stored_dtype(self, name: str) -> torch.dtype:
        """That in which the file has a parameter, or most of it."""
        files = self._files(self._own[name][0])
        return self.checkpoint.stored(files[0]).dtype if files else self[name].dtype

    def _other(self, key: str) -> Tensor:
        return self._tensors[key] if key in self._tensors else self.checkpoint[key]

    def __getitem__(self, name: str) -> Tensor:
        keys = self._own[name]
        if name in self._seen:
            return self._tensors[keys[0]].detach()
        try:
            found = one_value(keys, self._tensors)
        except DefinitionError as error:
            raise FileError(f"{self.checkpoint.path}: {error}") from error
        self._seen.add(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.space.parameters)

    def __len__(self) -> int:
        return len(self.space.parameters)

    def _reads(self, key: str) -> bool:
        """Whether the function reads a tensor of the file: one that its class loads."""
        return key in self.definition.read and key in self.definition.shapes

    @property
    def unmoved(self) -> dict[str, Tensor]:
        """Key in the module -> what no symmetry moves and the function reads: masks, orders and scales of inputs."""
        return {key: self._other(key) for key in self.others if self._reads(key)}

    @property
    def unread(self) -> dict[str, Tensor]:
        """Key in the module -> what the function does not read, as auxiliary heads; without counters of batches."""
        keys = sorted(
            key for key in self.others if not self._reads(key) and not is_counter(key, self.definition.shapes)
        )
        return {key: self._other(key) for key in keys}

    def fold(self) -> None:
        """Have all batch norms folded into the layers before them, see `folded`; then it is for comparing alone.

        Raises:
            FileError: if that is another function.
        """
        own, folds = {key: self._tensors[key] for key in self._tensors}, self.definition.folds
        if self.runs:
            module, inputs = self.module(), pytree.tree_map_only(Tensor, doubled, self.definition.inputs)
            wide = {key: doubled(t) for key, t in (*module.named_parameters(), *module.named_buffers())}
            wide |= {key: doubled(t) for key, t in own.items() if key in wide}
            before, after = (answers(module, wide | state, inputs) for state in ({}, folded(wide, folds)))
            if not largest_change(after, before) <= KEPT:
                raise FileError(
                    f"{self.checkpoint.path}: to fold batch norms into the layers before them changes its outputs: "
                    "fuse the network by its own code, and name that by --net"
                )
        self.stored = {name: self[name] for name in self}
        self._tensors = folded(own, folds)

    def differences(self, other: Network) -> list[str]:
        """In words, what reaches the functions of two networks beside their tensors and is not the same."""
        found = [(self.settings, other.settings)]
        if self.configuration is not None and other.configuration is not None:
            found.append((self.configuration, other.configuration))
        return [
            f"{key} {' and '.join(x.get(key, 'not given')[:SHOWN] for x in both)}"
            for both in found
            for key in sorted({*both[0], *both[1]})
            if both[0].get(key) != both[1].get(key)
        ]

    def other_arguments(self, other: Network) -> list[str]:
        """Names of arguments that a trainer kept in both files, that may matter, and that no class here has taken."""
        both = [significant({k: described(v) for k, v in n.checkpoint.arguments.items()}) for n in (self, other)]
        names = (
            sorted({*both[0], *both[1]} - {*self.taken}) if all(n.checkpoint.arguments for n in (self, other)) else []
        )
        return [name for name in names if both[0].get(name) != both[1].get(name)]

    def outputs(self, inputs: Any) -> list[Tensor]:
        """What its class answers with all that it takes from the file, in float64.

        Raises:
            ValueError: if it does not run on these inputs, or not to outputs that can be compared.
        """
        module = self.module()
        own = {key: doubled(t) for key, t in (*module.named_parameters(), *module.named_buffers())}
        own |= {key: doubled(t) for key, t in self.items()}
        with running(module, "these inputs"):
            return steady_answers(module, own, pytree.tree_map_only(Tensor, doubled, inputs))

    @property
    def state(self) -> Mapping[str, Tensor]:
        """All that the function reads: the parameters, each read when it is asked for, and what is unmoved."""
        parameters: Any = self
        return ChainMap(self.unmoved, parameters)

    @functools.cached_property
    def _form(self) -> NormalForm | str:
        return self.definition.normal_form_with(self.state) if self.runs else self.why_not

    @property
    def form(self) -> NormalForm | None:
        """All that leaves its function as it is, where it is known to be more than permutations, scales and signs."""
        form = self._form
        wider = isinstance(form, NormalForm) and form.fibre_dimension > form.whole.group_dimension
        return form if wider and isinstance(form, NormalForm) else None

    def why_no_form(self, *, asked: bool = False) -> list[str]:
        """In words, why there is none: if that is not known of a network that runs, or if somebody asked for it."""
        form = self._form
        reason = form if isinstance(form, str) else "nothing else is known to leave its function as it is"
        told = asked or (self.runs and isinstance(form, str))
        return [f"Permutations, scales and signs alone were looked at: {reason}."] if told and self.form is None else []

    def fingerprint(self) -> str | None:
        """Of its normal form, where there is one; else `nfn_monomial.fingerprint`. Hashed with what nothing moves.

        None where a tensor's dtype has none.
        """
        if any(t.dtype not in STEPS for t in self.values()):
            return None
        form = None if self.definition.chain else self.form
        found = fingerprint(self.space, self) if form is None else fingerprint_fibre(form, self)
        still = {name: t for name, t in self.items() if form is not None and name not in form.whole.parameters}
        beside = dict(self.definition.settings)
        if self._loaded is not None:
            beside |= {key: self._loaded.settings.get(key, "") for key in self._loaded.changed}
        if not (still := self.unmoved | still) and not beside:
            return found
        values = safetensors.torch.save({key: t.detach().clone().contiguous() for key, t in still.items()})
        values += json.dumps(beside, sort_keys=True).encode() if beside else b""
        return hashlib.sha256(found.encode() + values).hexdigest()[: len(found)]

    @property
    def runs(self) -> bool:
        """Whether there is a module that computes what this network does: not for other widths than the module's."""
        wanted = self.definition.shapes
        own = self._shapes | self.others
        return bool(self.definition.inputs) and all(wanted.get(key, shape) == shape for key, shape in own.items())

    def module(self) -> nn.Module:
        """The module with these weights, a copy; eval mode is for the caller to set.

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

    def check(self) -> None:
        """Read all values, and run the module with them on its example inputs, where it can be.

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

    @property
    def why_not(self) -> str:
        """Why `runs` is False, and what to do about it."""
        if self.definition.inputs:
            return f"its widths are not those of {self.definition.name}; give a class with its widths"
        if self.definition.chain:
            return f"strides and pools are not known of a chain of layers; say what it is by {NET}"
        return "the exported program has no positional example inputs; export it with some"

    def write(self, folder: Path, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write a checkpoint like this one with other values, see `Checkpoint.write`.

        ``tensors`` has all parameters of the space, and other keys in the module, where they change, too.
        """
        changed = {key: tensors[n] for n, same in self._own.items() for key in same}
        changed |= {key: tensors[key] for key in self.others if key in tensors}
        if self._loaded is not None:
            changed = self._before_loading(self._loaded, changed)
        self.checkpoint.write(folder, name, {self._places.get(key, key): t for key, t in changed.items()})

    def _before_loading(self, loaded: Loaded, changed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the module's own methods make other values of, by the keys that they take.

        Raises:
            FileError: if there is nothing of the form of the file.
        """
        state, *others = self._state
        try:
            found = loaded.back(state, changed)
        except ValueError as error:
            raise FileError(f"{self.checkpoint.path}: {error}") from error
        narrow = {key: t.to(self.checkpoint.stored(self._places[key]).dtype) for key, t in found.items()}
        module = self.definition.module()
        load_state(module, state | narrow, *others)
        for key, t in tensors_of(module).items():
            wanted = changed.get(key, loaded.tensors[key])
            files = self._files(key)
            wanted = wanted.to(self.checkpoint.stored(files[0]).dtype) if files else wanted
            if not torch.equal(t.detach(), wanted.to(t.dtype)):
                raise FileError(
                    f"{self.checkpoint.path}: no other values of {key} can be written in the form of this file, as "
                    f"{self.definition.name} makes several tensors of some of it: save the state dict of the loaded "
                    "module, and give that"
                )
        return found


class Placed(Mapping[str, Tensor]):
    """Tensors of a checkpoint under other keys, each read when it is asked for."""

    def __init__(self, checkpoint: Checkpoint, places: Mapping[str, str]) -> None:
        self._checkpoint, self._places = checkpoint, places

    def __getitem__(self, key: str) -> Tensor:
        return self._checkpoint[self._places[key]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def read_architecture(like: Checkpoint | None, **naming: Unpack[Naming]) -> Definition:
    """The architecture that a user names, whose **code runs**; without a name, of a chain of layers.

    Args:
        like: a checkpoint, for a chain.
        naming: see `Naming`.

    Raises:
        ValueError: naming what cannot be used, and the way out.
    """
    net, input_shape, activation = naming.get("net"), naming.get("input_shape"), naming.get("activation")
    order, given = naming.get("order"), naming.get("net_args")
    if input_shape is not None and (not input_shape or min(input_shape) < 1):
        raise InvalidValueError(f"--input {','.join(map(str, input_shape))}: sizes are at least 1, as 1,3,32,32")
    if isinstance(net, str):
        if activation is not None:
            raise InvalidValueError(f"--activation {activation} is for a chain of layers, but --net {net} is given")
        shape, batch = (input_shape[1:], input_shape[0]) if input_shape is not None else (None, BATCH)
        net = read_definition(net, shape, batch, arguments_of(given) if isinstance(given, str) else given)
    elif given:
        raise InvalidValueError(f"--net-args {given}: these are for a class or function that --net names")
    if net is not None:
        if order is not None:
            raise InvalidValueError(f"--order {','.join(order)} is for a chain of layers, but --net is given")
        return net
    if like is None:
        raise InvalidValueError(f"which network? {NET}; or a checkpoint of a chain of layers, and --activation")
    if activation is None and (pairs := pairs_of(like)) is not None:
        return pairs
    if activation is None:
        raise InvalidValueError(
            f"{like.path}: say what network it is by {NET}; of a plain chain of layers, --activation relu is enough"
            f"{way_out_of(like.shapes)}"
        )
    return chain_of(like, activation, input_shape, order)


def configuration_beside(path: Path) -> dict[str, str] | None:
    """What may matter to the function in ``config.json`` beside a checkpoint; None where there is none.

    Raises:
        FileError: if it is damaged.
    """
    file = path.parent / CONFIG
    if not file.is_file():
        return None
    with damaged(file, "copy it again"):
        found = parse_json(read_bytes(file))
    return significant(found) if isinstance(found, Mapping) else None


class Architectures:
    """What network each of some checkpoints is: by name, built as the configuration beside it says, or its trainer.

    Args:
        naming: see `Naming`; the **code** of ``net`` **runs**.

    Attributes:
        configured: whether they are built of the configurations beside files.
        taken: names of arguments that the class of ``net`` takes from files, or from ``net_args``.
    """

    def __init__(self, **naming: Unpack[Naming]) -> None:
        self._naming, net = naming, naming.get("net")
        self.configured = isinstance(net, str) and net.startswith("hf:")
        self._known: dict[str, Definition] = {}
        self.taken: set[str] = set()

    def of(self, checkpoint: Checkpoint) -> Definition:
        """That of a checkpoint.

        Raises:
            ValueError: naming what cannot be used, and the way out.
        """
        net, told = self._naming.get("net"), self._naming.get("net_args") or {}
        given = arguments_of(told) if isinstance(told, str) else dict(told)
        if not isinstance(net, str) or net.endswith(PROGRAM):
            return self._read(checkpoint, "")
        kind, _, folder = net.partition(":")
        if kind == "hf":
            path, beside = Path(folder, CONFIG), configuration_beside(checkpoint.path)
            if beside is None or beside == configuration_beside(path):
                return self._read(checkpoint, "")
            with damaged(path, "copy it again"):
                stated = parse_json(read_bytes(path))
            arguments = {"architectures": stated.get("architectures"), **given}  # the class is that of --net
            found = self._read(checkpoint, repr(beside), net=f"hf:{checkpoint.path.parent}", net_args=arguments)
            usual = self._read(checkpoint, "")
            return usual if found.settings == usual.settings else found
        if kind in PACKAGES or not checkpoint.arguments:
            return self._read(checkpoint, "")
        taken = {k: v for k, v in inspect.signature(named(net)[1]).parameters.items() if k not in given}
        own = {key: value for key, value in checkpoint.arguments.items() if key in taken and not inert_kind(value)}
        self.taken |= {*given, *own}
        own = {key: value for key, value in own.items() if described(value) != described(taken[key].default)}
        texts = {key: described(value) for key, value in own.items()}
        return self._read(checkpoint, repr(texts), texts, net_args=own | given) if own else self._read(checkpoint, "")

    def _read(
        self, checkpoint: Checkpoint, key: str, settings: dict[str, str] | None = None, **other: Any
    ) -> Definition:
        if key not in self._known:
            found = read_architecture(checkpoint, **{**self._naming, **other})
            self._known[key] = replace(found, settings=found.settings | settings) if settings else found
        return self._known[key]


def paths_of(paths: Sequence[PathLike]) -> list[PathLike]:
    """Paths as they are; of a single folder, those of the checkpoints in it.

    Raises:
        ValueError: if there are none.
    """
    if not paths:
        raise InvalidValueError("no checkpoints given")
    if len(paths) == 1 and Path(paths[0]).is_dir():
        return list(checkpoints_in(Path(paths[0])))
    return list(paths)


def read_networks(
    paths: Sequence[PathLike],
    skipped: dict[str, str] | None = None,
    *,
    fused: bool = False,
    **naming: Unpack[Naming],
) -> list[Network]:
    """Checkpoints (`read_checkpoint`) as networks of one architecture (`read_architecture`) and one width.

    Args:
        paths: of the checkpoints.
        skipped: where it is told, path -> reason, which files are left out as they cannot be read, do not fit, or have
            NaN; without it the first of them is an error.
        fused: whether some of them may have batch norms that are folded into the layers before them; then all are.
        naming: see `Naming`; the **code** of ``net`` **runs**.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: naming the file or the architecture that cannot be used, and the way out; for two paths that are
            one file.
    """

    @contextlib.contextmanager
    def unless_bad(path: PathLike) -> Iterator[None]:
        try:
            yield
        except (FileError, MissingFileError) as error:
            if skipped is None:
                raise
            skipped[str(path)] = str(error).removeprefix(str(path)).lstrip(": ")

    places: dict[tuple[Path, ...], Checkpoint] = {}
    for path in paths:
        with unless_bad(path):
            found = read_checkpoint(path, naming.get("key"))
            place = real_files(found.path)
            if place in places:
                raise InvalidValueError(f"{places[place].path} and {found.path} are the same file: give two networks")
            places[place] = found
    architectures = Architectures(**naming)
    networks: list[Network] = []
    for checkpoint in places.values():
        with unless_bad(checkpoint.path):
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
    for network, label in zip(networks, _labels([network.checkpoint.path for network in networks]), strict=True):
        network.label = label
    for network in networks if any(network.fused for network in networks) else ():
        network.fold()
    return networks


def read_several(
    command: str, paths: Sequence[PathLike], *, fused: bool = False, **naming: Unpack[Naming]
) -> tuple[list[Network], dict[str, str]]:
    """Two networks or more, as `read_networks`, of a folder or of paths; and what was left out, path -> reason.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: as `read_networks`, and for fewer than two.
    """
    found, skipped = paths_of(paths), dict[str, str]()
    try:
        networks = read_networks(found, skipped if naming.get("skip_bad") else None, fused=fused, **naming)
    except FileError as error:
        way_out = "; --skip-bad goes on without such files" * (len(found) > 2)
        raise FileError(f"{error}{way_out}") from error
    if len(networks) < 2:
        alone = networks[0].label if networks else "nothing"
        reasons = "".join(f"; left out: {path}: {reason}" for path, reason in list(skipped.items())[:REASONS])
        reasons += f"; and {len(skipped) - REASONS} more" * (len(skipped) > REASONS)
        raise InvalidValueError(f"{command} needs two networks, or a folder of them; found {alone} alone{reasons}")
    return networks, skipped


def _labels(paths: Sequence[Path]) -> list[str]:
    """Short names for paths: without the folders that they share, nor names or suffixes of files that are the same."""
    parts = [path.parts for path in paths]
    if len(parts) < 2:
        return [path.name for path in paths]
    while len({p[0] for p in parts}) == 1 and min(map(len, parts)) > 1:
        parts = [p[1:] for p in parts]
    while len({p[-1] for p in parts}) == 1 and min(map(len, parts)) > 1:
        parts = [p[:-1] for p in parts]
    found = ["/".join(p) for p in parts]
    suffix = suffix_of(paths[0])
    return [name.removesuffix(suffix) for name in found] if all(name.endswith(suffix) for name in found) else found
