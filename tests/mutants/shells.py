"""Mutants of the shells: rules that only real processes can show. Each names the tests that must fail."""

from tests.mutants.rules import Mutant

SHELLS: tuple[Mutant, ...] = ()
