"""Sections that plug-ins own: ``[plugins.NAME]``.

The schema knows nothing of what is in them. A component of one's own reads its section into a
Struct of its own here, and a mistake in the file is told as any other is: by the path of its key.
"""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from typing import Final, TypeVar

import msgspec

from radixtide.configs.errors import ConfigError
from radixtide.configs.reading import config_error, did_you_mean
from radixtide.configs.schema import CacheConfig

S = TypeVar("S", bound=msgspec.Struct)

_MISSING: Final = re.compile(r"object missing required field `(?P<key>.*)`")
_PLACE: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)


def plugin_section(config: CacheConfig, name: str, kind: type[S]) -> S:
    """Return ``[plugins.NAME]`` of `config` as a Struct; without a section, its defaults.

    Strict: no type is made to fit, and a key that `kind` does not have is refused.

    Raises:
        ConfigError: names the key as ``plugins.NAME.key``, and what would be right.
    """
    table = config.plugins.get(name, {})
    path = f"plugins.{name}"
    fields = {field.encode_name for field in msgspec.structs.fields(kind)}
    unknown = [key for key in table if key not in fields]
    if unknown:
        known = ", ".join(sorted(fields)) or "none"
        raise config_error(
            "config",
            (
                f"{path}.{key}: unknown key" + (did_you_mean(key, fields) or f"; known: {known}")
                for key in unknown
            ),
        )
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        place = _PLACE.match(str(error))
        assert place is not None
        what = place["what"][:1].lower() + place["what"][1:]
        missing = _MISSING.fullmatch(what)
        if missing is not None:
            path += f"{place['path'] or ''}.{missing['key']}"
            raise ConfigError(f"config: {path}: missing; it has no default") from None
        raise ConfigError(f"config: {path}{place['path'] or ''}: {what}") from None


ENTRY_POINTS: Final = "radixtide.components"
"""The group under which a distribution offers components."""


def installed_components() -> tuple[str, ...]:
    """Return the names of the components that installed distributions offer; none is imported."""
    return tuple({point.name: None for point in entry_points(group=ENTRY_POINTS)})
