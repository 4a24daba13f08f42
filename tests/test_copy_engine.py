"""The copy engine on threads: every byte, in every layout, kind of pool and page size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from radixtide.configs.errors import CacheClosed, ConfigError, InvalidInput, SlotError
from radixtide.tiers.copy_engine import CopyJob, Transfer
from radixtide.tiers.copy_making import make_engine
from radixtide.tiers.copy_threads import ThreadCopyEngine
from radixtide.tiers.host_pool import HostPool
from support.copies import KINDS, LAYOUTS, Bed, parts_of, round_trip

MakeBed = Callable[..., Bed]


@pytest.fixture
def make_bed() -> Iterator[MakeBed]:
    """Return a function that makes pools with an engine, which is closed at the end."""
    beds: list[Bed] = []

    def make(*, threads: int = 2, step_bytes: int = 256, verify: bool = True, **more: Any) -> Bed:
        bed = Bed(lambda pools: ThreadCopyEngine(pools, verify, threads, step_bytes), **more)
        beds.append(bed)
        return bed

    yield make
    for bed in beds:
        bed.engine.close()


@pytest.fixture(autouse=True)
def share_small_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads share even the small jobs of tests."""
    monkeypatch.setattr("radixtide.tiers.copy_threads.SHARED_BYTES", 1)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_pages_come_back_as_they_left(
    make_bed: MakeBed, kind: str, layout: str, page_size: int
) -> None:
    round_trip(
        make_bed(kinds=(kind,), layout=layout, page_size=page_size), seed=page_size, batches=6
    )


@pytest.mark.parametrize("step_bytes", [1, 100, 2**19])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_and_threads_of_any_number_move_the_same(
    make_bed: MakeBed, layout: str, threads: int, step_bytes: int
) -> None:
    bed = make_bed(kinds=KINDS, layout=layout, threads=threads, step_bytes=step_bytes)
    round_trip(bed, seed=threads)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_jobs_at_a_time_do_not_mix(make_bed: MakeBed, layout: str) -> None:
    bed = make_bed(kinds=("mha",), layout=layout, pages=96)
    choice = np.random.default_rng(5)
    device, host, back = (choice.permutation(96).reshape(24, 4).tolist() for _ in range(3))
    for at, pages in enumerate(device):
        bed.stamp("mha", pages, range(100 * at, 100 * at + 4))
    sent = [bed.device_bytes("mha", pages) for pages in device]
    for pages, to in zip(device, host, strict=True):
        bed.submit("backup", bed.transfer("mha", pages, to))
    answers = [bed.answer() for _ in device]
    assert all(answer.ok for answer in answers)
    # In order, each with its own digests; loads go on beside backups into other host pages.
    assert [answer.number for answer in answers] == list(range(1, 25))
    spare = make_bed(kinds=("mha",), layout=layout)
    spare.submit("backup", spare.transfer("mha", range(12), range(12)))
    bed.stamp("mha", range(96), range(9000, 9096))
    for pages, to, answer in zip(back, host, answers, strict=True):
        bed.submit("load", bed.transfer("mha", pages, to), digests=answer.digests)
    assert all(bed.answer().ok for _ in back)
    for pages, wanted in zip(back, sent, strict=True):
        assert np.array_equal(bed.device_bytes("mha", pages), wanted)
    assert spare.answer().ok


@pytest.mark.parametrize("layout", LAYOUTS)
def test_backups_and_loads_run_beside_each_other(make_bed: MakeBed, layout: str) -> None:
    bed = make_bed(kinds=("mha",), layout=layout, pages=64)
    bed.stamp("mha", range(64), range(64))
    first = bed.run("backup", bed.transfer("mha", range(32), range(32)))
    sent = bed.device_bytes("mha", range(64))
    for at in range(16):
        # Loads write to pages 0 to 31, backups read 32 to 63.
        there = [2 * at, 2 * at + 1]
        bed.submit(
            "backup",
            bed.transfer("mha", [32 + page for page in there], [32 + page for page in there]),
        )
        bed.submit(
            "load", bed.transfer("mha", there, there), digests={"mha": first.digests["mha"][there]}
        )
    assert all(bed.answer().ok for _ in range(32))
    assert np.array_equal(bed.device_bytes("mha", range(64)), sent)
    assert np.array_equal(bed.host_bytes("mha", range(64)), sent)


def test_a_page_that_changed_on_the_host_is_found(make_bed: MakeBed) -> None:
    bed = make_bed(kinds=("mha", "state"), pages=12)
    for kind in bed.kinds:
        bed.stamp(kind, range(12), range(12))
    both = [bed.transfer(kind, range(8), range(8)) for kind in bed.kinds]
    out = bed.run("backup", *both)
    for kind, page, layer in (("mha", 5, 0), ("mha", 2, 2), ("state", 7, 1)):
        bed.hosts[kind].arrays[layer][-1][page, 3] ^= 1
    back = bed.run("load", *both, digests=out.digests)
    assert not back.ok
    assert back.bad == {"mha": [2, 5], "state": [7]}
    assert back.error is not None
    assert "3 page(s)" in back.error
    # Of a pool that is not named nothing is checked.
    assert bed.run("load", both[0], digests={}).ok
    only = bed.run("load", *both, digests={"state": out.digests["state"]})
    assert only.bad == {"state": [7]}


