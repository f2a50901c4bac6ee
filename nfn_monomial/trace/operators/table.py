"""The table of operators: name -> rule, and what else is known of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from torch._ops import OpOverload, OpOverloadPacket

from nfn_monomial.checks import checked
from nfn_monomial.errors import InvalidTypeError

Rule: TypeAlias = Callable[..., Any]
"""``rule(run, *arguments, **options)``, tensors as `Value`, others as they are -> a value, or a tuple of several."""

R = TypeVar("R", bound=Rule)


class Entry(NamedTuple):
    """An operator.

    Attributes:
        rule: see `Rule`; None for an operator that is taken apart like any other.
        bundles: whether the rule knows of concatenations whose parts are apart.
        linear: whether the operator is linear in its first argument: it moves entries about or sums them.
        family: what it computes, for readers that carry values through a program themselves.
        bias: the argument that it adds last, and the dimension of the output along which that lies.
        statistics: which arguments are running statistics: buffers that move with the parameters.
        positions: what it does to positions of entries: it has ``"kept"`` them, or ``"followed"`` them to the entries.
        constants: what it makes of inputs and constants alone: ``"random"`` numbers; a tensor ``"filled"`` alike, of
            which the shape alone is read; a tensor that has ``"counted"`` places. Where their entries are
            ``"repeated"``, or ``"joined"`` to something else, more is known of the output than that it is FIXED.
    """

    rule: Rule | None = None
    bundles: bool = False
    linear: bool = False
    family: Literal["", "sum", "product", "matrix product", "convolution", "softmax", "look-up"] = ""
    bias: tuple[int, int] | None = None
    statistics: tuple[int, ...] = ()
    positions: Literal["", "kept", "followed"] = ""
    constants: Literal["", "random", "filled", "counted", "repeated", "joined"] = ""


OPERATORS: dict[str, Entry] = {}


def enter(names: str, rule: Rule | None, **facts: Any) -> None:
    """Enters ATen operators of these names (all overloads of each) with one rule, and other fields of `Entry`."""
    for name in names.split():
        assert name not in OPERATORS, f"two rules for {name}"
        OPERATORS[name] = Entry(rule, **facts)


def operator(*names: str, **facts: Any) -> Callable[[R], R]:
    """Enters the rule that it decorates."""

    def decorate(rule: R) -> R:
        enter(" ".join(names), rule, **facts)
        return rule

    return decorate


def entry_of(name: str) -> Entry:
    """Returns what is known of an operator; an entry without a rule for one that is not in the table."""
    return OPERATORS.get(name, _UNKNOWN)


def ruled() -> frozenset[str]:
    """Returns the names of all operators that have a rule."""
    return frozenset(name for name, entry in OPERATORS.items() if entry.rule is not None)


_UNKNOWN = Entry()

enter("rand randn rand_like randn_like randint randint_like randperm bernoulli normal", None, constants="random")
enter("zeros_like ones_like full_like empty_like", None, constants="filled")
enter("new_zeros new_ones new_full new_empty", None, constants="filled")
enter("arange linspace logspace eye tril triu", None, constants="counted")
enter("expand_as broadcast_to tile", None, constants="repeated")
enter("concat concatenate", None, constants="joined")


@checked
def register_operator(target: Any, rule: Rule) -> None:
    """Gives an operator a rule, or another rule.

    Args:
        target: as a graph names it, with or without the overload, ``"aten.relu"``, ``"mylib.soft.default"``; one of
            ``torch.ops``; or a function made by ``torch.library.custom_op``.
        rule: ``rule(run, *arguments)`` -> `Value`; tensors among its arguments are values. ``run`` has the moves that
            rules consist of: ``run.unary(x, "odd")``, ``run.add``, ``run.multiply``, ``run.contract``, ``run.reduce``.

    Raises:
        TypeError: for what is no operator.

    >>> register_operator("mylib.soft_sign", lambda run, x: run.unary(x, "odd"))
    """
    target = getattr(target, "_opoverload", target)
    name = str(target)
    if not isinstance(target, str | OpOverload | OpOverloadPacket) or "." not in name or " " in name:
        raise InvalidTypeError(f"{target!r} is no operator; give its name as 'library.operator', or one of torch.ops")
    OPERATORS[short(name)] = Entry(rule)


def short(name: str) -> str:
    """Returns an operator's name in the table: ``aten.add.Tensor`` -> ``add``, ``mylib.f.default`` -> ``mylib.f``."""
    parts = name.split(".")
    return parts[1] if parts[0] == "aten" else ".".join(parts[:2])
