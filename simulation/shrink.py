"""Make a failing case small: fewer steps, schedulers and faults, and a plainer setup.

Every part of a case is plain data, and any subsequence of a script is a script, so a smaller case
is made by leaving something out and running what is left. What still fails in the same way is kept.
Two things decide whether that ends with something a person can read: the order (what makes runs
short comes first), and what *the same way* means (:func:`kinds_of`): without it a search slips from
the failure at hand to another one that is easier to reach.

Nothing here looks at a clock: the caller says when the time is over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any, Final, TypeVar

import msgspec

from radixtide.simulation.case import Case
from radixtide.simulation.plan import Fault, FaultPlan
from radixtide.simulation.script import AnyStep, Script
from radixtide.simulation.setup import SETS, TIERS, Setup

ItemT = TypeVar("ItemT")

SKIPS_MAX: Final = 24
"""How many places are tried for a fault that is to happen exactly once."""

NEAR_STEPS: Final = 12
"""Of so many steps a run is short enough to be tried with its faults at other places, too."""

ROUNDS_MAX: Final = 8
"""A later round rarely gains anything; this bounds what a flaky predicate can cost."""

_PLACE: Final = re.compile(r"^\W*(?:(?:step|scheduler|rank)\b\W*)+", re.IGNORECASE)
_DETAIL: Final = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\[[^\]]*\]|\([^)]*\)|[-+]?\d[\d.,_e]*")


def kind_of(violation: str) -> str:
    """Return what is left of a violation without places, numbers and quoted or bracketed parts.

    Two runs that break the same promise differ in which slot, node or length breaks it.
    """
    line = violation.strip().partition("\n")[0]
    return " ".join(_PLACE.sub("", _DETAIL.sub("", line)).split())


def kinds_of(violations: Iterable[str]) -> frozenset[str]:
    """Return the kinds of all violations."""
    return frozenset(map(kind_of, violations))


def fewest(
    items: Sequence[ItemT],
    still_fails: Callable[[tuple[ItemT, ...]], bool],
    stop: Callable[[], bool] = lambda: False,
) -> tuple[ItemT, ...]:
    """Return a subsequence of `items` with which it still fails, and of which none can be left out.

    Delta debugging with halving chunks, from the end to the start: what comes late in a script is
    needed least often. About ``2 n`` runs where nothing can be left out, ``k log n`` where `k` of
    `n` items matter. `stop` ends the search early, with what was found until then.
    """
    kept = tuple(items)
    if kept and not stop() and still_fails(()):
        return ()
    size = max(1, len(kept) // 2)
    while kept:
        before = len(kept)
        end = before
        while end > 0:
            if stop():
                return kept
            start = max(0, end - size)
            # All of it was tried above, before anything else.
            if end - start < len(kept):
                fewer = kept[:start] + kept[end:]
                if still_fails(fewer):
                    kept = fewer
            end = start
        if size > 1:
            size //= 2
        elif len(kept) == before:
            break
    return kept


class Shrinker:
    """The search for a small case that still fails; :meth:`run` does all of it.

    `fails(case)` runs a case and says whether it fails in the way that matters; `stop()` says that
    the time is over; `told(case, runs)` is called with each smaller case that fails. A case that
    can not be (a setup that is no configuration) must count as one that does not fail.

    `happened()` returns, of the last run that failed, the plan that does the same without chance,
    or None where that is not known. Faults that are named by what they hit stay where they are
    while steps are left out; those that happen by chance, or at the nth message, hit another.
    """

    def __init__(
        self,
        case: Case,
        fails: Callable[[Case], bool],
        *,
        stop: Callable[[], bool] = lambda: False,
        told: Callable[[Case, int], None] = lambda _case, _runs: None,
        happened: Callable[[], FaultPlan | None] = lambda: None,
    ) -> None:
        self.case = case
        self.runs = 0
        self._happened = happened
        self._fails = fails
        self._stop = stop
        self._told = told
        self._seen: set[bytes] = set()

    def run(self) -> Case:
        """Return the smallest case that was found; the given one where nothing smaller fails."""
        self._cut()
        for _ in range(ROUNDS_MAX):
            before = self.case
            self._fewer_faults()
            self._named_faults()
            self._fewer_schedulers()
            self._plainer_setup()
            self._fewer_steps()
            self._faults_once()
            self._plainer_steps()
            if self._stop() or self.case == before:
                break
        return self.case

    def _try(self, case: Case) -> bool:
        """Take `case` where it fails. Nothing is run twice."""
        if case == self.case or self._stop():
            return False
        made = msgspec.json.encode(case)
        if made in self._seen:
            return False
        self._seen.add(made)
        self.runs += 1
        if not self._fails(case):
            return False
        self.case = case
        self._told(case, self.runs)
        return True

    def _with(self, **parts: Any) -> Case:
        return msgspec.structs.replace(self.case, **parts)

    def _try_near(self, case: Case) -> bool:
        """Take `case` where it fails, be it with a fault that comes earlier than it did.

        What is left out sent messages, too: the one that a fault must hit has another number now.
        """
        if self._try(case):
            return True
        if case.steps > NEAR_STEPS:
            return False
        for index, fault in enumerate(case.plan.faults):
            if _is_named(fault):
                for skip in range(fault.skip - 1, max(-1, fault.skip - 1 - SKIPS_MAX), -1):
                    earlier = msgspec.structs.replace(fault, skip=skip)
                    if self._try(_with_fault(case, index, earlier)):
                        return True
        return False

    def _cut(self) -> None:
        """Keep the first steps of each script: 1, 2, 4, ..., as few as fail.

        All runs before the one that fails are shorter than it, so together they cost no more.
        """
        longest = max(map(len, self.case.scripts), default=0)
        length = 1
        while length < longest:
            cut = tuple(script[:length] for script in self.case.scripts)
            if self._try(self._with(scripts=cut)):
                return
            length *= 2

    def _fewer_faults(self) -> None:
        plan = self.case.plan
        fewest(
            plan.faults,
            lambda faults: self._try(self._with(plan=_plan_of(plan, faults))),
            self._stop,
        )

    def _named_faults(self) -> None:
        """Take the faults that happened, each named by what it hit, for those of the plan."""
        if any(not _is_named(fault) for fault in self.case.plan.faults):
            plan = self._happened()
            if plan is not None and self._try(self._with(plan=plan)):
                self._fewer_faults()

    def _fewer_schedulers(self) -> None:
        """Leave out whole scripts, then put all that is left into one."""
        scripts = self.case.scripts
        fewest(
            scripts,
            lambda kept: self._try_near(self._with_scripts(kept)),
            self._stop,
        )
        scripts = self.case.scripts
        if len(scripts) > 1:
            in_turn = (step for row in zip_longest(*scripts) for step in row if step is not None)
            if not self._try_near(self._with_scripts((tuple(in_turn),))):
                self._try_near(self._with_scripts((tuple(chain.from_iterable(scripts)),)))

    def _with_scripts(self, scripts: tuple[Script, ...]) -> Case:
        """Return the case with as many schedulers as there are scripts."""
        scripts = scripts or ((),)
        setup = msgspec.structs.replace(self.case.setup, schedulers=len(scripts))
        return self._with(scripts=scripts, setup=setup)

    def _plainer_setup(self) -> None:
        for field in Setup.__struct_fields__:
            for value in _plainer(self.case.setup, field):
                setup = msgspec.structs.replace(self.case.setup, **{field: value})
                if self._try_near(self._with(setup=setup)):
                    break

    def _fewer_steps(self) -> None:
        places = [
            (index, step) for index, script in enumerate(self.case.scripts) for step in script
        ]
        count = len(self.case.scripts)

        def fails(kept: tuple[tuple[int, AnyStep], ...]) -> bool:
            scripts = tuple(
                tuple(step for index, step in kept if index == which) for which in range(count)
            )
            return self._try_near(self._with(scripts=scripts))

        fewest(places, fails, self._stop)

    def _faults_once(self) -> None:
        """Let a fault that happens by chance happen once, at a place that is named."""
        for index, fault in enumerate(self.case.plan.faults):
            for skip in range(min(fault.skip, SKIPS_MAX) if _is_named(fault) else SKIPS_MAX):
                once = msgspec.structs.replace(fault, probability=1.0, count=1, skip=skip)
                if self._try(_with_fault(self.case, index, once)):
                    break

    def _plainer_steps(self) -> None:
        """Make the numbers of the steps small, the flags false, and what may be left out absent."""
        for which, script in enumerate(self.case.scripts):
            for at in range(len(script)):
                for field in script[at].__struct_fields__:
                    while self._plainer_step(which, at, field):
                        pass

    def _plainer_step(self, which: int, at: int, field: str) -> bool:
        """Make one field of one step simpler; whether it became so."""
        step = self.case.scripts[which][at]
        return any(
            self._try_near(self._with_step(which, at, field, value))
            for value in _plainer(step, field)
        )

    def _with_step(self, which: int, at: int, field: str, value: object) -> Case:
        scripts = self.case.scripts
        script = scripts[which]
        step = msgspec.structs.replace(script[at], **{field: value})
        changed = (*script[:at], step, *script[at + 1 :])
        return self._with(scripts=(*scripts[:which], changed, *scripts[which + 1 :]))


def shrink(
    case: Case,
    fails: Callable[[Case], bool],
    *,
    stop: Callable[[], bool] = lambda: False,
    told: Callable[[Case, int], None] = lambda _case, _runs: None,
    happened: Callable[[], FaultPlan | None] = lambda: None,
) -> Case:
    """Return a small case that still `fails`, as :class:`Shrinker` finds it."""
    return Shrinker(case, fails, stop=stop, told=told, happened=happened).run()


def _is_named(fault: Fault) -> bool:
    """Return whether a fault happens once, and not by chance."""
    return fault.count == 1 and fault.probability >= 1.0


def _with_fault(case: Case, index: int, fault: Fault) -> Case:
    """Return the case with another fault in the place of one of its plan."""
    faults = case.plan.faults
    plan = _plan_of(case.plan, (*faults[:index], fault, *faults[index + 1 :]))
    return msgspec.structs.replace(case, plan=plan)


def _plan_of(plan: FaultPlan, faults: tuple[Fault, ...]) -> FaultPlan:
    """Return a plan of fewer or other faults: it is no longer the one that had the name."""
    if not faults:
        return FaultPlan.none()
    return msgspec.structs.replace(plan, faults=faults, name="plan")


def _plainer(struct: msgspec.Struct, field: str) -> Iterator[object]:
    """Yield simpler values of one field, the simplest first: its default, then smaller ones."""
    value = getattr(struct, field)
    if field == "schedulers":
        return  # as many as there are scripts
    default = _default_of(type(struct), field)
    if default is not msgspec.NODEFAULT and default != value:
        yield default
    if isinstance(value, msgspec.Struct):
        yield type(value)()
        for inner in value.__struct_fields__:
            for simpler in _plainer(value, inner):
                yield msgspec.structs.replace(value, **{inner: simpler})
    elif field == "components":
        yield from (one for one in SETS if set(one) < set(value))
    elif field == "tiers":
        yield from TIERS[: TIERS.index(value)]
    elif isinstance(value, int) and not isinstance(struct, Setup):
        smaller = dict.fromkeys((0, 1, value // 2, value - 1))
        yield from (number for number in smaller if 0 <= number < value and number != default)


def _default_of(kind: type[msgspec.Struct], field: str) -> Any:
    """Return the default of a field, or ``msgspec.NODEFAULT``."""
    for known in msgspec.structs.fields(kind):
        if known.name == field:
            if known.default_factory is not msgspec.NODEFAULT:
                return known.default_factory()
            return known.default
    raise AssertionError(f"{kind.__name__} has no field {field}")


__all__ = ("Shrinker", "fewest", "kind_of", "kinds_of", "shrink")
