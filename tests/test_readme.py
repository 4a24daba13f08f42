"""What the README shows is what happens."""

import re
import subprocess
import sys

from support.rooms import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "first_match.py"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_first_program_is_the_example_and_prints_what_is_said() -> None:
    assert blocks("python")[0] == EXAMPLE.read_text(encoding="utf-8")
    code = [line for line in blocks("python")[0].splitlines() if line.strip()]
    assert len(code) <= 15
    result = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert blocks("console")[0] == f"$ python examples/first_match.py\n{result.stdout}"


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_target_that_is_named_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"`make (\w+)`|^make (\w+)", README, flags=re.MULTILINE))
    targets = {first or second for first, second in named}
    assert {"run", "test", "check"} <= targets
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
