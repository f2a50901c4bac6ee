"""Formats of data on disk, published and made here, and how they are told apart."""
