"""The tree without a cache: walks, splits, leaves, removal, against a plain model."""

from __future__ import annotations

import random

import pytest

from radixtide import RadixKey
from radixtide.tree import Node, RadixTree, Walk
from support.trees import add


def matched(tree: RadixTree, tokens: list[int], extra_key: str | None = None) -> int:
    return tree.walk(RadixKey(tokens, extra_key, is_bigram=tree.bigram)).matched


def check(tree: RadixTree) -> None:
    """Assert what holds for every node."""
    count = 0
    for node in tree:
        count += 1
        assert node.parent is not None
        assert tree.nodes[node.id] is node
        assert node.parent.children[node.edge] is node
        assert node.edge.endswith(node.piece[: tree.edge_bytes])
        assert (len(node.piece) - tree.lookahead) // 8 == node.length > 0
        assert node.length % tree.page_size == 0
    assert len(tree) == count


def test_an_empty_tree_matches_nothing() -> None:
    tree = RadixTree(4, 1)
    walk = tree.walk(RadixKey(list(range(8))))
    assert (walk.matched, walk.last, walk.path, walk.limit) == (0, tree.root, [], 8)
    assert (tree.root.start, tree.root.end, tree.root.length) == (0, 0, 0)


def test_a_walk_tells_what_is_covered_whole_and_where_it_ends_inside() -> None:
    tree = RadixTree(4, 1)
    first = add(tree, RadixKey(list(range(8))))
    second = add(tree, RadixKey(list(range(20))))
    walk = tree.walk(RadixKey([*range(14), 99, 99, 99, 99]))
    assert (walk.path, walk.inside, walk.inside_units) == ([first], second, 4)
    assert (walk.matched, walk.limit) == (12, 16)


def test_a_tail_shorter_than_a_page_takes_no_part() -> None:
    tree = RadixTree(4, 1)
    leaf = add(tree, RadixKey(list(range(7))))
    assert leaf.length == 4
    assert matched(tree, list(range(3))) == 0
    assert matched(tree, list(range(7))) == 4


def test_a_key_that_parts_inside_a_page_shares_whole_pages_only() -> None:
    tree = RadixTree(4, 1)
    add(tree, RadixKey(list(range(12))))
    assert matched(tree, [0, 1, 2, 3, 4, 5, 99, 7, 8, 9, 10, 11]) == 4
    assert matched(tree, [0, 1, 2, 99]) == 0


def test_a_walk_may_start_at_a_node() -> None:
    tree = RadixTree(4, 1)
    stem = add(tree, RadixKey(list(range(8))))
    leaf = add(tree, RadixKey(list(range(16))))
    walk = tree.walk(RadixKey(list(range(8, 20))), stem)
    assert (walk.base, walk.path, walk.matched, walk.limit) == (8, [leaf], 16, 12)
    deeper = tree.add_leaf(walk.last, walk, 8)
    assert (deeper.start, deeper.end) == (16, 20)
    assert matched(tree, list(range(20))) == 20


def test_a_split_keeps_the_identity_with_the_suffix() -> None:
    tree = RadixTree(4, 1)
    leaf = add(tree, RadixKey(list(range(12)), "adapter"))
    leaf.touch, leaf.hits, leaf.priority, leaf.created, leaf.pins = 5, 3, 2, 1, 2
    prefix = tree.split(leaf, 4)
    assert (prefix.start, prefix.end, leaf.start, leaf.end) == (0, 4, 4, 12)
    assert tree.nodes[leaf.id] is leaf
    assert (prefix.touch, prefix.hits, prefix.priority, prefix.created) == (5, 3, 2, 1)
    assert (prefix.pins, leaf.pins) == (1, 2)
    assert list(prefix.children.values()) == [leaf]
    assert leaf.parent is prefix
    check(tree)
    assert matched(tree, list(range(12)), extra_key="adapter") == 12


@pytest.mark.parametrize("units", [0, -4, 12, 16, 3])
def test_a_split_must_fall_on_a_page_inside_the_node(units: int) -> None:
    tree = RadixTree(4, 1)
    leaf = add(tree, RadixKey(list(range(12))))
    with pytest.raises(AssertionError):
        tree.split(leaf, units)


def test_a_split_of_bigrams_gives_both_parts_their_look_ahead() -> None:
    tree = RadixTree(2, 1, bigram=True)
    leaf = add(tree, RadixKey([1, 2, 3, 4, 5], is_bigram=True))
    prefix = tree.split(leaf, 2)
    assert len(prefix.piece) == len(leaf.piece) == 3 * 8
    check(tree)
    assert matched(tree, [1, 2, 3, 4, 5]) == 4
    assert matched(tree, [1, 2, 3, 9, 9]) == 2
    assert matched(tree, [1, 2, 9, 9, 9]) == 0