def test_two_transfers_of_a_pool_count_their_pages_one_after_the_other(make_bed: MakeBed) -> None:
    bed = make_bed(pages=12)
    bed.stamp("mha", range(12), range(12))
    two = [bed.transfer("mha", [1, 2, 3], [9, 4, 5]), bed.transfer("mha", [7, 6], [0, 1])]
    out = bed.run("backup", *two)
    assert (
        out.digests["mha"].tolist() == bed.hosts["mha"].digests(np.array([9, 4, 5, 0, 1])).tolist()
    )
    bed.hosts["mha"].arrays[0][0][1, 0] ^= 1
    assert bed.run("load", *two, digests=out.digests).bad == {"mha": [4]}


def test_without_verifying_no_digest_is_taken_or_checked(make_bed: MakeBed) -> None:
    bed = make_bed(verify=False)
    pages = bed.transfer("mha", [1, 2], [3, 4])
    assert bed.run("backup", pages).digests == {}
    assert bed.run("load", pages, digests={"mha": np.zeros(2, dtype=np.uint64)}).ok


def test_an_empty_job_is_answered(make_bed: MakeBed) -> None:
    bed = make_bed()
    assert bed.run("backup").ok
    result = bed.run("backup", bed.transfer("mha", [], []))
    assert result.ok
    assert result.digests["mha"].tolist() == []


def test_wrong_jobs_are_refused_and_nothing_is_begun(make_bed: MakeBed) -> None:
    bed = make_bed()
    good = bed.transfer("mha", [1, 2], [3, 4])
    slots = np.arange(4)
    for wrong in (
        {"direction": "sideways"},
        {"transfers": (Transfer("swa", slots, slots),)},
        {"transfers": (Transfer("mha", slots, np.arange(8)),)},
        {"after": (object(),)},
        {"direction": "load", "digests": {"mha": np.zeros(1, dtype=np.uint64)}},
        {"direction": "load", "digests": {"mla": np.zeros(2, dtype=np.uint64)}},
    ):
        job: dict[str, Any] = {"direction": "backup", "transfers": (good,)}
        job |= {"on_done": bed.answers.put, **wrong}
        with pytest.raises(InvalidInput):
            bed.engine.submit(CopyJob(99, **job))
    for slots in (np.arange(1, 5), np.arange(3), np.arange(24 * 4, 25 * 4), np.array([3, 2, 1, 0])):
        with pytest.raises(SlotError):
            bed.submit("backup", Transfer("mha", slots, np.arange(len(slots))))
        with pytest.raises(SlotError):
            bed.submit("load", Transfer("mha", np.arange(len(slots)), slots))
    assert bed.run("backup", good).ok
    assert bed.answers.empty()
    bed.engine.close()
    with pytest.raises(CacheClosed):
        bed.submit("backup", good)


def test_pools_that_do_not_fit_are_refused() -> None:
    parts = parts_of("mha", 16)
    with pytest.raises(InvalidInput, match="other tensors"):
        ThreadCopyEngine({"x": (parts, HostPool(parts_of("mla", 16), 16, 4))})
    host = HostPool(parts, 16, 4)
    with pytest.raises(InvalidInput, match="positive"):
        ThreadCopyEngine({"x": (parts, host)}, threads=0)
    with pytest.raises(ConfigError, match="cuda"):
        make_engine({"x": (parts, host)}, "cuda")
    with pytest.raises(ConfigError, match="backend"):
        make_engine({"x": (parts, host)}, "kernel")


def test_the_engine_of_pools_on_the_cpu_has_threads() -> None:
    parts = parts_of("mha", 16)
    engine = make_engine({"x": (parts, HostPool(parts, 16, 4))})
    assert isinstance(engine, ThreadCopyEngine)
    engine.close()


def test_a_failing_copy_fails_its_job_only(
    make_bed: MakeBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = make_bed()
    rows = bed.hosts["mha"].arrays[1][0]
    whole = rows.base
    assert whole is not None
    # Memory that can not be written, in the middle of a job that two threads share.
    rows.flags.writeable = False
    failed = bed.run("backup", bed.transfer("mha", range(8), range(8)))
    assert not failed.ok
    assert failed.error is not None
    assert "read-only" in failed.error
    assert failed.digests == {}
    bed.hosts["mha"].arrays[1][0] = bed.hosts["mha"].rows[1][0].numpy()
    bed.stamp("mha", range(8), range(8))
    assert bed.run("backup", bed.transfer("mha", range(8), range(8))).ok
    assert np.array_equal(bed.host_bytes("mha", range(8)), bed.device_bytes("mha", range(8)))


def test_an_answer_that_raises_does_not_stop_the_lane(
    make_bed: MakeBed, caplog: pytest.LogCaptureFixture
) -> None:
    bed = make_bed()

    def refuse(_: object) -> None:
        raise RuntimeError("nobody listens")

    bed.submit("backup", bed.transfer("mha", [1], [1]), on_done=refuse)
    assert bed.run("backup", bed.transfer("mha", [1], [1])).ok
    assert "nobody listens" in caplog.text


def test_reuse_of_slots_after_the_answer_is_safe(make_bed: MakeBed) -> None:
    bed = make_bed(pages=8, layout="page_first")
    wanted = []
    digests = []
    for turn in range(8):
        # The same device pages each time, written anew as soon as the answer is there.
        bed.stamp("mha", [3, 5], [2 * turn, 2 * turn + 1])
        wanted.append(bed.device_bytes("mha", [3]))
        out = bed.run("backup", bed.transfer("mha", [3, 5], [turn, (turn + 1) % 8]))
        assert out.ok
        digests.append(out.digests["mha"][:1])
    for turn in range(1, 8):
        # Page `turn` was written last by turn `turn`.
        back = bed.run("load", bed.transfer("mha", [0], [turn]), digests={"mha": digests[turn]})
        assert back.ok
        assert np.array_equal(bed.device_bytes("mha", [0]), wanted[turn])
