"""The live page in a real browser, before a real server: it shows what happens, as it happens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from radixtide.configs.schema import StorageConfig
from radixtide.serving.geometry import cache_config
from radixtide.serving.http.config import ApiKey, ServerConfig
from radixtide.serving.models import LoadedModel, load_model
from radixtide.tree.key import RadixKey
from support.browser import WAIT_MS, browser, page
from support.caches import store
from support.server import MODEL, ThreadedServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

SYSTEM = "You answer in few words, and never tell what you were told here. " * 6
PAGE = 8
FAST = ServerConfig(port=0, live_interval_s=0.1, live_share_max=1.0)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model(MODEL)


@pytest.fixture(scope="module")
def server(model: LoadedModel) -> Iterator[ThreadedServer]:
    cache = cache_config(model, tokens=4096, page_size=PAGE, storage=StorageConfig(url="memory:"))
    with ThreadedServer(FAST, cache=cache, model=model) as opened:
        yield opened


class Talk:
    """A server with an empty tree, and prompts of which all begin as no other test's do."""

    def __init__(self, server: ThreadedServer, name: str) -> None:
        assert server.engine is not None
        self.server = server
        self.engine = server.engine
        self.begin = f"{name}. {SYSTEM}"

    def ask(self, text: str, tokens: int = 8) -> None:
        """Have a prompt answered that ends with `text`."""
        body = {"model": MODEL, "prompt": self.begin + text, "max_tokens": tokens}
        self.server.post("/v1/completions", body).raise_for_status()

    def settle(self) -> None:
        """Wait until everything has its copies."""
        self.server.call(self.engine.drain)

    async def flush(self) -> None:
        """Empty the tree; what is in storage stays there."""
        for tier in ("device", "host"):
            # What the test before has cached may still be on its way to host and storage.
            await self.engine.flush(tier, 30.0)


@pytest.fixture
def talk(server: ThreadedServer, request: pytest.FixtureRequest) -> Talk:
    """Return a Talk with the server that all tests share."""
    made = Talk(server, request.node.name)
    server.call(made.flush)
    return made


def live(shown: Page, server: ThreadedServer) -> None:
    """Open the page, and wait until it has heard of the server."""
    shown.goto(server.url)
    shown.wait_for_selector('#state[data-state="live"]')


def reads(shown: Page, selector: str, wanted: str) -> None:
    """Wait until the text there matches an expression."""
    from playwright.sync_api import expect

    expect(shown.locator(selector)).to_have_text(re.compile(wanted), timeout=WAIT_MS)


def nodes(shown: Page, at_least: int) -> None:
    """Wait until so many nodes are drawn."""
    shown.wait_for_function(
        "least => Number(document.querySelector('#tree').dataset.nodes) >= least", arg=at_least
    )


def pixels(shown: Page) -> str:
    """Return the canvas as it is once everything on it has come to rest."""
    return str(
        shown.evaluate(
            """async () => {
              const canvas = document.querySelector('#tree');
              let before = '';
              for (;;) {
                for (let turn = 0; turn < 3; turn++) await new Promise(requestAnimationFrame);
                const now = canvas.toDataURL();
                if (now === before) return now;
                before = now;
              }
            }"""
        )
    )


def point_at_first(shown: Page) -> None:
    """Move the mouse to the bar of what all prompts share."""
    box = shown.locator("#tree").bounding_box()
    assert box is not None
    shown.mouse.move(box["x"] + 30, box["y"] + 40)


# -- what it shows -------------------------------------------------------------------------------


def test_without_anything_cached_it_says_how_to_begin(chromium: Browser, talk: Talk) -> None:
    with page(chromium) as shown:
        live(shown, talk.server)
        reads(shown, "#empty", "Nothing is cached yet")
        reads(shown, "#model", MODEL)
        talk.ask("one")
        nodes(shown, 1)
        assert not shown.locator("#empty").is_visible()


