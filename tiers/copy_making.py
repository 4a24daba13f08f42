"""Which copy engine a cache gets."""

from __future__ import annotations

from radixtide.configs.errors import ConfigError
from radixtide.tiers.copy_engine import CopyEngine
from radixtide.tiers.copy_lanes import PoolPairs
from radixtide.tiers.copy_threads import ThreadCopyEngine


def make_engine(pools: PoolPairs, backend: str = "auto", verify: bool = True) -> CopyEngine:
    """Return an engine for `pools`: per pool its device tensors and the host memory behind them.

    `backend`: ``threads`` (pools on the CPU), ``cuda`` (pools on a CUDA device), or ``auto``, which
    looks where the pools are. `verify`: take digests on backups, compare them on loads.

    Raises:
        ConfigError: no such backend, or one that can not reach these pools.
        InvalidInput: as the engine's.
    """
    devices = {part.device for parts, _ in pools.values() for layer in parts for part in layer}
    kinds = {device.type for device in devices}
    wanted = {"threads": {"cpu"}, "cuda": {"cuda"}}
    if backend == "auto":
        backend = "cuda" if kinds == {"cuda"} else "threads"
    if backend not in wanted:
        raise ConfigError(f"host.backend must be auto, threads or cuda, not {backend!r}")
    if not kinds <= wanted[backend] or len(devices) > 1:
        places = ", ".join(sorted(str(device) for device in devices))
        raise ConfigError(
            f"host.backend {backend!r} can not copy pools on {places}: all pools must be on "
            + ("one CUDA device" if backend == "cuda" else "the CPU")
        )
    if backend == "cuda":
        # Loaded only where there is CUDA.
        from radixtide.tiers.copy_cuda import CudaCopyEngine  # noqa: PLC0415  # as said

        return CudaCopyEngine(pools, verify)
    return ThreadCopyEngine(pools, verify)
