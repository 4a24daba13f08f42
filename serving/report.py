"""What became of one request: hits by tier, what was missed and why, and where time went."""

from __future__ import annotations

import msgspec


class Report(msgspec.Struct, kw_only=True):
    """One request, as it is now or as it ended. Times in seconds; None: not (yet) known.

    ``number``: counts up with the requests that ended; 0 for one that has not.
    ``state``: ``waiting``, ``prefill``, ``decode`` or ``ended``; ``finish_reason``: ``stop``,
    ``length``, ``abort`` or ``error``.
    ``cached_device``, ``cached_host``, ``cached_storage``: tokens of the prompt that were not
    computed, by the tier that had them (each token in one of them), in the attempt that brought the
    first token. ``computed_tokens``: tokens of the prompt that were computed, in all attempts;
    ``recomputed_tokens``: of prompt and answer, after the first token (after a retraction).
    ``miss_reason``: why no more of the prompt was cached, as the match said (a MissReason; what
    came from the host counts as cached); ``full_miss_reason``: where another kind of state cut the
    match, why that of full attention alone was not longer.
    ``retractions``: how often it gave its memory back and came again; ``retries``: how often it
    began anew after a failure.
    ``queue_s``: from its arrival to its first admission; ``ttft_s``: to its first token;
    ``total_s``: to its end, or until now; ``load_s``, ``fetch_s``: from the begin of a load or a
    fetch until its end was seen, waiting in the queue included.
    """

    rid: str
    prompt_tokens: int
    number: int = 0
    state: str = "waiting"
    finish_reason: str | None = None
    output_tokens: int = 0
    cached_device: int = 0
    cached_host: int = 0
    cached_storage: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    miss_reason: str | None = None
    full_miss_reason: str | None = None
    retractions: int = 0
    retries: int = 0
    queue_s: float | None = None
    ttft_s: float | None = None
    total_s: float = 0.0
    load_s: float | None = None
    fetch_s: float | None = None

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were cached, on any tier."""
        return self.cached_device + self.cached_host + self.cached_storage
