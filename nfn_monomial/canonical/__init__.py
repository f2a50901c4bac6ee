"""Canonical forms: of all networks with one function, one."""

from .balance import Balance, balance
from .fingerprint import fingerprint
from .phases import absorb_omega, canonical_phase, shift_phase

__all__ = ["Balance", "absorb_omega", "balance", "canonical_phase", "fingerprint", "shift_phase"]
