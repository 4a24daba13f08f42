"""A reference engine: an async scheduler and a model runner whose state lives in Radixtide's pools.

Small enough to read in an hour, and a model for integrations: how a scheduler admits, chunks,
decodes, retracts and aborts requests on the cache, and how a model reads and writes state by slot
indices. ``radixtide serve`` puts the OpenAI-compatible server of :mod:`radixtide.serving.http` in
front of it.
"""
