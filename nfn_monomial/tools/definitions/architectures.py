"""The architecture of a checkpoint: named by a user, built from the configuration beside it, or read off its keys."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from nfn_monomial.adapters.matching import way_out_of
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files.checkpoints import Checkpoint
from nfn_monomial.tools.files.untrusted import read_json

from .chains import NET, chain_of
from .define import BATCH, PROGRAM, Definition, read_definition
from .imports import arguments_of, named
from .loading import described, inert_kind
from .lora import pairs_of
from .packages import CONFIG, PACKAGES, significant

__all__ = ["Architectures", "Naming", "configuration_beside", "read_architecture"]


class Naming(TypedDict, total=False):
    """The network of a checkpoint, and which state dict of its file to take: keywords of all functions for checkpoints.

    Attributes:
        net: the architecture: its name (``module.py:Class``, an importable class, an exported program), whose **code
            runs**, or what `define` makes of a module; not needed for the checkpoint of a chain of layers.
        net_args: arguments of a class or function that ``net`` names: by name, or as text, ``width=64,depth=3``.
        input_shape: of the example inputs, batch included; needed for a module that does not state any.
        activation: between the layers of a chain, by name.
        order: names of the layers of a chain in the order in which they run, if it is not that of the file.
        key: of the state dict in a file of ``torch.save`` that has several.
        skip_bad: whether to leave out files that cannot be used, and report them, instead of raising an error.
    """

    net: str | Definition | None
    net_args: Mapping[str, Any] | str | None
    input_shape: Sequence[int] | None
    activation: str | None
    order: Sequence[str] | None
    key: str | None
    skip_bad: bool


def read_architecture(like: Checkpoint | None, **naming: Unpack[Naming]) -> Definition:
    """Returns the architecture that a user names, whose **code runs**; without a name, that of a chain of layers.

    Args:
        like: a checkpoint of the chain.
        naming: see `Naming`.

    Raises:
        ValueError: naming what cannot be used, and the way out.
    """
    net, input_shape, activation = naming.get("net"), naming.get("input_shape"), naming.get("activation")
    order, arguments = naming.get("order"), naming.get("net_args")
    if input_shape is not None and (not input_shape or min(input_shape) < 1):
        raise InvalidValueError(f"--input {','.join(map(str, input_shape))}: sizes are at least 1, as 1,3,32,32")
    if isinstance(net, str):
        if activation is not None:
            raise InvalidValueError(f"--activation {activation} is for a chain of layers, but --net {net} is given")
        shape, batch = (input_shape[1:], input_shape[0]) if input_shape is not None else (None, BATCH)
        net = read_definition(net, shape, batch, arguments_of(arguments) if isinstance(arguments, str) else arguments)
    elif arguments:
        raise InvalidValueError(f"--net-args {arguments}: these are for a class or function that --net names")
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
    """Returns the entries of the ``config.json`` beside a checkpoint that may matter to its function; None without one.

    Raises:
        FileError: if it is damaged.
    """
    file = path.parent / CONFIG
    configuration = read_json(file, "copy it again") if file.is_file() else None
    return significant(configuration) if isinstance(configuration, Mapping) else None


class Architectures:
    """The architectures of several checkpoints, each read once.

    A class may be built with other arguments for each checkpoint: those of the ``config.json`` beside it, or those that
    its trainer has written into the file.

    Args:
        naming: see `Naming`; the **code** of ``net`` **runs**.

    Attributes:
        configured: whether they are built from the configurations beside files.
        taken: names of the arguments that the class of ``net`` takes from files, or from ``net_args``.
    """

    def __init__(self, **naming: Unpack[Naming]) -> None:
        self._naming, net = naming, naming.get("net")
        self.configured = isinstance(net, str) and net.startswith("hf:")
        self._known: dict[str, Definition] = {}
        self.taken: set[str] = set()

    def of(self, checkpoint: Checkpoint) -> Definition:
        """Returns the architecture of a checkpoint.

        Raises:
            ValueError: naming what cannot be used, and the way out.
        """
        net, net_args = self._naming.get("net"), self._naming.get("net_args") or {}
        stated = arguments_of(net_args) if isinstance(net_args, str) else dict(net_args)
        if not isinstance(net, str) or net.endswith(PROGRAM):
            return self._read(checkpoint, "")
        kind, _, folder = net.partition(":")
        if kind == "hf":
            path, beside = Path(folder, CONFIG), configuration_beside(checkpoint.path)
            if beside is None or beside == configuration_beside(path):
                return self._read(checkpoint, "")
            classes = read_json(path, "copy it again").get("architectures")  # the class is that of --net
            arguments = {"architectures": classes, **stated}
            definition = self._read(checkpoint, repr(beside), net=f"hf:{checkpoint.path.parent}", net_args=arguments)
            usual = self._read(checkpoint, "")
            return usual if definition.settings == usual.settings else definition
        if kind in PACKAGES or not checkpoint.arguments:
            return self._read(checkpoint, "")
        takes = {k: v for k, v in inspect.signature(named(net)[1]).parameters.items() if k not in stated}
        trained = {key: value for key, value in checkpoint.arguments.items() if key in takes and not inert_kind(value)}
        self.taken |= {*stated, *trained}
        trained = {key: value for key, value in trained.items() if described(value) != described(takes[key].default)}
        texts = {key: described(value) for key, value in trained.items()}
        if not trained:
            return self._read(checkpoint, "")
        return self._read(checkpoint, repr(texts), texts, net_args=trained | stated)

    def _read(
        self, checkpoint: Checkpoint, key: str, settings: dict[str, str] | None = None, **other: Any
    ) -> Definition:
        if key not in self._known:
            definition = read_architecture(checkpoint, **{**self._naming, **other})
            self._known[key] = replace(definition, settings=definition.settings | settings) if settings else definition
        return self._known[key]
