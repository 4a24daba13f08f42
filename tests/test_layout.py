"""The folders, the packaging map, the checkers' links and the public names must tell one story."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest

import radixtide
from radixtide.configs import errors
from support.rooms import ROOT, present_rooms, sources

LINKS = ROOT / "configs" / "typing" / "radixtide"


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def package_name(folder: Path) -> str:
    parts = folder.relative_to(ROOT).parts
    return ".".join(parts if parts[0] == "radixtide" else ("radixtide", *parts))


def modules() -> Iterator[str]:
    for room in present_rooms():
        for path in sources(ROOT, room):
            package = package_name(path.parent)
            yield package if path.stem == "__init__" else f"{package}.{path.stem}"


def test_every_folder_with_code_is_a_package_that_is_shipped() -> None:
    table = project()["tool"]["setuptools"]
    on_disk = {
        package_name(path.parent): path.parent.relative_to(ROOT).as_posix()
        for room in present_rooms()
        for path in sources(ROOT, room)
    }
    assert table["package-dir"] == on_disk
    assert sorted(table["packages"]) == sorted(on_disk)
    for folder in on_disk.values():
        assert (ROOT / folder / "__init__.py").is_file(), folder


def test_every_package_says_that_it_is_typed() -> None:
    for room in present_rooms():
        assert (ROOT / room / "py.typed").is_file(), room


def test_every_dependency_is_pinned_for_the_tests() -> None:
    table = project()["project"]
    wanted = [*table["dependencies"], *chain(*table["optional-dependencies"].values())]
    names = {re.split(r"[^\w-]", wish, maxsplit=1)[0] for wish in wanted}
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    names.discard("radixtide")  # an extra that names another
    assert names <= {pin.partition("==")[0] for pin in pins if "==" in pin}


def test_every_bare_name_of_a_room_is_banned_by_lint() -> None:
    banned = project()["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert set(banned) == set(present_rooms()) - {"radixtide"}


@pytest.mark.skipif(not LINKS.exists(), reason="a source distribution leaves the links out")
def test_checker_links_show_exactly_the_real_files() -> None:
    links = {path.name: path for path in LINKS.iterdir() if path.name != "configs"}
    facade = {path.name for path in (ROOT / "radixtide").iterdir() if path.suffix != ".pyc"}
    facade.discard("__pycache__")
    expected = {room: ROOT / room for room in present_rooms() if room != "radixtide"}
    del expected["configs"]
    expected |= {name: ROOT / "radixtide" / name for name in facade}
    assert {name: path.resolve() for name, path in links.items()} == expected
    assert all(path.is_symlink() for path in links.values())


@pytest.mark.skipif(not LINKS.exists(), reason="a source distribution leaves the links out")
def test_configs_is_linked_file_by_file_for_a_link_to_the_folder_would_loop() -> None:
    assert {path.name: path.resolve() for path in (LINKS / "configs").iterdir()} == {
        path.name: path for path in (ROOT / "configs").iterdir() if path.suffix in (".py", ".typed")
    }


def test_no_module_is_loaded_twice() -> None:
    for name in modules():
        import_module(name)
    assert not set(present_rooms()) - {"radixtide"} & set(sys.modules)


@pytest.mark.parametrize("name", sorted(modules()))
def test_every_listed_name_exists_once(name: str) -> None:
    listed = getattr(import_module(name), "__all__", ())
    assert isinstance(listed, tuple)
    assert len(set(listed)) == len(listed)
    assert [entry for entry in listed if not hasattr(import_module(name), entry)] == []


def test_the_facade_shows_every_call_struct_and_every_error() -> None:
    api = import_module("radixtide.components.api")
    defined = {
        name
        for module in (api, errors)
        for name, value in vars(module).items()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and (module is api or issubclass(value, Exception))
    }
    assert defined <= set(radixtide.__all__)
    assert issubclass(radixtide.MatchPrefixParams, msgspec.Struct)


def test_the_facade_lists_its_names_in_order_and_knows_no_others() -> None:
    assert list(radixtide.__all__) == sorted(radixtide.__all__)
    assert set(radixtide.__all__) <= set(dir(radixtide))
    with pytest.raises(AttributeError, match="no attribute 'RadixCash'"):
        radixtide.RadixCash  # type: ignore[attr-defined]  # noqa: B018 - the name is wrong on purpose


def test_the_version_is_the_distributions() -> None:
    assert radixtide.__version__ == project()["project"]["version"]


def test_import_of_the_facade_loads_no_torch() -> None:
    program = (
        "import sys, radixtide; radixtide.CacheConfig, radixtide.OutOfSlots, radixtide.RadixKey\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_internal_error_of_a_room_is_not_hidden_by_the_facade() -> None:
    program = (
        "import sys\nsys.modules['torch'] = None\nimport radixtide\n"
        "try: radixtide.MatchResult\n"
        "except ImportError: sys.exit(0)\n"
        "sys.exit(1)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
