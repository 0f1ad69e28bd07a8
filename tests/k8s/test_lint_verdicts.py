"""The 49 manifest sets that were sent to a real kube-apiserver (1.36.2), and what the linter says to them.

It rejects all that the server rejects, and what the server takes and no cluster can run; `ACCEPTED` are the others.
"""

import hashlib
import json

import pytest

from k8s.lint.check import check
from k8s.lint.node import Level
from tests.k8s.manifests import GOOD, HERE, recorded

VERDICTS = {case["case"]: case for case in json.loads((HERE / "apiserver-verdicts.json").read_text())["cases"]}
CASES = recorded()
ACCEPTED = {"good", "liveness-with-termination-grace"}


def test_every_recorded_case_is_here_as_the_server_was_sent_it() -> None:
    assert len(VERDICTS) == 49 and set(CASES) == set(VERDICTS)
    sent = "".join(CASES[case] for case in sorted(CASES)).encode()
    assert hashlib.sha256(sent).hexdigest() == "e4d481ef3ca5fe2633dba104b47d112634b1c287415ebeae8809d7dc57609eb5"


@pytest.mark.parametrize("case", sorted(VERDICTS))
def test_the_linter_rejects_what_a_cluster_would_not_run_for_what_was_changed_in_it(case: str) -> None:
    """The edited field and nothing else: as many errors as the one fault makes, each near the changed lines."""
    good, text = GOOD.splitlines(), CASES[case]
    errors = [found for found in check([(f"{case}.yaml", text)]) if found.level is Level.ERROR]
    if case in ACCEPTED:
        assert errors == [] and VERDICTS[case]["apiserver"] != "rejected"
        return
    assert 1 <= len(errors) <= 3, errors
    lines = {found.line for found in errors}
    changed = {number for number, line in enumerate(text.splitlines(), 1) if line not in good}
    # An unknown field is said of the object that it stands in, so a few lines above.
    assert not changed or any(abs(line - one) <= 35 for line in lines for one in changed), (lines, changed)


def test_bad_yaml_is_a_sentence_with_a_line() -> None:
    (found,) = check([("x.yaml", "kind: Pod\nmetadata: {name: [}\n")])
    assert (found.level, found.line) == (Level.ERROR, 2)
    assert found.message.startswith("this is no YAML")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\na: 2\n", "the key a stands twice"),
        ("- 1\n", "this is no object"),
        ("just words\n", "this is no object"),
        ("kind: Pod\n", "apiVersion is missing"),
        ("on: 2\n", "isn't a text"),
        ("a: &x [*x]\n", "an anchor contains itself"),
        ("a: \x01\n", "this is no YAML"),
        ("apiVersion: v1\nkind: Pdo\nmetadata: {name: x}\n", "has no Pdo in version v1; there is Pod"),
        ("apiVersion: apps/v1\nkind: Pod\nmetadata: {name: x}\n", "there is Pod in v1"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {}\nspec: {}\n", "name is missing"),
    ],
)
def test_what_is_no_manifest_is_an_error(text: str, says: str) -> None:
    assert any(says in found.message for found in check([("x.yaml", text)]) if found.level is Level.ERROR)


def test_a_foreign_kind_is_only_a_warning() -> None:
    (found,) = check([("x.yaml", "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: x}\nspec: {a: 1}\n")])
    assert found.level is Level.WARNING


def test_a_kustomization_is_fine_and_an_empty_file_is_not() -> None:
    text = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [a.yaml]\n"
    (found,) = check([("a.yaml", "---\n# nothing\n---\n"), ("kustomization.yaml", text)])
    assert (found.level, found.file, found.message) == (Level.ERROR, "a.yaml", "there is nothing in it")
