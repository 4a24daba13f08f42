"""Pages in a Mooncake Store: memory of many processes under one master.

The client's calls block, and hang for seconds while its master is away, so it has one thread of its
own. Pages pass through one registered buffer, which nobody else touches: a call that was given up
goes on there without harm. Every read may fail (the store evicts under pressure, and a lease may
end while its reader is slow), so what was read is verified before it is handed out.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from radixtide.tiers.storage.base import PageKey, StorageFailed, extra
from radixtide.tiers.storage.frame import HEAD_MAX, encode_into
from radixtide.tiers.storage.threaded import BAD, MISSING, Found, Put, ThreadedBackend, unpack
from radixtide.tiers.storage.threads import Permit

PREFIX: Final = "radixtide:"
LIBRARIES: Final = " and Debian's libibverbs1 libnl-3-200 libnl-route-3-200"
SEGMENT: Final = 2**30
BUFFER: Final = 2**26
_MISSING: Final = (-703, -704)
_NO_ROOM: Final = (-10, -200)
_EXISTS: Final = -705


class MooncakeStore(ThreadedBackend):
    """Pages in the store whose master is at `master` (``HOST:PORT``).

    `segment`: bytes of this process's memory that it lends to the store, 0 for none; they go with
    the process, and the pages in them. `buffer`: bytes for pages on their way; a larger page is
    refused. `local`: name of this host as other clients reach it. `protocol`, `devices`,
    `metadata`: the transfer engine's (``tcp`` or ``rdma``).
    """

    kind = "mooncake"
    lanes: ClassVar[dict[str, int]] = {"client": 1}
    read_lane = write_lane = "client"

    def __init__(
        self,
        master: str,
        *,
        segment: int = SEGMENT,
        buffer: int = BUFFER,
        local: str = "127.0.0.1",
        protocol: str = "tcp",
        devices: str = "",
        metadata: str = "P2PHANDSHAKE",
    ) -> None:
        # The client prints how it does at every step otherwise.
        os.environ.setdefault("MC_LOG_LEVEL", "WARNING")
        with extra("mooncake-transfer-engine-non-cuda", LIBRARIES):
            self._library: Any = importlib.import_module("mooncake.store")
        super().__init__()
        self.master = master
        self._settings = {
            "local_hostname": local,
            "metadata_server": metadata,
            "global_segment_size": str(segment),
            "local_buffer_size": str(min(buffer, 2**24)),
            "protocol": protocol,
            "rdma_devices": devices,
            "master_server_addr": master,
        }
        self._buffer_bytes = buffer
        self._client: Any = None
        self._buffer: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def _open(self) -> None:
        host, _, port = self.master.rpartition(":")
        try:
            # The client tries for a long time, and prints about it; a plain connection tells now.
            socket.create_connection((host, int(port)), timeout=2.0).close()
        except OSError as error:
            raise StorageFailed(f"mooncake: no master at {self.master}: {error}") from error
        client = self._library.MooncakeDistributedStore()
        answer = client.setup(self._settings)
        if answer:
            raise StorageFailed(f"mooncake: no client for {self.master} (error {answer})")
        self._buffer = np.empty(self._buffer_bytes, np.uint8)
        answer = client.register_buffer(self._buffer.ctypes.data, self._buffer.nbytes)
        if answer:
            client.close()
            raise StorageFailed(f"mooncake: the buffer can not be registered (error {answer})")
        self._client = client

    def _exists(self, keys: Sequence[PageKey], permit: Permit) -> list[bool]:
        answers = self._client.batch_is_exist([_name(key) for key in keys])
        for answer in answers:
            if answer < 0:
                raise StorageFailed(f"mooncake: no answer from {self.master} (error {answer})")
        return [answer == 1 for answer in answers]

    def _read(
        self, keys: Sequence[PageKey], targets: list[memoryview], permit: Permit
    ) -> list[Found]:
        found = [MISSING] * len(keys)
        for batch in self._batches([len(target) + HEAD_MAX for target in targets]):
            permit.check()
            places = [place for place, _, _ in batch]
            answers = self._client.batch_get_into(
                [_name(keys[place]) for place in places],
                [self._buffer.ctypes.data + start for _, start, _ in batch],
                [size for _, _, size in batch],
            )
            memory = self._buffer.data
            for (place, start, _), answer in zip(batch, answers, strict=True):
                frame = memory[start : start + max(answer, 0)]
                found[place] = self._unpack(keys[place], targets[place], frame, answer, permit)
        return found

    def _unpack(
        self, key: PageKey, target: memoryview, frame: memoryview, answer: int, permit: Permit
    ) -> Found:
        if answer in _MISSING:
            return MISSING
        if answer == -600:
            # Larger than the page may be.
            return BAD
        if answer < 0:
            raise StorageFailed(f"mooncake: a page could not be read (error {answer})")
        return unpack(key.name, frame, target, permit)

    def _write(self, puts: list[Put], permit: Permit) -> list[bool]:
        # A name twice in one request would leave two values, and readers either of them.
        once = list({put.key.name: put for put in puts}.values())
        stored = {put.key.name: False for put in once}
        for batch in self._batches([len(put.source) + HEAD_MAX for put in once]):
            sizes = []
            for place, start, _ in batch:
                put, out = once[place], self._buffer.data[start:]
                with permit.touching():
                    sizes.append(encode_into(out, put.key, put.source, put.digest))
            # As `put`, but what is there under the name is replaced.
            answers = self._client.batch_upsert_from(
                [_name(once[place].key) for place, _, _ in batch],
                [self._buffer.ctypes.data + start for _, start, _ in batch],
                sizes,
            )
            for (place, _, _), answer in zip(batch, answers, strict=True):
                if answer not in (0, _EXISTS, *_NO_ROOM):
                    raise StorageFailed(f"mooncake: a page could not be stored (error {answer})")
                stored[once[place].key.name] = answer in (0, _EXISTS)
        return [stored[put.key.name] for put in puts]

    def _delete(self, keys: Sequence[PageKey]) -> None:
        # By force: a lease that a reader took seconds ago would keep the page.
        answers = self._client.batch_remove([_name(key) for key in keys], True)
        for answer in answers:
            if answer < 0 and answer not in _MISSING:
                raise StorageFailed(f"mooncake: a page could not be removed (error {answer})")

    def _clear(self) -> None:
        answer = self._client.remove_by_regex(f"^{PREFIX}.*", True)
        if answer < 0:
            raise StorageFailed(f"mooncake: the pages could not be removed (error {answer})")

    def _batches(self, sizes: Sequence[int]) -> Iterator[list[tuple[int, int, int]]]:
        """Yield lists of (place, where in the buffer, bytes); what is too large is in none."""
        batch: list[tuple[int, int, int]] = []
        start = 0
        for place, size in enumerate(sizes):
            if size > len(self._buffer):
                continue
            if start + size > len(self._buffer):
                yield batch
                batch, start = [], 0
            batch.append((place, start, size))
            start += (size + 63) // 64 * 64
        if batch:
            yield batch

    def _shut(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.unregister_buffer(self._buffer.ctypes.data)
            client.close()


def _name(key: PageKey) -> str:
    return f"{PREFIX}{key.name}"