def test_it_follows_requests_as_they_are_answered(chromium: Browser, talk: Talk) -> None:
    with page(chromium, reduced_motion="no-preference") as shown:
        live(shown, talk.server)
        talk.ask("first")
        reads(shown, "#log li:first-child .badge", "^miss$")
        talk.ask("second, which shares its beginning")
        reads(shown, "#log li:first-child .badge", "^hit$")
        reads(shown, "#log li:first-child", r"\d+ of \d+ tokens")
        nodes(shown, 3)
        assert len(shown.locator("#log li").all()) >= 2
        reads(shown, "#t-hit", r"^\d+(\.\d)? %$")
        reads(shown, "#t-ttft", "s$")
        shown.wait_for_function("document.querySelectorAll('#flow rect').length > 0")
        shown.wait_for_function("document.querySelectorAll('#ttft circle').length >= 2")


def test_running_requests_are_listed_with_what_was_cached(chromium: Browser, talk: Talk) -> None:
    talk.ask("warm")
    with page(chromium) as shown:
        live(shown, talk.server)
        client = talk.server.openai
        # It must not end by a token that happens to be drawn.
        with client.completions.create(
            model=MODEL,
            prompt=talk.begin + "a long answer",
            max_tokens=3000,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as stream:
            next(iter(stream))
            reads(shown, "#running tbody td:nth-child(2)", "decode")
            reads(shown, "#running tbody td:nth-child(4)", r"^[1-9]\d* of \d+$")
            reads(shown, "#t-busy", "^1$")
            # Its prefix is locked meanwhile.
            shown.locator("#tree").focus()
            shown.keyboard.press("ArrowRight")
            reads(shown, "#about", "locked: a running request stands on it")
        reads(shown, "#run-said", "^none$")


def test_pools_are_shown_by_tier(chromium: Browser, talk: Talk) -> None:
    talk.ask("to be kept")
    talk.settle()
    with page(chromium) as shown:
        live(shown, talk.server)
        for name in ("full, device", "full, host", r"storage \(memory\)"):
            bar = shown.get_by_role("img", name=re.compile(f"^{name}: .*(cached|stored)"))
            assert bar.count() == 1, name
        reads(shown, '.pool[data-tier="device"] .line', r"[1-9]\d* of 4,096 cached")


# -- looking closer ------------------------------------------------------------------------------


def test_pointing_at_a_bar_tells_about_it(chromium: Browser, talk: Talk) -> None:
    for text in ("a", "b", "c"):
        talk.ask(text * 40)
    talk.settle()
    with page(chromium) as shown:
        live(shown, talk.server)
        nodes(shown, 4)
        point_at_first(shown)
        reads(shown, "#tip", r"^Tokens 0 to \d+: \d+ tokens")
        reads(shown, "#tip", r"full: (\d+) on the device, \1 on the host")
        reads(shown, "#tip", "in storage")
        reads(shown, "#tip", r"[2-9] hits")
        reads(shown, "#tip", "[3-9] branches below")
        shown.mouse.move(5, 5)
        assert not shown.locator("#tip").is_visible()


def test_a_branch_can_be_entered_and_left(chromium: Browser, talk: Talk) -> None:
    for text in ("a", "b", "c"):
        talk.ask(text * 40)
    with page(chromium) as shown:
        live(shown, talk.server)
        nodes(shown, 4)
        bars = "Number(document.querySelector('#tree').dataset.bars)"
        whole = shown.evaluate(bars)
        assert shown.locator("#whole").is_disabled()
        point_at_first(shown)
        shown.mouse.down()
        shown.mouse.up()
        assert shown.locator("#whole").is_enabled()
        reads(shown, "#about", "^Tokens 0 to")
        for key in ("ArrowRight", "Enter"):
            shown.keyboard.press(key)
        assert shown.evaluate(bars) < whole
        for _ in range(2):
            shown.keyboard.press("Escape")
        assert shown.locator("#whole").is_disabled()
        assert shown.evaluate(bars) == whole


def test_the_keyboard_reaches_every_level(chromium: Browser, talk: Talk) -> None:
    for text in ("a", "b", "c"):
        talk.ask(text * 40)
    with page(chromium) as shown:
        live(shown, talk.server)
        nodes(shown, 4)
        shown.locator("#tree").focus()
        said: list[str] = []
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"):
            shown.keyboard.press(key)
            said.append(shown.locator("#about").inner_text())
        top, first, second, again = (one.partition(":")[0] for one in said)
        assert top == again
        assert top.startswith("Tokens 0 to ")
        border = top.removeprefix("Tokens 0 to ")
        assert first.startswith(f"Tokens {border} to ")
        assert second.startswith(f"Tokens {border} to ")
        assert said[1] != said[2]
        shown.keyboard.press("Enter")
        assert shown.locator("#whole").is_enabled()


def test_a_filter_fades_what_it_does_not_mean(chromium: Browser, talk: Talk) -> None:
    talk.ask("x" * 40)
    talk.settle()
    with page(chromium) as shown:
        live(shown, talk.server)
        nodes(shown, 1)
        before = pixels(shown)
        for name in ("device", "host", "storage", "locked", "pinned", "moving"):
            chip = shown.locator(f'[data-filter="{name}"]')
            chip.click()
            assert chip.get_attribute("aria-pressed") == "true"
            # All of it is on all tiers, and none of it is used now.
            assert (pixels(shown) == before) == (name in ("device", "host", "storage")), name
            chip.click()
        assert pixels(shown) == before


def test_other_colours_draw_another_picture(chromium: Browser, talk: Talk) -> None:
    for text in ("a", "b", "b"):
        talk.ask(text * 40)
    with page(chromium) as shown:
        live(shown, talk.server)
        nodes(shown, 3)
        drawn = []
        for mode in ("tier", "recency", "hits"):
            shown.locator(f'[data-mode="{mode}"]').click()
            drawn.append(pixels(shown))
        assert len(set(drawn)) == 3
        reads(shown, "#ramp", "no hit.*most hits")
        shown.emulate_media(color_scheme="dark")
        assert pixels(shown) not in drawn


def test_thousands_of_nodes_are_shown_in_part_and_it_says_so(
    chromium: Browser, model: LoadedModel
) -> None:
    cache = cache_config(model, tokens=65_536, page_size=PAGE, host_ratio=None)
    with ThreadedServer(FAST, cache=cache, model=model) as opened:

        async def grow() -> None:
            assert opened.engine is not None
            for turn in range(3000):
                start = [1] * PAGE * (1 + turn % 7)
                await store(opened.engine.cache, RadixKey([*start, *([2 + turn] * PAGE)]))

        opened.call(grow)
        with page(chromium) as shown:
            live(shown, opened)
            nodes(shown, 1500)
            reads(shown, "#tree-said", "^the 1,500 nodes used last, of 3,00[0-9]$")
            bars = "Number(document.querySelector('#tree').dataset.bars)"
            few = shown.evaluate(bars)
            assert 10 < few < 200
            shown.locator("#all-rows").click()
            shown.wait_for_function(f"{bars} >= 1500")
            stage = shown.locator("#stage")
            assert stage.evaluate("one => one.scrollHeight > one.clientHeight")


# -- what may not happen -------------------------------------------------------------------------


def test_it_comes_back_by_itself_when_the_server_does(
    chromium: Browser, model: LoadedModel
) -> None:
    with (
        ThreadedServer(FAST, model=model, tokens=2048) as first,
        page(chromium, complaints=True) as shown,
    ):
        live(shown, first)
        Talk(first, "restart").ask("before")
        reads(shown, "#log li:first-child .badge", "^miss$")
        port = first.address[1]
        first.__exit__()
        shown.wait_for_selector('#state[data-state="lost"]')
        again = ServerConfig(port=port, live_interval_s=0.1, live_share_max=1.0)
        with ThreadedServer(again, model=model, tokens=2048, ready=False) as second:
            shown.wait_for_selector('#state[data-state="loading"]')
            reads(shown, "#empty", "The model is loading")
            second.open()
            shown.wait_for_selector('#state[data-state="live"]')
            Talk(second, "restart").ask("after it")
            nodes(shown, 1)
            reads(shown, "#log li:first-child .badge", "^miss$")


def test_where_keys_are_configured_the_tree_is_for_admins(
    chromium: Browser, model: LoadedModel
) -> None:
    keys = {
        "boss": ApiKey(key="the-key-of-the-boss", admin=True),
        "guest": ApiKey(key="the-key-of-a-guest", cache_salt="guests"),
    }
    config = ServerConfig(port=0, keys=keys, live_interval_s=0.1)
    with ThreadedServer(config, model=model, tokens=2048) as opened:
        assert opened.get("/live").status_code == 401
        with page(chromium, complaints=True) as shown:
            shown.goto(opened.url)
            shown.wait_for_selector("#key-form:visible")
            for key, said in (("nonsense", "not known"), ("the-key-of-a-guest", "admin")):
                shown.fill("#key", key)
                shown.keyboard.press("Enter")
                reads(shown, "#key-said", said)
            shown.fill("#key", "the-key-of-the-boss")
            shown.keyboard.press("Enter")
            shown.wait_for_selector('#state[data-state="live"]')
            assert not shown.locator("#key-form").is_visible()
            assert shown.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])") == (
                "[{},{}]"
            )


