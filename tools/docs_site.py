"""A hook of mkdocs, which makes the site of docs/ (`make docs`). Pages come in the order of the index, docs/README.md.

A link to a file outside docs/ has no page on the site: it becomes that file's name. Anchors are those of GitHub, so
that a link is right in both places.
"""

import re
from pathlib import Path
from typing import Any

_LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]* src=\"(?:https?:)?//|<link[^>]* href=\"(?:https?:)?//|url\(['\"]?https?:"
)
_LINK = re.compile(r"\[([^]]+)\]\(((?:\.\./)+)([^)#]+)(#[^)]*)?\)")


def slug(heading: str, separator: str = "-") -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)


def on_config(config: Any) -> Any:
    index = Path(config["docs_dir"], "README.md").read_text(encoding="utf-8")
    nav: list[dict[str, Any]] = [{"Contents": "README.md"}]
    for half in re.split(r"^## ", index, flags=re.M)[1:]:
        pages = re.findall(r"\[([^]]+)\]\(((?:using|inside)/[^)#]+)\)", half)
        nav.append({half.splitlines()[0]: [{title: path} for title, path in pages]})
    config["nav"] = nav
    return config


def on_page_markdown(text: str, page: Any, config: Any, files: Any) -> str:
    here = Path(config["docs_dir"], page.file.src_path).parent

    def kept(link: re.Match[str]) -> str:
        target = (here / (link[2] + link[3])).resolve()
        inside = target.is_relative_to(config["docs_dir"])
        return link[0] if inside else f"{link[1]} (`{target.relative_to(Path(config['docs_dir']).parent)}`)"

    return _LINK.sub(kept, text)


def on_post_build(config: Any) -> None:
    """Raises if the site would load a thing from a network."""
    pages = (path for path in Path(config["site_dir"]).rglob("*") if path.suffix in (".html", ".css"))
    loads = [path for path in pages if _LOADED.search(path.read_text(encoding="utf-8"))]
    if loads:
        raise SystemExit(f"these load something from a network: {', '.join(map(str, loads))}")