def test_namespaces_part_at_the_root_only() -> None:
    tree = RadixTree(4, 1)
    for space in ((None, None), ("a", None), (None, "a")):
        leaf = add(tree, RadixKey(list(range(8)), *space))
        assert leaf.parent is tree.root
    assert len(tree) == 3
    first = next(iter(tree))
    below = tree.split(first, 4)
    assert first.edge == first.piece[:32]
    assert below.edge.endswith(below.piece[:32])
    check(tree)


def test_a_removed_leaf_is_forgotten_and_its_parent_shares_no_table() -> None:
    tree = RadixTree(4, 1)
    stem = add(tree, RadixKey(list(range(8))))
    leaf = add(tree, RadixKey(list(range(16))))
    other = add(tree, RadixKey(list(range(100, 108))))
    with pytest.raises(AssertionError):
        tree.remove(stem)
    tree.remove(leaf)
    assert leaf.parent is None
    assert leaf.id not in tree.nodes
    assert stem.children == other.children == {}
    again = add(tree, RadixKey(list(range(16))))
    assert other.children == {}
    assert again.id > leaf.id
    with pytest.raises(AssertionError):
        tree.remove(tree.root)


def test_a_reset_starts_a_generation_and_ids_go_on() -> None:
    tree = RadixTree(4, 1)
    leaf = add(tree, RadixKey(list(range(8))))
    root = tree.root
    tree.reset()
    assert (len(tree), tree.generation) == (0, 1)
    assert tree.root is not root
    assert add(tree, RadixKey(list(range(8)))).id > leaf.id
    assert tree.next_id == max(tree.nodes) + 1


def test_a_branch_remembers_its_greatest_depth_where_a_policy_asks() -> None:
    for asked, expected in ((True, 16), (False, 8)):
        tree = RadixTree(4, 1, high_water=asked)
        stem = add(tree, RadixKey(list(range(8))))
        leaf = add(tree, RadixKey(list(range(16))))
        tree.remove(leaf)
        assert stem.high_water == expected
        assert tree.split(stem, 4).high_water == expected


def test_iteration_yields_parents_first_and_every_node_once() -> None:
    tree = RadixTree(1, 1)
    for token in range(6):
        add(tree, RadixKey([0, 1, token, 5, 6]))
    seen: set[Node | None] = {tree.root}
    for node in tree:
        assert node.parent in seen
        assert node not in seen
        seen.add(node)
    assert len(seen) == len(tree.nodes)


def test_each_component_has_a_record_on_each_node() -> None:
    tree = RadixTree(1, 3)
    leaf = add(tree, RadixKey([1, 2]))
    assert [data.node for data in leaf.component_data] == [leaf] * 3
    assert len({id(data) for data in leaf.component_data}) == 3
    assert repr(leaf) == f"Node({leaf.id}, [0, 2), children=0)"


@pytest.mark.parametrize("bigram", [False, True], ids=["tokens", "bigrams"])
@pytest.mark.parametrize("page", [1, 2, 4])
def test_a_walk_finds_what_a_set_of_prefixes_finds(page: int, bigram: bool) -> None:
    dice = random.Random(page)
    tree = RadixTree(page, 1, bigram=bigram)
    stored: set[tuple[int, ...]] = set()
    extra = int(bigram)
    for _ in range(200):
        tokens = [dice.randrange(2) for _ in range(dice.randrange(1, 24))]
        units = max(len(tokens) - extra, 0) // page * page
        best = 0
        while best < units and tuple(tokens[: best + page + extra]) in stored:
            best += page
        assert matched(tree, tokens) == best
        if dice.random() < 0.7:
            add(tree, RadixKey(tokens, is_bigram=bigram))
            stored.update(tuple(tokens[: end + extra]) for end in range(page, units + 1, page))
        check(tree)


def test_a_walk_compares_without_copying_the_key_at_every_node() -> None:
    tree = RadixTree(1, 1)
    length = 400
    for end in range(1, length):
        add(tree, RadixKey(list(range(end))))
    key = RadixKey(list(range(length)))
    walk: Walk = tree.walk(key)
    assert len(walk.path) == length - 1
    assert walk.key is key
    assert all(node.piece == key.piece(node.start, node.end) for node in walk.path)
