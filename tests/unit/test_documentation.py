"""The documentation: a menu in which nothing repeats, settings that can be linked to, and files that there are."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def menu() -> list[tuple[str, str]]:
    """Title and page of each entry of the menu."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    entries = text[text.index("\nnav:") : text.index("\nmarkdown_extensions:")]
    found = re.findall(r"^ +- (?:(.+): )?(\S+\.md)$", entries, re.MULTILINE)
    assert found
    return found


def test_every_page_has_a_title_of_its_own_in_the_menu() -> None:
    titles = [title for title, _ in menu()]
    assert all(titles)
    assert len(set(titles)) == len(titles)


def test_every_page_is_in_the_menu_once() -> None:
    pages = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert sorted(page for _, page in menu()) == pages


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("anchors", DOCS / "assets/anchors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(*names: str, head: str = "setting") -> str:
    rows = "".join(f"<tr>\n<td>{name}</td>\n<td><code>true</code></td>\n</tr>\n" for name in names)
    return f"<table>\n<thead>\n<tr>\n<th>{head}</th>\n</tr>\n</thead>\n<tbody>\n{rows}</tbody>\n</table>\n"


def ids(html: str) -> list[str]:
    return re.findall(r'id="([^"]+)"', html)


def test_settings_have_anchors(hook: ModuleType) -> None:
    page = table("<code>linger.ms</code>", "<code>acks</code>, <code>retries</code>")
    shown = hook.on_page_content(page)
    assert ids(shown) == ["linger.ms", "acks", "retries"]
    assert 'href="#linger.ms"><code>linger.<wbr>ms</code>' in shown
    assert shown.count("<code>true</code>") == 2


def test_a_name_that_comes_again_has_its_section_before_it(hook: ModuleType) -> None:
    one = table("<code>retries</code>")
    page = f'<h2 id="producer">Producer</h2>{one}<h2 id="admin-client">Admin</h2>{one}'
    assert ids(hook.on_page_content(page)) == ["producer", "retries", "admin-client", "admin-client-retries"]


def test_other_tables_are_left_alone(hook: ModuleType) -> None:
    page = table("<code>linger.ms</code>", head="error")
    assert hook.on_page_content(page) == page


@pytest.mark.parametrize("page", ["reference/settings.md", "reference/gateway.md"])
def test_the_references_tables_are_found(hook: ModuleType, page: str) -> None:
    """Their first column has the heading that the hook looks for."""
    text = (DOCS / page).read_text("utf-8")
    assert re.search(r"^\| setting \|", text, re.MULTILINE)


PAGES = [*sorted((DOCS / "internals").glob("*.md")), ROOT / "CONTRIBUTING.md"]


@pytest.fixture(scope="module")
def files() -> set[str]:
    folders = ("kclient", "tests", "benchmarks", "docs", "examples")
    return {f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.*")} | {
        f"/{path.name}" for path in ROOT.iterdir()
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_that_the_internals_name_is_there(page: Path, files: set[str]) -> None:
    """By the end of its path, as far as it is given; a page tells of one room, and names folders once."""
    named = set(re.findall(r"`(?:\.\./)?([\w*/.-]+\.(?:py|pyx|pxi|md))`", page.read_text("utf-8")))
    names = "\n".join(files)
    pattern = {name: re.escape("/" + name).replace(r"\*", "[^/]*") for name in named}
    assert [name for name in sorted(named) if not re.search(f"{pattern[name]}$", names, re.MULTILINE)] == []
