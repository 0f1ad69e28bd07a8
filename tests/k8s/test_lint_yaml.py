"""What the linter reads: YAML as the API server reads it, and what is no YAML, or none that should be loaded."""

import math
from typing import Any

import pytest

from k8s.lint.check import check
from k8s.lint.documents import MOST_DEEP, MOST_NODES, Unreadable, read
from tests.k8s.manifests import POD, broken, errors

WORDS: list[tuple[str, Any]] = [
    ("y", True), ("Off", False), ("TRUE", True), ("n", False), ("yES", "yES"),
    ("", None), ("~", None), ("null", None), ("nULL", "nULL"),
    ("010", 8), ("0o17", 15), ("0x1E", 30), ("0b11", 3), ("1_000", 1000), ("-5", -5), ("+5", 5), ("08", 8), ("0", 0),
    ("3e1", 30), ("30.0", 30), ("1.5", 1.5), (".5", 0.5), ("1e-1", 0.1), ("1e21", 1e21), ("-.inf", -math.inf),
    ("1:30", "1:30"), ("22:22", "22:22"), ("2026-01-02", "2026-01-02"), ("=", "="), ("1.2.3", "1.2.3"), ("-", [None]),
    ("'y'", "y"), ('"5"', "5"), ("!!str 5", "5"), ("!!int '5'", 5), ("1e", "1e"), (".", "."), ("+", "+"),
]  # fmt: skip


@pytest.mark.parametrize(("word", "value"), WORDS, ids=[word for word, _ in WORDS])
def test_a_word_is_what_the_server_takes_it_for(word: str, value: Any) -> None:
    (document,) = read(f"a:\n  {word}\n", "x")
    assert document.value == {"a": value} and type(document.value["a"]) is type(value)


def test_a_number_as_a_key_is_a_text_and_a_boolean_is_none() -> None:
    assert read("{5: a, 010: b}", "x")[0].value == {"5": "a", "8": "b"}
    with pytest.raises(Unreadable, match="the key on isn't a text: put it in quotes"):
        read("on: push", "x")


def chain(first: str, link: str) -> str:
    return f"b0: &b0 {first}\n" + "".join(f"b{n}: &b{n} {link.format(n - 1)}\n" for n in range(1, 3 * MOST_DEEP))


def tower(first: str, link: str) -> str:
    """Ten times as much on each floor."""
    return f"b0: &b0 {first}\n" + "".join(
        f"b{n}: &b{n} {link.format(','.join([f'*b{n - 1}'] * 10))}\n" for n in range(1, 10)
    )


DEEP, MANY = f"nested more than {MOST_DEEP} levels deep", f"more than {MOST_NODES} values"
UNREADABLE = [
    ("brackets", "a: " + "[" * 100_000 + "]" * 100_000, DEEP),  # libyaml's composer ends the process
    ("dashes", "- " * 20_000, DEEP),
    ("indentation", "".join(" " * n + "a:\n" for n in range(900)), DEEP),
    ("aliases of aliases", chain("[x]", "[*b{}]"), DEEP),
    ("merges of merges", chain("{k: x}", "{{<<: *b{}}}"), DEEP),
    ("a tower of aliases", tower("[x]", "[{}]"), MANY),
    ("a tower of merges", tower("{k: x}", "{{<<: [{}]}}"), MANY),
    ("itself", "a: &a [*a]", "contains itself"),
    ("merges itself", "a: &a\n  <<: *a", "contains itself"),
    ("itself as a key", "? &a [*a]\n: b", "a key has to be a text"),
    ("a mapping as a key", "{a: b}: c", "a key has to be a text"),
    ("a number of thousands of digits", "a: " + "9" * 6000, "can't be read as int"),
    ("no number", "a: !!int abc", "'abc' can't be read as int"),
    ("no boolean", "a: !!bool maybe", "'maybe' can't be read as bool"),
    ("an unknown tag", "a: !foo bar", "could not determine a constructor for the tag '!foo'"),
    ("a zero byte", "a: \0", "control characters are not allowed"),
    ("UTF-16 without a mark", POD.encode("utf-16-le").decode("latin-1"), "control characters are not allowed"),
    ("twice", "a: 1\na: 2", "the key a stands twice"),
    ("a tab", "a:\n\tb: 1", "cannot start any token"),
    ("a template", "kind: {{ .Values.kind }}", "`helm template CHART` renders it"),
    ("a template's loop", "{{- range .Values.all }}\na: b", "`helm template CHART` renders it"),
]


@pytest.mark.parametrize(("text", "says"), [each[1:] for each in UNREADABLE], ids=[each[0] for each in UNREADABLE])
def test_what_should_not_be_loaded_is_one_error_of_one_line(text: str, says: str) -> None:
    (found,) = check([("x.yaml", text)])
    assert says in str(found) and "\n" not in str(found), found


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_other_line_ends_and_a_byte_order_mark_change_nothing(end: str) -> None:
    assert check([("x.yaml", "\ufeff" + POD.replace("\n", end))]) == []


def test_what_cant_be_printed_is_escaped() -> None:
    (found, *_) = check([("x.yaml", 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {"a\\n\\e[31m": 1}')])
    assert "data.a\\n\\x1b[31m" in str(found)


@pytest.mark.parametrize(
    "path",
    ["NetworkPolicy.spec.ingress[1].ports[0].port", "Service.spec.ports[0].port", "Service.spec.ports[0].targetPort"],
)
@pytest.mark.parametrize("junk", [{}, [[]], {"a": None}, 1.5, True])
def test_a_port_of_another_type_is_an_error_and_no_more(path: str, junk: Any) -> None:
    assert any("wrong type" in error for error in errors(broken(POD, {path: junk})))


def test_a_list_of_one_kind_is_what_it_holds() -> None:
    item = "{metadata: {name: a}, spec: {containers: [{name: A, image: x:1}]}}"
    for text in (f"kind: PodList\nitems: [{item}]", f"kind: List\nitems: [{{apiVersion: v1, kind: Pod, {item[1:]}]"):
        (found,) = check([("x.yaml", f"apiVersion: v1\n{text}")])
        assert "no DNS label" in str(found) and found.object == "Pod/a"
