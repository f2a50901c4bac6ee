"""A corpus of SIRENs that is fitted in seconds."""

from nfn_monomial.benchmarks.make.inrs import InrConfig

TINY = InrConfig("digits", fits=2, limit=40, steps=100, shard=16)  # 32 * 2 + 4 + 4 networks: five shards
