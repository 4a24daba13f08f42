"""What a journal has, said to those who asked for what it has not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import typer

from radixtide.cli.inspect_events import Event, Filter, actors_of, data_of, kinds_of
from radixtide.configs.reading import did_you_mean
from radixtide.simulation.journal_records import Header

TOLD: Final = 40
"""Names that are listed at most."""


def explain(chosen: Filter, source: Iterable[Event]) -> None:
    """Raise typer.BadParameter where `chosen` names what no event of a journal has.

    Reads all of `source`; it is for the case that nothing was found.
    """
    actors: dict[str, None] = {}
    kinds: dict[str, None] = {}
    requests: dict[str, None] = {}
    nodes: dict[str, None] = {}
    steps: list[int] = []
    for event in source:
        record = event.record
        if isinstance(record, Header):
            continue
        actors.update(dict.fromkeys(filter(None, actors_of(record))))
        kinds.update(dict.fromkeys(filter(None, kinds_of(record))))
        if event.step is not None:
            steps = [min(steps[0], event.step), event.step] if steps else [event.step] * 2
        if chosen.request is None and chosen.node is None:
            continue
        for data in data_of(record):
            requests.update(dict.fromkeys(_named(data, ("request", "rid"), str)))
            nodes.update(dict.fromkeys(map(str, _named(data, ("node",), int))))
    if chosen.kind is not None and chosen.kind.lower() not in {one.lower() for one in kinds}:
        raise _absent("--kind", chosen.kind, kinds)
    if chosen.actor is not None and chosen.actor not in actors:
        raise _absent("--actor", chosen.actor, actors)
    if chosen.request is not None and chosen.request not in requests:
        raise _absent("--request", chosen.request, requests)
    if chosen.node is not None and str(chosen.node) not in nodes:
        raise _absent("--node", str(chosen.node), sorted(nodes, key=int), asks=False)
    for option, step in (("--from", chosen.first), ("--to", chosen.last)):
        if step is not None and not (steps and steps[0] <= step <= steps[1]):
            there = f"; its steps are {steps[0]} to {steps[1]}" if steps else "; it has none"
            raise typer.BadParameter(f"the journal has no step {step}{there}", param_hint=option)


def _absent(option: str, wrong: str, there: Iterable[str], asks: bool = True) -> typer.BadParameter:
    known = [*there]
    listed = ", ".join(known[:TOLD]) + (f", ... ({len(known)})" if len(known) > TOLD else "")
    hint = did_you_mean(wrong, known) if asks else ""
    return typer.BadParameter(
        f"the journal has no {wrong!r}{hint}; it has {listed or 'none at all'}", param_hint=option
    )


def _named(data: Any, keys: tuple[str, ...], kind: type) -> Iterator[Any]:
    """Yield what plain data says under any of `keys`, however deep."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key in keys and isinstance(value, kind) and not isinstance(value, bool):
                yield value
            else:
                yield from _named(value, keys, kind)
    elif isinstance(data, list):
        for one in data:
            yield from _named(one, keys, kind)


__all__ = ("explain",)
