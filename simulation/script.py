"""Scripts as data: what a simulated scheduler does, step by step.

Every parameter is a small whole number that is taken modulo what there is when the step runs, so
any part of a script is a script, and a script can be made shorter at will. A step that finds
nothing to do does nothing.

Names of parameters that come again and again: ``which`` chooses among what the scheduler has of
that kind; ``patience``: 0 waits as long as the configuration says, n waits n ms of virtual time.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Prompt(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """Which tokens a step is about.

    A *family* is an endless text that many prompts begin with. A prompt takes `shared` pages of
    its family, `own` pages of the branch that it is of, and `tail` tokens, in namespace `space`.
    ``again`` above 0 names one that was cached lately instead, of which ``shared`` then says how
    much is kept: 0 all, 1 a whole number of pages, 2 any part; ``own`` pages of a branch follow.
    """

    family: int = 0
    shared: int = 0
    branch: int = 0
    own: int = 0
    tail: int = 0
    space: int = 0
    again: int = 0


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="step"):
    """One thing that a scheduler does."""

    @property
    def name(self) -> str:
        """The step's name in journals and reports."""
        return str(self.__struct_config__.tag)


# -- without a request -------------------------------------------------------------------------


class Match(Step, frozen=True, kw_only=True, omit_defaults=True, tag="match"):
    """Match a prompt; ``lock`` odd: keep it locked."""

    prompt: Prompt
    lock: int = 0
    patience: int = 0


class Insert(Step, frozen=True, kw_only=True, omit_defaults=True, tag="insert"):
    """Allocate for a prompt, compute it and give it to the tree.

    ``below`` odd: lock what is cached, and insert below that. ``window``: 0 has window slots for
    all, n for n - 1 pages at the end. ``state`` odd: with a state at its end. ``evicted``: says
    that the window slots of n - 1 pages were given back. ``ready``: ms after which the device has
    written it (0: before the call).
    """

    prompt: Prompt
    below: int = 0
    window: int = 0
    state: int = 0
    evicted: int = 0
    priority: int = 0
    ready: int = 0
    patience: int = 0


class Allocate(Step, frozen=True, kw_only=True, omit_defaults=True, tag="allocate"):
    """Take slots for nobody: ``tokens`` of Full, ``states``; ``window`` as in Insert."""

    tokens: int = 1
    window: int = 0
    states: int = 0
    patience: int = 0


class Free(Step, frozen=True, kw_only=True, omit_defaults=True, tag="free"):
    """Give back ``count`` of the pages (``what`` 0), states (1) or window pages (2) that are loose.

    ``after``: ms until nothing reads them any more.
    """

    which: int = 0
    count: int = 1
    what: int = 0
    after: int = 0


class Evict(Step, frozen=True, kw_only=True, omit_defaults=True, tag="evict"):
    """Evict so many pages of Full and of the window's pool, and states; all of them from 30 on."""

    full: int = 0
    window: int = 0
    states: int = 0


class Lock(Step, frozen=True, kw_only=True, omit_defaults=True, tag="lock"):
    """Lock one of the last nodes, stale or not."""

    which: int = 0
    patience: int = 0


class Unlock(Step, frozen=True, kw_only=True, omit_defaults=True, tag="unlock"):
    """Release a lock."""

    which: int = 0


class DropWindow(Step, frozen=True, kw_only=True, omit_defaults=True, tag="drop_window"):
    """Give up the window of a lock: a request's where ``request`` is odd."""

    which: int = 0
    request: int = 0


class Hold(Step, frozen=True, kw_only=True, omit_defaults=True, tag="hold"):
    """Match, and hold it for ``pause`` ms in a block; ``leave`` odd: the block is cancelled."""

    prompt: Prompt
    pause: int = 0
    leave: int = 0


class Indices(Step, frozen=True, kw_only=True, omit_defaults=True, tag="indices"):
    """Ask for the device indices of one of the last nodes, in one of the components."""

    which: int = 0
    component: int = 0


class Paired(Step, frozen=True, kw_only=True, omit_defaults=True, tag="paired"):
    """Ask for the window slots of loose pages."""

    which: int = 0


class Pin(Step, frozen=True, kw_only=True, omit_defaults=True, tag="pin"):
    """Pin a prompt for ``ttl`` ms."""

    prompt: Prompt
    ttl: int = 10


class Unpin(Step, frozen=True, kw_only=True, omit_defaults=True, tag="unpin"):
    """Let a pinned prompt go."""

    which: int = 0


# -- requests ----------------------------------------------------------------------------------


class Start(Step, frozen=True, kw_only=True, omit_defaults=True, tag="start"):
    """Admit a request: fetch (``fetch`` odd), match, load (``load`` odd), allocate.

    The prompt of one that fetches is chosen as in Prefetch.
    ``row``: 0 without a row, 1 with one, 2 with one that the scheduler writes, having allocated for
    nobody. ``cow`` odd: with a private copy of the state.
    ``lazy`` odd: allocate later, in a step Extend. ``waiting`` odd: one that was retracted comes
    first, where there is one.
    """

    prompt: Prompt
    row: int = 1
    cow: int = 1
    fetch: int = 0
    load: int = 1
    lazy: int = 0
    priority: int = 0
    waiting: int = 0
    patience: int = 0


class Extend(Step, frozen=True, kw_only=True, omit_defaults=True, tag="extend"):
    """Decode ``tokens`` tokens: allocate for them and what is missing, and compute.

    ``part`` above 0: allocate for so many at most. ``window`` as in Insert, 0 for all.
    """

    which: int = 0
    tokens: int = 1
    part: int = 0
    window: int = 0
    letter: int = 0
    patience: int = 0


