"""For tests of what is built on Radixtide: faults, a virtual clock, journals, the oracle."""
