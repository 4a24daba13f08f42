"""``radixtide config`` as a person at a terminal meets it: output, errors, exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import radixtide
from radixtide.configs.errors import ConfigError
from radixtide.configs.loader import load_config, parse_config
from radixtide.serving.http.config import load_serve_config, parse_serve_config
from support.rooms import ROOT

PRESET = ROOT / "configs" / "full.toml"
SERVER = ROOT / "configs" / "serve.toml"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "radixtide.cli.main", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL
    )


def test_check_says_what_a_good_file_describes() -> None:
    result = run("config", "check", PRESET)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{PRESET}: ok (full; 125000 pages of 16; lru)\n"


def test_check_names_the_key_on_stderr_and_exits_with_one(tmp_path: Path) -> None:
    file = tmp_path / "cache.toml"
    file.write_text("[pools.full]\nsise = 10\n")
    result = run("config", "check", file)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {file}: 2 problems\n  pools.full.sise: unknown key")
    assert "Traceback" not in result.stderr


def test_the_config_of_a_server_is_checked_and_shown_by_the_same_commands() -> None:
    result = run("config", "check", SERVER)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{SERVER}: ok (smollm2; 16384 tokens in pages of 16; host: ")
    result = run("config", "show", SERVER)
    assert (result.returncode, result.stderr) == (0, "")
    assert parse_serve_config(result.stdout) == load_serve_config(SERVER)
    with pytest.raises(ConfigError, match="is the config of a cache; a server makes one"):
        load_serve_config(PRESET)


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_missing_file_is_an_error_without_a_traceback(command: str, tmp_path: Path) -> None:
    result = run("config", command, tmp_path / "absent.toml")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"error: {tmp_path / 'absent.toml'}: can not be read: No such file or directory\n"
    )


def test_show_prints_toml_that_means_the_same() -> None:
    result = run("config", "show", PRESET)
    assert (result.returncode, result.stderr) == (0, "")
    assert parse_config(result.stdout) == load_config(PRESET)
    assert "call_timeout_s = 30.0" in result.stdout


def test_show_as_json_is_one_object_and_nothing_else() -> None:
    result = run("config", "show", PRESET, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    shown = json.loads(result.stdout)
    assert shown["pools"]["full"]["size"] == 2_000_000
    assert shown["window"] is None


def test_version_is_the_distributions() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"radixtide {radixtide.__version__}\n")


@pytest.mark.parametrize(
    "arguments", [["config", "check"], ["config", "chek"], ["--nope"], ["config", "show", "a", "b"]]
)
def test_wrong_use_exits_with_two(arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert "Usage: " in result.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["config", "--help"], ["config", "check", "-h"]])
def test_help_and_config_load_no_torch(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom radixtide.cli.main import main\n"
        f"sys.argv[1:] = {arguments!r}\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code in (0, 2), end.code\n"
        "sys.exit('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr


def test_help_lists_every_command() -> None:
    result = run("--help")
    assert result.returncode == 0
    assert "config" in result.stdout
    assert "replay" in result.stdout
