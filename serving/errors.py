"""Errors of the reference engine, beside those of the cache in :mod:`radixtide.configs.errors`."""

from __future__ import annotations

from radixtide.configs.errors import ConfigError, InvalidInput, RadixtideError


class Overloaded(RadixtideError):
    """As many requests wait as may (``queue_max``); nothing was begun, so try again later."""


class EngineFailed(RadixtideError):
    """The engine is not open, was closed, or its scheduler failed; says which."""


class GenerationFailed(RadixtideError):
    """A request could not be served to its end, however often it was tried; says why."""


class ModelUnusable(ConfigError):
    """A model can not be served: not found, its package missing, or its layers not known here."""


class InvalidRow(InvalidInput):
    """A row of a forward pass contradicts itself, the model or the pools; nothing was computed."""
