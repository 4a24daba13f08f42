"""Every limit of the engine, as data."""

from __future__ import annotations

from radixtide.configs.schema import NonNegative, Positive, Seconds, Section


class EngineConfig(Section, frozen=True, kw_only=True):
    """``[engine]``: how much the scheduler takes on at once, and how often it tries.

    ``max_running``: requests that hold memory at once. ``queue_max``: requests that wait for that;
    one more is refused with Overloaded.
    ``step_tokens``: tokens computed in one forward pass, of all requests together; one that decodes
    takes one. ``chunk_tokens``: tokens of one prompt in one pass.
    ``max_output_tokens``: longest answer, whatever a client asks for. ``logprobs_max``: most
    alternatives told for a token.
    ``overtakes_max``: how often a request that waits may be overtaken by one of its priority with
    more of its prompt in the cache. ``look_max``: so many of those that wait are looked up in the
    cache before one of them is chosen.
    ``reserve_tokens``: slots left free for each running request when another one is admitted.
    ``layerwise_loads``: a request whose load from the host goes on may start all the same while
    nothing else can be computed, and waits for it layer by layer; false: for its end.
    ``retries_max``: failures in a row, without a token between them, after which a request ends
    with an error; ``retry_pause_s``: pause before it is tried again, longer each time.
    ``release_tries_max``: how often a request's end is told to a cache that does not
    answer; ``release_pause_s``: pause between two of these.
    ``starve_max_s``: how long a request that runs alone waits for slots that pins, copies or others
    hold, before that counts as a failure.
    ``poll_s``: how long the scheduler waits before it looks again for room that nobody tells of (a
    pin that ends, a copy that is over).
    ``reports_max``: reports of ended requests that are kept. ``events_max``: events that wait for a
    slow subscriber before the oldest is dropped. ``subscribers_max``: subscriptions at once.
    """

    max_running: Positive = 64
    queue_max: NonNegative = 256
    step_tokens: Positive = 1024
    chunk_tokens: Positive = 512
    max_output_tokens: Positive = 4096
    logprobs_max: NonNegative = 20
    overtakes_max: NonNegative = 16
    look_max: Positive = 32
    reserve_tokens: NonNegative = 16
    layerwise_loads: bool = True
    retries_max: NonNegative = 4
    retry_pause_s: Seconds = 0.01
    release_tries_max: Positive = 50
    release_pause_s: Seconds = 0.05
    starve_max_s: Seconds = 5.0
    poll_s: Seconds = 0.02
    reports_max: Positive = 256
    events_max: Positive = 1024
    subscribers_max: Positive = 64
