"""The roles that SpinQuant gives to modules: what writes to the rotated stream, what reads it, and heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.fibre import NormalForm, SharedTurn

from .names import Named, named
from .trial import KEPT, Trial

__all__ = ["Rotations", "rotations_of"]


class Rotations(NamedTuple):
    """What SpinQuant has to know.

    Attributes:
        norms: norms, and the linear layers that take over their gains.
        norm_errors: the largest change of an output when they do, for each.
        roles: role -> names or patterns of modules.
        errors: rotation -> the largest change of an output: of the stream, R1, and in the heads, R2.
    """

    norms: list[Named]
    norm_errors: list[float]
    roles: dict[str, list[str]]
    errors: dict[str, float]


def rotations_of(trial: Trial, form: NormalForm) -> Rotations:
    """The roles of a network's modules.

    Raises:
        ValueError: if there is no stream that may be rotated, or a module that has a role is not one of its own.
    """

    def modules(pieces: Iterable[str]) -> list[str]:
        found = {form.whole.pieces[piece].parameter.rpartition(".")[0] for piece in pieces}
        return [path for path in trial.paths if path in found]

    def of_kind(kind: str) -> list[tuple[SharedTurn, list[str], list[str]]]:
        turns = (turn for turn in form.mappings() if turn.kind == kind)
        return [(turn, modules(turn.writers), modules(turn.readers)) for turn in turns]

    streams = [(writers, readers) for turn, writers, readers in of_kind("rotations") if not turn.centred]
    if len(streams) != 1:
        raise _refused(
            f"{len(streams)} residual streams may be rotated, one is needed. None may if layer norms subtract means, "
            "gains are more than a factor, or the head is the embedding (give it a weight of its own)"
        )
    ((writers, readers),) = streams
    gains = {norm: linears for _, (norm, *_), linears in of_kind("gains") if {*linears} <= {*readers}}
    pairs = ((turn.size, write, read) for turn, write, read in of_kind("linear") if len(write) == len(read) == 1)
    heads = [(size, v, o) for size, (v,), (o,) in pairs if v in readers and o in writers]
    roles = _roles(trial, writers, readers, heads)
    if odd := [path for path in (*readers, *writers) if path not in trial.linears and path not in roles["embedding"]]:
        raise _refused(f"{odd[0]}, which reads or writes the stream, is no nn.Linear")
    errors = {"R1": trial.rotated(gains, writers, readers)}
    errors["R2"] = max(trial.rotated_heads(v, o, size) for size, v, o in heads)
    for rotation, error in errors.items():
        if not error <= KEPT:
            raise _refused(f"{rotation} changes outputs by {error:.1e}")
    norms = named(list(gains.items()), trial.paths)
    every = [trial.folded({norm: linears}) for norm, linears in gains.items()]
    return Rotations(
        norms,
        [max(every[n] for n in found.lines) for found in norms],
        {role: _targets(trial, role, paths) for role, paths in roles.items()},
        errors,
    )


def _roles(
    trial: Trial, writers: Sequence[str], readers: Sequence[str], heads: Sequence[tuple[int, str, str]]
) -> dict[str, list[str]]:
    roles: dict[str, list[str]] = {"attn": [], "attn_q": [], "attn_k": [], "attn_v": [], "attn_o": []}
    for _, v, o in heads:
        block = v.rpartition(".")[0]
        both = [path for path in readers if path.startswith(f"{block}.") and path != v]
        if not o.startswith(f"{block}.") or len(both) != 2:
            raise _refused(f"of {v}, queries and keys are not two more linear layers of one module with {o}")
        q, k = sorted(both, key=lambda path: -trial.shape(path)[0])  # there may be fewer keys than queries
        for role, path in zip(roles, (block, q, k, v, o), strict=True):
            roles[role].append(path)
    taken = {path for paths in roles.values() for path in paths}
    tables = [path for path in writers if path not in trial.linears]
    last = [path for path in readers if not any(part.isdigit() for part in path.split("."))]
    if not heads or len(tables) != 1 or len(last) != 1:
        raise _refused(
            f"found {len(heads)} pairs of values and outputs of heads, {len(tables)} embeddings and {len(last)} linear "
            "layers behind all blocks; some, one and one are needed"
        )
    roles["mlp_in"] = [path for path in readers if path not in taken and path not in last]
    roles["mlp_out"] = [path for path in writers if path not in taken and path not in tables]
    return {"embedding": tables, **roles, "lm_head": last}


def _targets(trial: Trial, role: str, paths: Sequence[str]) -> list[str]:
    """Names or patterns that stand for exactly these modules."""
    found = [target for target, _ in (line.sides for line in named([(path, ()) for path in paths], trial.paths))]
    if role not in ("mlp_in", "mlp_out") and len(found) != 1:
        raise _refused(f"{role} is not one pattern: {', '.join(found)}")
    return found


def _refused(reason: str) -> InvalidValueError:
    return InvalidValueError(f"no SpinQuant mapping of this network: {reason}")
