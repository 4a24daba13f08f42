"""Memory of a host pool: one piece, in huge pages where the system gives them, pinned for CUDA."""

from __future__ import annotations

import mmap
import sys
import weakref

import torch

from radixtide.configs.errors import ConfigError


def host_memory(size: int, pinned: bool) -> torch.Tensor:
    """Return `size` bytes of zeros, uint8, all of them touched; `pinned`: known to CUDA.

    Huge pages spare copies most misses of the translation buffer. PyTorch's own pinned allocator
    would round the size up to a power of two, so the memory is registered instead.

    Raises:
        MemoryError: there is not so much memory.
        ConfigError: CUDA refuses to pin it.
    """
    if sys.platform != "linux":
        return torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as problem:
        raise MemoryError(f"no {size} bytes of host memory: {problem}") from problem
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        # A kernel without huge pages: the memory is as good, if slower.
        pass
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    tensor.zero_()
    if pinned:
        _pin(memory, tensor.data_ptr(), size)
    return tensor


def _pin(memory: mmap.mmap, address: int, size: int) -> None:
    # The module has no types.
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    refused = runtime.cudaHostRegister(address, size, 0)
    if int(refused):
        raise ConfigError(
            f"CUDA can not pin {size} bytes of host memory (error {int(refused)}): raise the limit "
            "of locked memory, make the host pools smaller, or set host.pinned = false"
        )
    # The memory outlives every tensor over it, and this is called before it goes.
    weakref.finalize(memory, runtime.cudaHostUnregister, address)
