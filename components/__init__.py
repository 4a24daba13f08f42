"""Components: kinds of state on the tree, their eviction policies, and the calls as data."""
