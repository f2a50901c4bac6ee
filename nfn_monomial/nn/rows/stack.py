"""Layers one after another, through which fields are passed on before they are there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from nfn_monomial.nn.edges import watched
from nfn_monomial.space.features import Features, Layout

from .maps import Field, Rows, whole


class RowWise(nn.Module, ABC):
    """A layer that maps some fields row by row.

    Attributes:
        in_layout: of its input.
        out_layout: of its output.
        in_channels: of its input, or ``channels``; without them it takes any number.
    """

    in_layout: Layout
    out_layout: Layout

    @abstractmethod
    def on_rows(self, fields: Sequence[Field]) -> Sequence[Field]:
        """Fields of ``in_layout`` -> those of ``out_layout``, which are not there yet where they need not be."""

    def require(self, features: Features) -> None:
        """Raise unless these are features that the layer takes."""
        self.in_layout.require(features, self.taken, type(self).__name__)

    @property
    def taken(self) -> int | None:
        """Channels of the input; None for any number."""
        found: int | None = getattr(self, "in_channels", getattr(self, "channels", None))
        return found

    def forward(self, features: Features) -> Features:
        """Features of ``in_layout`` -> features of ``out_layout``."""
        self.require(features)
        return Features(self.out_layout, tuple(map(whole, self.on_rows(features.tensors))))


def stacked(modules: Iterable[nn.Module], given: Any) -> Any:
    """What modules one after another make of features, or of what else the first of them takes.

    Where some of them are `RowWise`, what lies between them is computed some networks at a time, and again in backward
    (`Rows`); of a space on which scales act that is all between the first layer and the pool. While something watches,
    a compiler, a transform of ``torch.func``, autocast or a hook of a module, the modules are called one by one.
    """
    fields: Sequence[Field] = ()
    layout: Layout | None = None
    for module in modules:
        if isinstance(module, RowWise) and _plain(module, given if layout is None else fields[0]):
            if layout is None:
                module.require(given)
                fields = [Rows(x) for x in given.tensors]
            elif not _fits(module, layout, fields):
                given = module(_there(layout, fields))  # which says what is wrong
            fields, layout = module.on_rows(fields), module.out_layout
        else:
            given = module(given if layout is None else _there(layout, fields))
            layout = None
    return given if layout is None else _there(layout, fields)


class Stack(nn.Sequential):
    """Modules one after another, as `torch.nn.Sequential` with the same names in the state dict, see `stacked`."""

    def forward(self, x: Any) -> Any:
        """Whatever the first module takes -> what the last one gives."""
        return stacked(self, x)


def _there(layout: Layout, fields: Sequence[Field]) -> Features:
    return Features(layout, tuple(map(whole, fields)))


def _plain(module: RowWise, given: Any) -> bool:
    """Whether nobody looks at what a module is called with."""
    if isinstance(given, Features):
        given = given.tensors[0]
    x = given.source if isinstance(given, Rows) else given
    if not isinstance(x, torch.Tensor) or watched(x) or type(module).forward is not RowWise.forward:
        return False
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooked = any(getattr(m, name) for m in module.modules() for name in hooks)
    return not hooked and not torch.nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]


def _fits(module: RowWise, layout: Layout, fields: Sequence[Field]) -> bool:
    if module.in_layout is not layout:
        return False
    like, channels = next(module.parameters(), None), module.taken
    for m, field in zip(layout.multiplicities, fields, strict=True):
        x, width = (field.source, field.width) if isinstance(field, Rows) else (field, field.shape[-1])
        if channels is not None and width != m * channels:
            return False
        if like is not None and (like.dtype, like.device) != (x.dtype, x.device):
            return False
    return True
