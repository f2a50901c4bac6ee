"""The format of a folder of checkpoints with a table of accuracies: anybody's networks, of any architecture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nfn_monomial.benchmarks.data.networks import SIDES, Corpus, Networks
from nfn_monomial.tools.definitions.define import Definition, DefinitionError, read_definition
from nfn_monomial.tools.files.untrusted import damaged
from nfn_monomial.tools.results import Progress, silent

from .base import CorpusError, Format, register_format, require_folder
from .labelled import FORM, Request, read_labelled
from .result_tables import read_table, text_of

__all__ = ["CheckpointFolder"]

TABLES = ("targets.csv", "targets.json")


@register_format("checkpoints")
class CheckpointFolder(Format):
    """Checkpoints at any places in a folder, and beside them ``targets.csv`` or ``targets.json``.

    It is read as `train` reads its table (`read_labelled`), except that every line has to be usable, so that models
    are compared on all networks. Columns have these names: ``checkpoint`` names the file; ``accuracy`` is a share in
    [0, 1], or percent with the sign; ``split``, if any line has one, says ``train``, ``val`` or ``test``; and
    ``arguments``, a dict (in CSV as JSON), has the arguments of ``net``, if architectures vary.
    """

    kind = "generalization"
    looks_for = f"{' or '.join(TABLES)}, a table with columns checkpoint and accuracy"

    @staticmethod
    def detects(path: Path) -> bool:
        return any((path / name).is_file() for name in TABLES)

    @staticmethod
    def load(
        path: str | Path,
        *,
        net: str | None = None,
        input_shape: tuple[int, ...] | None = None,
        key: str | None = None,
        column: str = "accuracy",
        names: str | None = None,
        split: str | None = None,
        group: tuple[str, ...] = (),
        seed: int = 0,
        limit: int | None = None,
        on_progress: Progress = silent,
    ) -> dict[str, Corpus]:
        """Loads all networks of the table, as one corpus: ``mixed`` where arguments vary, else by the name of ``net``.

        Args:
            path: the folder.
            net: the networks' architecture, ``module.py:Class``, ``package.module:Class`` or the path of a program that
                ``torch.export.save`` wrote. A class or function is called with the network's arguments, if there are
                any, and makes the module, or a pair of it and its example inputs. **Its code runs, that in a program
                too**, so it is read from the place that is named here and never from beside the weights.
            input_shape: of one input of such a module, as ``3,32,32``, if it states no example inputs.
            key: of the state dict in files that hold more than that.
            column: of accuracies.
            names: the column that names the files, or a text with columns in braces; by default ``checkpoint``, and
                without such a column found out.
            split: the column of sides; by default ``split``, and without such a column they are drawn.
            group: columns, whose equal cells stay on one side.
            seed: of the draw, 15 percent for validation and for testing.
            limit: take that many training networks.
            on_progress: called while files are read.

        Raises:
            CorpusError: naming the table, the file or ``net``, if one cannot be used or they do not fit.
        """
        folder = require_folder(path)
        if net is None:
            raise CorpusError(
                f"{folder}: say what these networks are: net (--data-option net=module.py:Class, "
                "net=package.module:Class, or net=PATH.pt2)"
            )
        (table, *more) = [folder / name for name in TABLES if (folder / name).is_file()] or [folder / TABLES[0]]
        if more:
            raise CorpusError(f"{table} and {more[0].name} are both there: delete one")
        with damaged(table, f"expected {FORM}", CorpusError):
            filled = {name for line in read_table(table, FORM) for name, cell in line.cells.items() if text_of(cell)}

        def usual(name: str) -> str | None:
            return name if name in filled else None

        def definition(arguments: Mapping[str, Any]) -> Definition:
            try:
                return read_definition(net, input_shape, arguments=arguments)
            except DefinitionError as error:
                built_with = f" (of networks with the arguments {json.dumps(arguments)})" * bool(arguments)
                raise CorpusError(f"{error}{built_with}") from error

        request = Request(
            folder, table, column, names or usual("checkpoint"), "regression", split or usual("split"), group, key,
            seed, usual("arguments"), limit, complete=True,
        )  # fmt: skip
        labelled = read_labelled(request, definition, on_progress)
        corpus, whole = labelled.corpus, 100 if labelled.unit else 1
        sides: dict[str, Any] = {}
        for side in SIDES:
            networks = [part.networks for part in getattr(corpus, side)]
            shares = [n.accuracy / whole for n in networks]
            for file, share in zip(labelled.paths[side], torch.cat(shares).tolist(), strict=True):
                if not 0 <= share <= 1:
                    raise CorpusError(
                        f"{table}: {column} of {file} is {whole * share:g}, expected a share in [0, 1], or percent "
                        "with the sign"
                    )
            sides[side] = tuple(
                replace(part, networks=Networks(n.tensors, share.float()))
                for part, n, share in zip(getattr(corpus, side), networks, shares, strict=True)
            )
        source = {"format": "checkpoints", "net": net, **corpus.source}
        return {corpus.activation: replace(corpus, **sides, source=source)}
