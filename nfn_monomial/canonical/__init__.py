"""Canonical forms: one network in place of all that the group turns into it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nfn_monomial.doors import lazy

if TYPE_CHECKING:
    from .balance import Balance, balance
    from .fingerprint import fingerprint
    from .phases import absorb_omega, canonical_phase, shift_phase
else:
    lazy(
        __name__,
        {
            "balance": ["Balance", "balance"],
            "fingerprint": ["fingerprint"],
            "phases": ["absorb_omega", "canonical_phase", "shift_phase"],
        },
    )

__all__ = ["Balance", "absorb_omega", "balance", "canonical_phase", "fingerprint", "shift_phase"]