class Chunk(Step, frozen=True, kw_only=True, omit_defaults=True, tag="chunk"):
    """Cache what a request has computed but for ``short`` tokens; ``insert`` even: leave the tree.

    ``ready`` as in Insert.
    """

    which: int = 0
    short: int = 0
    insert: int = 1
    ready: int = 0
    patience: int = 0


class Finish(Step, frozen=True, kw_only=True, omit_defaults=True, tag="finish"):
    """Finish a request; parameters as in Chunk."""

    which: int = 0
    short: int = 0
    insert: int = 1
    ready: int = 0
    patience: int = 0


class Abort(Step, frozen=True, kw_only=True, omit_defaults=True, tag="abort"):
    """Abort a request; ``again`` odd: once more afterwards. ``after`` as in Free."""

    which: int = 0
    again: int = 0
    after: int = 0


class Retract(Step, frozen=True, kw_only=True, omit_defaults=True, tag="retract"):
    """Take a request back to the queue: abort it, and start it again later."""

    which: int = 0


class ReleaseWindow(Step, frozen=True, kw_only=True, omit_defaults=True, tag="release_window"):
    """Give back the window slots that a request has left behind."""

    which: int = 0


# -- tiers -------------------------------------------------------------------------------------


class LoadBack(Step, frozen=True, kw_only=True, omit_defaults=True, tag="load_back"):
    """Match, and load what the host has.

    ``way``: 0 wait for all, 1 look at the layers as they come, 2 close at once, 3 keep it and go
    on, 4 wait and keep it. ``twice`` odd: make the load twice.
    """

    prompt: Prompt
    way: int = 0
    twice: int = 0
    patience: int = 0


class CloseLoad(Step, frozen=True, kw_only=True, omit_defaults=True, tag="close_load"):
    """Close a load that was kept; ``wait`` odd: wait for it first."""

    which: int = 0
    wait: int = 0


class Prefetch(Step, frozen=True, kw_only=True, omit_defaults=True, tag="prefetch"):
    """Fetch a prompt from storage. ``way``: 0 wait, 1 close at once, 2 keep it and go on.

    A prompt that is to come again is one of which the storage has what the cache has not, if there
    is one. ``deep`` odd: where there is none, all that can go off device and host goes first.
    """

    prompt: Prompt
    way: int = 0
    deep: int = 0
    patience: int = 0


class CloseFetch(Step, frozen=True, kw_only=True, omit_defaults=True, tag="close_fetch"):
    """Close a fetch that was kept; ``wait`` odd: wait for it first."""

    which: int = 0
    wait: int = 0


class Drain(Step, frozen=True, kw_only=True, omit_defaults=True, tag="drain"):
    """Wait until nothing moves."""

    patience: int = 0


class Flush(Step, frozen=True, kw_only=True, omit_defaults=True, tag="flush"):
    """Drop what is on a tier: 0 device, 1 host, 2 storage. ``wait``: ms."""

    tier: int = 0
    wait: int = 0


class Sink(Step, frozen=True, kw_only=True, omit_defaults=True, tag="sink"):
    """Let all that can go off the device, and for ``deep`` odd off the host, too."""

    deep: int = 0


class Detach(Step, frozen=True, kw_only=True, omit_defaults=True, tag="detach"):
    """Use no storage any more."""


class Attach(Step, frozen=True, kw_only=True, omit_defaults=True, tag="attach"):
    """Use a storage: what is on the disk is found again, but for ``fresh`` odd, an empty one.

    ``weights`` odd: in the place of another, if there is one, and with other weights, for which
    nothing is there.
    """

    fresh: int = 0
    weights: int = 0


# -- the whole cache -----------------------------------------------------------------------------


class Reset(Step, frozen=True, kw_only=True, omit_defaults=True, tag="reset"):
    """Drop everything; ``clean`` odd: after giving back what this scheduler has. ``wait``: ms."""

    clean: int = 0
    wait: int = 0


class Stats(Step, frozen=True, kw_only=True, omit_defaults=True, tag="stats"):
    """Read the statistics, audit by the call (``audit`` odd) and print the tree (``tree`` odd)."""

    audit: int = 0
    tree: int = 0


class Agree(Step, frozen=True, kw_only=True, omit_defaults=True, tag="agree"):
    """Let take effect what all ranks have seen."""


class Pause(Step, frozen=True, kw_only=True, omit_defaults=True, tag="pause"):
    """Do nothing for ``ms`` of virtual time."""

    ms: int = 1


class Restart(Step, frozen=True, kw_only=True, omit_defaults=True, tag="restart"):
    """Close the cache and open another on the same disk; ``hard`` odd: as if it was killed."""

    hard: int = 0


class Hostile(Step, frozen=True, kw_only=True, omit_defaults=True, tag="hostile"):
    """Make a call that is wrong: a typed error, and nothing has changed. ``kind`` names which."""

    kind: int = 0
    which: int = 0


AnyStep: TypeAlias = (
    Match
    | Insert
    | Allocate
    | Free
    | Evict
    | Lock
    | Unlock
    | DropWindow
    | Hold
    | Indices
    | Paired
    | Pin
    | Unpin
    | Start
    | Extend
    | Chunk
    | Finish
    | Abort
    | Retract
    | ReleaseWindow
    | LoadBack
    | CloseLoad
    | Prefetch
    | CloseFetch
    | Drain
    | Flush
    | Sink
    | Detach
    | Attach
    | Reset
    | Stats
    | Agree
    | Pause
    | Restart
    | Hostile
)
"""Any step: a union that msgspec can tell apart by its tag."""

Script: TypeAlias = tuple[AnyStep, ...]
"""What one scheduler does."""
