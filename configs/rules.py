"""What the values of a config must be together.

Types and ranges of single keys are the schema's business; this file knows the combinations that can
not work and says which key to change.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from radixtide.configs.reading import config_error, did_you_mean, find_problems
from radixtide.configs.schema import CacheConfig, KvGeometry
from radixtide.configs.tier_rules import tier_problems

POLICIES: Final = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru")
"""Eviction policies that are built in."""

COMPONENTS: Final = ("full", "swa", "mamba")
"""Components that are built in, in the order in which a config lists them."""

_DEVICE: Final = re.compile(r"[a-z][a-z0-9_]*(:(0|[1-9][0-9]*))?")
_OF_MHA: Final = {"kv_heads": 1, "head_dim": 64}
_OF_MLA: Final = {"latent_dim": 576}


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
        *_section_problems(config),
        *_size_problems(config),
        *_window_problems(config),
        *_state_problems(config),
        *_pool_problems(config),
        *_policy_problems(config, policies),
        *tier_problems(config),
    ]
    if problems:
        raise config_error(source, problems)
    return config


def _component_problems(config: CacheConfig, plugins: Collection[str]) -> Iterable[str]:
    names = config.components
    known = tuple(dict.fromkeys((*COMPONENTS, *plugins)))
    if not names or names[0] != "full":
        yield 'components: the first must be "full"; it carries the tree'
    for index, name in enumerate(names):
        if name in names[:index]:
            yield f'components[{index}]: "{name}" is listed twice; remove one'
        if name not in known:
            yield (
                f'components[{index}]: no component is named "{name}"{did_you_mean(name, known)}; '
                f"known: {', '.join(known)}; one of your own must be registered first"
            )
    right = sorted(names, key=lambda name: (*COMPONENTS, name).index(name))
    if list(names) != right and names[0] == "full":
        wanted = ", ".join(f'"{name}"' for name in right)
        yield (
            f"components: full comes first, then swa, then mamba, then those of plug-ins; "
            f"write [{wanted}]"
        )


def _section_problems(config: CacheConfig) -> Iterable[str]:
    """Each component has its section, and each section its component."""
    names = config.components
    for name in COMPONENTS[1:]:
        there = getattr(config.pools, name) is not None
        if there and name not in names:
            yield (
                f'pools.{name}: "{name}" is not in components; remove this section, or add '
                f'"{name}" to components'
            )
        elif name in names and not there:
            yield f'pools.{name}: missing; the component "{name}" needs a pool with a size'
    for name in config.plugins:
        if name in COMPONENTS:
            yield (
                f'plugins.{name}: "{name}" is built in and no plug-in; its section is '
                f"[pools.{name}]"
            )
        elif name not in names:
            hint = did_you_mean(name, names[1:])
            yield (
                f'plugins.{name}: "{name}" is not in components{hint}; remove this section, or '
                f'add "{name}" to components'
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


def _window_problems(config: CacheConfig) -> Iterable[str]:
    names, window, page = config.components, config.window, config.page_size
    if window is None:
        if "swa" in names:
            yield 'window: missing; the component "swa" needs the model\'s sliding window in tokens'
        return
    if not [name for name in names if name not in ("full", "mamba")]:
        yield "window: no component here has a sliding window; remove it, or add one that does"
    pool = config.pools.swa
    if "swa" not in names or pool is None:
        return
    whole = -(-window // page) * page
    if pool.size // page * page < whole:
        yield (
            f"pools.swa.size: {pool.size} slots are {pool.size // page} whole pages of {page}, "
            f"which do not hold one window of {window} tokens; make the pool at least {whole}"
        )


def _state_problems(config: CacheConfig) -> Iterable[str]:
    if "mamba" not in config.components:
        return
    if config.bigram:
        yield (
            "bigram: true does not go with mamba: a state belongs to a token, not to a pair; "
            "set bigram to false or remove mamba"
        )
    pool = config.pools.mamba
    if pool is None:
        return
    if not pool.extra_buffer and config.page_size != 1:
        yield (
            f"page_size: {config.page_size} does not go with pools.mamba.extra_buffer = false: a "
            "request then has the state at its last token only, which seldom ends a page; set "
            "page_size to 1, or extra_buffer to true"
        )
    for name in ("conv_shape", "ssm_shape"):
        if not getattr(pool, name):
            yield f"pools.mamba.{name}: empty; name the tensor's size in each dimension"


def _pool_problems(config: CacheConfig) -> Iterable[str]:
    for name in COMPONENTS:
        pool = getattr(config.pools, name)
        if isinstance(pool, KvGeometry):
            unused = _OF_MLA if pool.kind == "mha" else _OF_MHA
            for key, default in unused.items():
                if getattr(pool, key) != default:
                    yield f'pools.{name}.{key}: has no meaning with kind = "{pool.kind}"; remove it'
        if pool is not None:
            yield from _device_problems(f"pools.{name}.device", pool.device)


def _device_problems(path: str, device: str) -> Iterable[str]:
    if not _DEVICE.fullmatch(device):
        yield (
            f'{path}: "{device}" is no device; write a kind and, where there are several, a '
            'number: "cpu", "cuda", "cuda:0"'
        )
    elif device.partition(":")[0] == "gpu":
        right = device.replace("gpu", "cuda")
        yield f'{path}: PyTorch knows no "gpu"; did you mean "{right}"?'


def _policy_problems(config: CacheConfig, plugins: Collection[str]) -> Iterable[str]:
    name, known = config.eviction.policy, (*POLICIES, *plugins)
    if name not in known:
        yield (
            f'eviction.policy: no policy is named "{name}"{did_you_mean(name, known)}; known: '
            f"{', '.join(known)}; one of your own must be registered first"
        )
