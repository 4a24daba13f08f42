"""What the values of a config must be together.

Types and ranges of single keys are the schema's business; this file knows the combinations that can
not work and says which key to change.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from radixtide.configs.reading import config_error, did_you_mean, find_problems
from radixtide.configs.schema import CacheConfig

POLICIES: Final = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru")
"""Eviction policies that are built in."""

COMPONENTS: Final = ("full",)
"""Components that are built in and work."""

NOT_YET: Final = ("swa", "mamba")
"""Components that have a name and a place in the design, but no code in this version."""

_DEVICE: Final = re.compile(r"[a-z][a-z0-9_]*(:(0|[1-9][0-9]*))?")
_FULL_MHA: Final = {"kv_heads": 1, "head_dim": 64}
_FULL_MLA: Final = {"latent_dim": 576}


def validate(
    config: CacheConfig,
    *,
    policies: Collection[str] = (),
    components: Collection[str] = (),
    source: str = "config",
) -> CacheConfig:
    """Return `config` unchanged, or raise :class:`ConfigError` with all that is impossible in it.

    `policies` and `components` are names that plug-ins registered. `source` names the file (or
    whatever the config came from) in the message.
    """
    problems = find_problems(config) or [
        *_component_problems(config, components),
        *_size_problems(config),
        *_pool_problems(config),
        *_policy_problems(config, policies),
    ]
    if problems:
        raise config_error(source, problems)
    return config


def _component_problems(config: CacheConfig, plugins: Collection[str]) -> Iterable[str]:
    names = config.components
    known = (*COMPONENTS, *plugins)
    if not names or names[0] != "full":
        yield 'components: the first must be "full"; it carries the tree'
    for index, name in enumerate(names):
        if name in names[:index]:
            yield f'components[{index}]: "{name}" is listed twice; remove one'
        if name in known:
            continue
        if name in NOT_YET:
            yield (
                f'components[{index}]: "{name}" is not available in this version, which has '
                f"{', '.join(known)}; remove it"
            )
        else:
            hint = did_you_mean(name, (*known, *NOT_YET))
            yield (
                f'components[{index}]: no component is named "{name}"{hint}; known: '
                f"{', '.join(known)}; one of your own must be registered first"
            )
    windowed = [name for name in names if name not in ("full", "mamba")]
    if config.window is not None and not windowed:
        yield "window: no component here has a sliding window; remove it, or add one that does"
    if "swa" in names and config.window is None:
        yield 'window: missing; the component "swa" needs the model\'s sliding window in tokens'
    if config.bigram and "mamba" in names:
        yield (
            "bigram: true does not go with mamba: a state belongs to a token, not to a pair; "
            "set bigram to false or remove mamba"
        )


def _size_problems(config: CacheConfig) -> Iterable[str]:
    page, size = config.page_size, config.pools.full.size
    if page > size:
        yield (
            f"pools.full.size: {size} is less than one page (page_size is {page}); "
            f"make the pool at least {page}, or the page smaller"
        )
    elif config.pins.budget > size // page * page:
        yield (
            f"pins.budget: {config.pins.budget} is more than the {size // page * page} slots of "
            "pools.full; pins could keep the whole pool from eviction"
        )
    if page > config.pools.requests.max_context:
        yield (
            f"pools.requests.max_context: {config.pools.requests.max_context} is less than one "
            f"page (page_size is {page}); a row must hold one page at least"
        )
    if page > config.limits.key_units_max:
        yield (
            f"limits.key_units_max: {config.limits.key_units_max} is less than one page "
            f"(page_size is {page}); no key could be stored"
        )


def _pool_problems(config: CacheConfig) -> Iterable[str]:
    pool = config.pools.full
    unused = _FULL_MLA if pool.kind == "mha" else _FULL_MHA
    for name, default in unused.items():
        if getattr(pool, name) != default:
            yield f'pools.full.{name}: has no meaning with kind = "{pool.kind}"; remove it'
    if not _DEVICE.fullmatch(pool.device):
        yield (
            f'pools.full.device: "{pool.device}" is no device; write a kind and, where there are '
            'several, a number: "cpu", "cuda", "cuda:0"'
        )
    elif pool.device.partition(":")[0] == "gpu":
        right = pool.device.replace("gpu", "cuda")
        yield f'pools.full.device: PyTorch knows no "gpu"; did you mean "{right}"?'


def _policy_problems(config: CacheConfig, plugins: Collection[str]) -> Iterable[str]:
    name, known = config.eviction.policy, (*POLICIES, *plugins)
    if name not in known:
        yield (
            f'eviction.policy: no policy is named "{name}"{did_you_mean(name, known)}; known: '
            f"{', '.join(known)}; one of your own must be registered first"
        )
