"""Faults as data, and a deterministic simulator of the whole cache that finds what they break."""
