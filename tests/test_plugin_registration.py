"""Components of one's own come in by call or by entry point; every mistake is told clearly."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from radixtide import AuxiliaryComponent, ConfigError, TreeComponent, UnifiedRadixCache
from radixtide import register_component as register
from radixtide.components import registry
from radixtide.components.full import FullComponent
from radixtide.components.registry import make_components, plugin_components
from radixtide.configs.schema import CacheConfig
from support.caches import make_config
from support.plugin import EXAMPLE, NAME, SidecarClass, registered, with_sidecar

GOOD = """
    from compressed_sidecar import Sidecar
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Return a function that installs a small distribution, as an installer would lay it out."""

    def make(
        source: str = GOOD,
        *,
        distribution: str = "tide-sidecar",
        points: str = f"{NAME} = PACKAGE:Sidecar",
    ) -> Path:
        site = tmp_path / distribution
        package = distribution.replace("-", "_")
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").write_text(textwrap.dedent(source), encoding="utf-8")
        info = site / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", encoding="utf-8"
        )
        (info / "entry_points.txt").write_text(
            f"[radixtide.components]\n{points.replace('PACKAGE', package)}\n", encoding="utf-8"
        )
        monkeypatch.syspath_prepend(str(site))
        return site

    yield make
    for name in [name for name in sys.modules if name.startswith("tide_")]:
        del sys.modules[name]


def config(**fields: Any) -> CacheConfig:
    return make_config(**with_sidecar(page_size=16, size=512, **fields))


# -- by call ------------------------------------------------------------------------


def test_a_component_is_registered_by_call() -> None:
    with registered():
        assert plugin_components() == (NAME,)
        made, _ = make_components(config())
        assert [type(part) for part in made] == [FullComponent, SidecarClass]
        assert [part.index for part in made] == [0, 1]
    assert plugin_components() == ()


def test_a_name_is_given_once() -> None:
    with registered():
        with pytest.raises(ConfigError, match="'sidecar' is already registered"):
            register(NAME, type("Other", (SidecarClass,), {}))
        # Two files of tests may each register what they need.
        register(NAME, SidecarClass)
        assert plugin_components() == (NAME,)


@pytest.mark.parametrize("name", ["full", "swa", "mamba"])
def test_a_built_in_component_can_not_be_replaced(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is built in; choose another name"):
        register(name, SidecarClass)


@pytest.mark.parametrize("name", ["", "Sidecar", "side car", "1st", "side.car", "ünder", None, 5])
def test_a_name_is_a_word(name: Any) -> None:
    with pytest.raises(ConfigError, match="a name has lower-case letters, digits, - and _"):
        register(name, SidecarClass)


@pytest.mark.parametrize("name", ["coordinator", "tiering"])
def test_an_actor_is_not_named_twice(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}': an actor has that name"):
        register(name, SidecarClass)


def test_a_factory_can_be_called() -> None:
    with pytest.raises(ConfigError, match="its factory 'compressed_sidecar' can not be called"):
        register(NAME, "compressed_sidecar")  # type: ignore[arg-type]  # that is the test


@pytest.mark.parametrize(
    "make", [lambda *_: None, lambda *_: SidecarClass, FullComponent], ids=["none", "class", "full"]
)
def test_a_factory_makes_a_component_of_the_registered_name(make: Any) -> None:
    with registered(make), pytest.raises(ConfigError) as caught:
        UnifiedRadixCache(config())
    assert str(caught.value).startswith("components[1]: the factory of 'sidecar' made ")
    assert str(caught.value).endswith("which is no TreeComponent of that name")


def test_an_unknown_component_is_named_with_those_that_are_known() -> None:
    with registered(name="sidecars"), pytest.raises(ConfigError) as caught:
        UnifiedRadixCache(config())
    assert 'components[1]: no component is named "sidecar"; did you mean sidecars?' in str(
        caught.value
    )
    assert "known: full, swa, mamba, sidecars" in str(caught.value)


def test_a_plug_in_comes_after_what_is_built_in() -> None:
    with registered(), pytest.raises(ConfigError, match="then those of plug-ins"):
        UnifiedRadixCache(make_config(components=("full", NAME, "swa")))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, r"plugins\.sidecar.*size"),
        ({"size": 0}, r"plugins\.sidecar\.size: expected `int` >= 1"),
        ({"size": "8"}, r"plugins\.sidecar\.size: expected `int`, got `str`"),
        ({"size": 2**31}, r"plugins\.sidecar\.size: expected `int` <= 2147483647"),
        ({"size": 8, "tokens_per_id": 1.5}, r"plugins\.sidecar\.tokens_per_id: expected `int`"),
        ({"size": 8, "width": -1}, r"plugins\.sidecar\.width: expected `int` >= 0"),
        (
            {"size": 8, "tokens_per_ids": 64},
            r"plugins\.sidecar\.tokens_per_ids: unknown key; did you mean tokens_per_id\?",
        ),
        (
            {"size": 8, "tokens_per_id": 24},
            r"plugins\.sidecar\.tokens_per_id: 24 is not a multiple of page_size \(16\)",
        ),
    ],
)
def test_a_mistake_in_its_section_is_named_by_its_path(
    section: dict[str, Any], message: str
) -> None:
    wrong = make_config(components=("full", NAME), page_size=16, plugins={NAME: section})
    with registered(), pytest.raises(ConfigError, match=message):
        UnifiedRadixCache(wrong)


def test_a_section_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "cache.toml"
    file.write_text(
        'components = ["full", "sidecar"]\n[pools.full]\nsize = 4096\nholds_bytes = false\n'
        "[plugins.sidecar]\nsize = 32\nwidth = 3\n",
        encoding="utf-8",
    )
    with registered():
        cache = UnifiedRadixCache.from_toml(file)
    assert cache.memory[NAME].shape == (32, 3)
    assert cache.memory["full"] is cache.kv_pool is None


def test_a_section_without_its_component_is_refused() -> None:
    with registered(), pytest.raises(ConfigError, match='"sidecar" is not in components'):
        UnifiedRadixCache(make_config(plugins={NAME: {"size": 8}}))


# -- by entry point -----------------------------------------------------------------


async def test_an_installed_distribution_brings_its_component(
    install: Callable[..., Path],
) -> None:
    install()
    assert plugin_components() == (NAME,)
    async with UnifiedRadixCache(config(ids=7)) as cache:
        stats = await cache.stats()
        assert stats.pools[NAME]["device"].size == 7
        assert set(stats.actors) == {"coordinator", "full", NAME}
        assert (await cache.audit()).ok


def test_an_installed_component_works_in_a_fresh_interpreter(
    install: Callable[..., Path], tmp_path: Path
) -> None:
    path = Path(EXAMPLE.__file__ or "")
    site = install(path.read_text(encoding="utf-8"))
    file = tmp_path / "cache.toml"
    file.write_text(
        'components = ["full", "sidecar"]\npools.full.size = 64\nplugins.sidecar.size = 3\n',
        encoding="utf-8",
    )
    program = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "from radixtide import UnifiedRadixCache\n"
        f"cache = UnifiedRadixCache.from_toml({str(file)!r})\n"
        "print([type(part).__module__ for part in cache._components])\n"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert result.stderr == ""
    assert result.stdout == "['radixtide.components.full', 'tide_sidecar']\n"


def test_what_is_registered_by_call_goes_before_an_entry_point(
    install: Callable[..., Path],
) -> None:
    mine = type("Mine", (SidecarClass,), {})
    install()
    with registered(mine):
        assert plugin_components() == (NAME,)
        assert type(make_components(config())[0][1]) is mine


@pytest.mark.parametrize(
    ("point", "why"),
    [
        ("tide_sidecar:Sidekick", "has no attribute 'Sidekick'"),
        ("tide_side:Sidecar", "No module named 'tide_side'"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_named(
    install: Callable[..., Path], point: str, why: str
) -> None:
    install(points=f"{NAME} = {point}")
    with pytest.raises(ConfigError) as caught:
        UnifiedRadixCache(config())
    said = f"'sidecar' can not be loaded from {point} of tide-sidecar 1.0: "
    assert said in str(caught.value)
    assert why in str(caught.value)
    assert isinstance(caught.value.__cause__, (AttributeError, ImportError))


def test_an_entry_point_that_is_no_factory_is_named(install: Callable[..., Path]) -> None:
    install("Sidecar = 5\n")
    with pytest.raises(ConfigError, match=r"tide_sidecar:Sidecar of tide-sidecar 1\.0 can not be"):
        UnifiedRadixCache(config())


def test_two_distributions_that_offer_one_name_are_both_named(
    install: Callable[..., Path],
) -> None:
    install()
    install(distribution="tide-other")
    with pytest.raises(ConfigError) as caught:
        UnifiedRadixCache(config())
    assert "tide-other 1.0" in str(caught.value)
    assert "tide-sidecar 1.0" in str(caught.value)
    assert "uninstall all but one" in str(caught.value)


def test_an_entry_point_can_not_take_the_name_of_an_actor(install: Callable[..., Path]) -> None:
    install(points="coordinator = PACKAGE:Sidecar")
    with pytest.raises(ConfigError, match="an actor has that name"):
        UnifiedRadixCache(make_config(components=("full", "coordinator")))


def test_an_entry_point_can_not_replace_what_is_built_in(install: Callable[..., Path]) -> None:
    install(points="full = PACKAGE:Sidecar")
    (made,), _ = make_components(make_config())
    assert type(made) is FullComponent


def test_metadata_is_read_once_however_many_caches_are_made(
    install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    reads: list[str] = []

    def counted(**which: str) -> Any:
        reads.append(which["group"])
        return entry_points(**which)

    monkeypatch.setattr(registry, "entry_points", counted)
    for _ in range(5):
        UnifiedRadixCache(config())
    assert reads == ["radixtide.components"]


def test_authors_find_what_they_need_in_the_facade() -> None:
    assert issubclass(AuxiliaryComponent, TreeComponent)
    used = {name for name in dir(EXAMPLE) if name in __import__("radixtide").__all__}
    assert {"InsertCheck", "Insertion", "InsertPart", "Node", "RadixTree", "SlotAllocator"} <= used
    assert {"plugin_section", "register_component"} <= used
