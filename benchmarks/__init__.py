"""Measurements of Radixtide: run them from the root of a checkout, see docs/benchmarks.md."""