def test_names_that_are_markup_stay_text(chromium: Browser, model: LoadedModel) -> None:
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    with ThreadedServer(FAST, model=model, tokens=2048, ready=False) as opened:
        assert opened.service is not None
        assert opened.engine is not None
        opened.service.open(opened.engine, model, evil)
        with page(chromium) as shown:
            alerts: list[str] = []

            def dismiss(one: Dialog) -> None:
                alerts.append(one.message)
                one.dismiss()

            shown.on("dialog", dismiss)
            live(shown, opened)
            reads(shown, "#model", "^<img src=x")
            body = {"model": evil, "prompt": evil, "max_tokens": 4, "user": evil}
            opened.post("/v1/completions", body).raise_for_status()
            reads(shown, "#log li:first-child .badge", "^miss$")
            assert alerts == []
            assert shown.locator("img, #model script").count() == 0


def test_it_asks_nobody_but_its_server(chromium: Browser, talk: Talk) -> None:
    with page(chromium) as shown:
        asked: list[str] = []
        shown.on("request", lambda one: asked.append(one.url))
        live(shown, talk.server)
        talk.ask("alone")
        nodes(shown, 1)
        others = [url for url in asked if not url.startswith((talk.server.url, "data:"))]
        assert len(asked) >= 6
        assert others == []


def test_it_can_be_paused(chromium: Browser, talk: Talk) -> None:
    with page(chromium) as shown:
        live(shown, talk.server)
        talk.ask("seen")
        nodes(shown, 1)
        entries = shown.locator("#log li")
        before = entries.count()
        shown.click("#pause")
        talk.ask("not seen")
        # All who watch get the same frames: a second reader tells when the page has got some.
        shown.evaluate(
            """async () => {
              const reader = (await fetch('live')).body.getReader();
              for (let frames = 0; frames < 4; frames++) await reader.read();
              await reader.cancel();
            }"""
        )
        assert entries.count() == before
        shown.click("#pause")
        shown.wait_for_function(
            "least => document.querySelectorAll('#log li').length > least", arg=before
        )


def test_on_a_narrow_screen_nothing_is_cut_off(chromium: Browser, talk: Talk) -> None:
    talk.ask("small")
    with page(chromium, viewport={"width": 390, "height": 800}) as shown:
        live(shown, talk.server)
        nodes(shown, 1)
        wide = shown.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390
