"""Walks that fail, repeated with fewer and fewer steps.

The note of a failure ends with one line of Python that repeats the shortest walk that was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from support.oracle_setup import HybridSetup
from support.oracle_walk import OracleWalk
from support.shrinking import shrunk


def replay(setup: HybridSetup, seed: int, numbers: Iterable[int], longest: int = 6) -> list[str]:
    """Take the steps of these numbers, give everything back, and return the answers."""
    walk = OracleWalk(setup, seed, longest)
    walk.run(numbers)
    walk.close()
    return walk.steps.transcript


def shortest(
    setup: HybridSetup,
    seed: int,
    numbers: Sequence[int],
    longest: int,
    seconds: float,
    kind: type[Exception],
) -> list[int]:
    """Return as few of `numbers` as can be found in `seconds` that still fail with a `kind`."""

    def fails(some: Sequence[int]) -> bool:
        try:
            replay(setup, seed, some, longest)
        except kind:
            return True
        except Exception:  # noqa: BLE001 - another failure is looked for
            return False
        return False

    return shrunk(numbers, fails, seconds)


def walk(
    setup: HybridSetup, seed: int, steps: int, longest: int = 6, shrink: float = 15
) -> list[str]:
    """Walk `steps` steps; a failure's note ends with the shortest walk that was found to fail."""
    made = OracleWalk(setup, seed, longest)
    try:
        made.run(range(steps))
        made.close()
    except Exception as error:
        told = next(
            note for note in reversed(error.__notes__) if ", step " in note or "the end" in note
        )
        last = steps if "the end" in told else int(told.split(", step ")[1].split(" ")[0]) + 1
        numbers = shortest(setup, seed, range(last), longest, shrink, type(error))
        error.add_note(f"replay({setup}, {seed}, {numbers}, {longest})")
        raise
    return made.steps.transcript
