"""The order of evictable leaves: exactly what was added, by the policy's key, for every policy."""

from __future__ import annotations

import random

import pytest

from radixtide.components.leaf_order import LeafOrder
from radixtide.components.policies import make_policy
from radixtide.configs.schema import EvictionConfig
from radixtide.tree import ComponentData, Node
from support.trees import lone_node

POLICIES = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru")


def order_of(name: str) -> tuple[LeafOrder[ComponentData], EvictionConfig]:
    config = EvictionConfig(policy=name, tlru_threshold=6)
    return LeafOrder(make_policy(config)), config


def leaves(count: int) -> list[Node]:
    return [lone_node(number % 5 + 1, node_id=number + 1) for number in range(count)]


def record(node: Node) -> ComponentData:
    return node.component_data[0]


def test_under_lru_leaves_come_by_their_last_touch() -> None:
    order, _ = order_of("lru")
    nodes = leaves(4)
    for touch, at in enumerate((2, 0, 3, 1)):
        nodes[at].touch = touch
    for node in nodes:
        order.add(record(node))
    assert [data.node for data in order] == [nodes[at] for at in (2, 0, 3, 1)]
    assert len(order) == 4


def test_a_touched_leaf_goes_to_the_end() -> None:
    order, _ = order_of("lru")
    nodes = leaves(3)
    for touch, node in enumerate(nodes):
        node.touch = touch
        order.add(record(node))
    nodes[0].touch = 9
    order.refresh(record(nodes[0]))
    assert [data.node for data in order] == [nodes[1], nodes[2], nodes[0]]


def test_a_leaf_with_an_old_time_takes_the_place_that_it_gives() -> None:
    order, _ = order_of("lru")
    nodes = leaves(3)
    for touch, node in ((5, nodes[0]), (9, nodes[1]), (7, nodes[2])):
        node.touch = touch
        order.add(record(node))
    assert [data.node for data in order] == [nodes[0], nodes[2], nodes[1]]
    order.remove(record(nodes[2]))
    assert record(nodes[2]).order_key is None
    assert [data.node for data in order] == [nodes[0], nodes[1]]


def test_a_leaf_is_added_once() -> None:
    order, _ = order_of("lru")
    (node,) = leaves(1)
    order.add(record(node))
    with pytest.raises(AssertionError):
        order.add(record(node))


@pytest.mark.parametrize("name", POLICIES)
def test_any_sequence_of_changes_keeps_the_order_of_the_policy(name: str) -> None:
    dice = random.Random(POLICIES.index(name))
    order, config = order_of(name)
    policy = make_policy(config)
    nodes = leaves(24)
    members: set[Node] = set()
    for clock in range(1, 1500):
        node = dice.choice(nodes)
        if dice.random() < 0.5:
            node.touch = clock
            node.hits += dice.randrange(2)
            node.priority = dice.randrange(3)
            node.high_water = max(node.high_water, dice.randrange(12))
            if node in members:
                order.refresh(record(node))
        elif node in members:
            order.remove(record(node))
            members.discard(node)
        else:
            node.created = clock
            order.add(record(node))
            members.add(node)
        found = [data.node for data in order]
        assert set(found) == members
        assert len(order) == len(found) == len(members)
        keys = [policy.key(one) for one in found if one is not None]
        assert keys == sorted(keys)
