"""Architectures besides plain CNNs: residual ones and transformers."""
