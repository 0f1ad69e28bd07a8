"""All rules over all documents, in order: the shape, each object by itself, the set, our own programs.

Reading order: this file, `node.py` (what a rule sees), then any file `..._rules.py`.
"""

from collections.abc import Iterable

from . import claim_rules, objects, own_rules, pod_rules, set_rules, structure
from .documents import Unreadable, read
from .node import Document, Finding, Level
from .pods import pods


def check(texts: Iterable[tuple[str, str]], version: str = structure.NEWEST,
          have: Iterable[tuple[str, str]] = ()) -> list[Finding]:  # fmt: skip
    """What is wrong with these manifests, given as (file, text)."""
    documents: list[Document] = []
    findings: list[Finding] = []
    for file, text in texts:
        try:
            found = _unpacked(read(text, file))
            if not found:
                findings.append(Finding(Level.ERROR, file, 1, "", "", "there is nothing in it"))
            documents += found
        except Unreadable as error:
            findings.append(Finding(Level.ERROR, file, error.line, "", "", f"{error}{_unrendered(text)}"))
    return findings + judge(documents, version, have)


def judge(documents: list[Document], version: str = structure.NEWEST,
          have: Iterable[tuple[str, str]] = ()) -> list[Finding]:  # fmt: skip
    """The same for what was read already."""
    findings: list[Finding] = []
    known = [document for document in documents if structure.check(document, version)]
    for document in known:
        root = document.root
        objects.check_metadata(root)
        claim_rules.check(root)
        for pod in pods(document):
            pod_rules.check(pod)
    set_rules.check(known, have)
    own_rules.check(known, [pod for document in known for pod in pods(document)])
    for document in documents:
        findings += document.findings
    return findings


def _unrendered(text: str) -> str:
    return "; {{ }} is Helm's: `helm template CHART` renders it, and its output is what is looked at" * ("{{" in text)


def _unpacked(documents: list[Document]) -> list[Document]:
    """A list is what it holds: a List, and, as kubectl takes it, a PodList whose items needn't say what they are."""
    found = []
    for document in documents:
        value = document.value if isinstance(document.value, dict) else {}
        kind, items = value.get("kind"), value.get("items")
        if not isinstance(kind, str) or not kind.endswith("List") or (kind != "List" and not isinstance(items, list)):
            found.append(document)
            continue
        own = {} if kind == "List" else {"apiVersion": value.get("apiVersion"), "kind": kind.removesuffix("List")}
        for index, item in enumerate(items if isinstance(items, list) else []):
            start = ("items", index)
            lines = {path[2:]: line for path, line in document.lines.items() if path[:2] == start}
            found.append(Document(document.file, {**own, **item} if isinstance(item, dict) else item, lines))
    return found
