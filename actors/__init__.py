"""Actors: the runtime, the coordinator, the component actors, and the cache's face."""

from radixtide.actors.cache import UnifiedRadixCache as UnifiedRadixCache
from radixtide.actors.envelope import Envelope as Envelope
from radixtide.actors.envelope import Interceptor as Interceptor
from radixtide.actors.envelope import PassThrough as PassThrough

__all__ = ("Envelope", "Interceptor", "PassThrough", "UnifiedRadixCache")
