"""A zoo's network as a row of numbers: which columns hold which variable of which layer, as ``layout.csv`` says.

Layers are found by their names (``conv2d``, ``conv2d_1``, ..., ``dense``, ``dense_1``, ...), any number of each:
convolutions run first, global average pooling follows, then the dense layers.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from nfn_monomial.benchmarks.reading import read_rows, whole
from nfn_monomial.checks import listed, shown
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files.untrusted import damaged

from .base import CorpusError

__all__ = [
    "Layer",
    "Layout",
    "Variable",
    "cnn_geometry",
    "layers_of",
    "parse_layout",
    "unflatten",
]

COLUMNS = ("varname", "shape", "start_idx", "end_idx")
_NAME = re.compile(r"(?:.*/)?(conv[123]d|dense)(?:_([0-9]{1,9}))?/(bias|kernel)(?::0)?")


@dataclass(frozen=True)
class Variable:
    """A variable and its columns ``start`` to ``end``; kernels are ``(*kernel, in, out)``, biases ``(out,)``."""

    name: str
    shape: tuple[int, ...]
    start: int
    end: int


Layout = tuple[Variable, ...]


@dataclass(frozen=True)
class Layer:
    """One convolution (``kernel_size`` not empty) or dense layer; networks may lack biases."""

    kernel: Variable
    bias: Variable | None

    @property
    def kernel_size(self) -> tuple[int, ...]:
        return self.kernel.shape[:-2]

    @property
    def fan(self) -> tuple[int, int]:
        """Channels in and out."""
        return self.kernel.shape[-2], self.kernel.shape[-1]


def parse_layout(path: Path, columns: int) -> Layout:
    """Reads ``layout.csv``, whose variables cover ``columns`` columns exactly once and form a CNN.

    Raises:
        CorpusError: naming the file, if they do not.
    """
    with damaged(path, "restore it from where the zoo came from", CorpusError):
        lines = read_rows(path)
        _, header = next(lines, (0, []))
        if missing := [name for name in COLUMNS if name not in header]:
            raise CorpusError(f"{path}: columns {', '.join(missing)} missing; expected {', '.join(COLUMNS)}")
        layout = tuple(_parse_line(dict(zip(header, line)), f"{path}, line {n}") for n, line in lines if line)  # noqa: B905
    end, last = 0, "the beginning"
    for variable in sorted(layout, key=lambda v: (v.start, v.end)):
        if variable.start != end:
            fault = "overlaps" if variable.start < end else "leaves a gap after"
            raise CorpusError(
                f"{path}: {variable.name} starts at column {variable.start} and {fault} {last}, which ends at {end}; "
                "expected every column once"
            )
        end, last = variable.end, variable.name
    if end != columns:
        raise CorpusError(
            f"{path}: the variables add up to {end} columns, but weights.npy has {columns}; "
            "are the two files of the same zoo?"
        )
    cnn_geometry(layout, str(path))
    return layout


def _parse_line(line: dict[str, str], where: str) -> Variable:
    name, shape_text, start_text, end_text = (line.get(column, "") for column in COLUMNS)
    called = listed([name])
    try:
        shape = ast.literal_eval(shape_text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        shape = None
    if not isinstance(shape, tuple) or not all(type(n) is int and n > 0 for n in shape) or not shape:
        raise CorpusError(
            f"{where}: the shape of {called} is {shown(shape_text)}, expected a tuple of sizes like (3, 3, 1, 16)"
        )
    try:
        start, end = (whole(text, "a column") for text in (start_text, end_text))
    except InvalidValueError as error:
        columns = f"{shown(start_text)} to {shown(end_text)}"
        raise CorpusError(f"{where}: {called} has columns {columns}, expected two integers") from error
    if end - start != math.prod(shape):
        raise CorpusError(
            f"{where}: {called} of shape {shown(shape)} needs {shown(math.prod(shape))} columns, but {start} to "
            f"{end} is {end - start}"
        )
    return Variable(name, shape, start, end)


def layers_of(layout: Layout, where: str = "layout.csv") -> list[Layer]:
    """The layers in order of execution: convolutions by number, then dense layers by number."""
    variables: dict[tuple[bool, int], dict[str, Variable]] = {}
    for variable in layout:
        match = _NAME.fullmatch(variable.name)
        if match is None:
            raise CorpusError(
                f"{where}: variable {listed([variable.name])!r} is not known; expected names like "
                "sequential/conv2d_1/kernel:0 or sequential/dense/bias:0 (other kinds of layers cannot be read)"
            )
        kind, number, part = match.groups()
        parts = variables.setdefault((kind == "dense", int(number or 0)), {})
        rank = 1 if part == "bias" else 2 if kind == "dense" else int(kind[4]) + 2
        if part in parts or len(variable.shape) != rank:
            what = "occurs twice" if part in parts else f"has shape {variable.shape}, expected {rank} sizes"
            raise CorpusError(f"{where}: {variable.name} {what}")
        parts[part] = variable
    layers: list[Layer] = []
    for _, parts in sorted(variables.items()):
        bias, kernel = parts.get("bias"), parts.get("kernel")
        if kernel is None:
            raise CorpusError(f"{where}: there is {parts['bias'].name} but no kernel beside it")
        if bias is not None and bias.shape[0] != kernel.shape[-1]:
            raise CorpusError(
                f"{where}: {bias.name} has {bias.shape[0]} entries, but {kernel.name} has {kernel.shape[-1]} outputs"
            )
        layers.append(Layer(kernel, bias))
    return layers


def cnn_geometry(
    layout: Layout, where: str = "layout.csv"
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Returns the sizes of a CNN with global pooling: channels, from the input on, kernels, dense outputs.

    Raises:
        CorpusError: if a layer's inputs are not the previous one's outputs.
    """
    layers = layers_of(layout, where)
    for previous, layer in itertools.pairwise(layers):
        if layer.fan[0] != previous.fan[1]:
            raise CorpusError(
                f"{where}: {layer.kernel.name} takes {layer.fan[0]} inputs, but {previous.kernel.name} has "
                f"{previous.fan[1]} outputs (between convolutions and dense layers only global pooling is known)"
            )
    convolutions = [layer for layer in layers if layer.kernel_size]
    if not convolutions:
        raise CorpusError(f"{where}: there is no convolution; expected variables like sequential/conv2d/kernel:0")
    return (
        (convolutions[0].fan[0], *(layer.fan[1] for layer in convolutions)),
        tuple(layer.kernel_size for layer in convolutions),
        tuple(layer.fan[1] for layer in layers if not layer.kernel_size),
    )


def unflatten(rows: Tensor, layout: Layout) -> dict[str, Tensor]:
    """Rows ``(N, columns)`` -> ``weight.i`` ``(N, out, in, *kernel)`` and ``bias.i`` ``(N, out)``: torch's order."""
    tensors: dict[str, Tensor] = {}
    for i, layer in enumerate(layers_of(layout)):
        kernel, axes = layer.kernel, len(layer.kernel.shape)
        value = rows[:, kernel.start : kernel.end].reshape(-1, *kernel.shape)
        tensors[f"weight.{i}"] = value.permute(0, axes, axes - 1, *range(1, axes - 1)).contiguous()
        if layer.bias is not None:
            tensors[f"bias.{i}"] = rows[:, layer.bias.start : layer.bias.end].contiguous()
    return tensors
