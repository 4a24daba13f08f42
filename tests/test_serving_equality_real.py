"""The real chat model of 135 million parameters: answers with the cache are those without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixtide.configs.schema import StorageConfig
from support.serving_models import REAL, served
from support.serving_storm import Ask, stage

# Its passes take seconds where others use the machine, too.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SYSTEM = "You are a helpful guide who answers in one short sentence and always names the city."


async def test_the_real_model_answers_the_same_from_every_tier(tmp_path: Path) -> None:
    subject = served(REAL)
    tokenizer = subject.model.tokenizer

    def chat(question: str) -> list[int]:
        return tokenizer.chat(
            [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        )

    first, second = chat("Where is the Louvre?"), chat("Where is the Prado?")
    store = StorageConfig(
        url=f"lmdb:{tmp_path}", prefetch_policy="wait_complete", prefetch_threshold=1
    )
    config = subject.config(tokens=256, page_size=16, storage=store)
    async with stage(subject, config) as st:
        await st.ask(Ask("cold", first, 5))
        await st.ask_all([Ask("same", first, 4), Ask("other", second, 5)])
        assert st.reports["other"].cached_device >= 16
        await st.engine.drain()
        await st.engine.flush("device")
        await st.ask(Ask("from host", second, 4))
        assert st.reports["from host"].cached_host >= 16
        st.check(compared=18)
        assert await st.check_at_rest("from host") >= 32
        await st.engine.drain()
    async with stage(subject, config) as st:
        await st.ask(Ask("restarted", first, 4))
        assert st.reports["restarted"].cached_storage >= 16
        st.check(compared=4)
