"""What names and quantities may look like, as far as a rule here rests on them: the API's own rules."""

import re
from fractions import Fraction

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_SUFFIXES |= {f"{prefix}i": 1024**power for power, prefix in enumerate("KMGTPE", start=1)}
_SMALL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}


def dns_label(text: str) -> str:
    """ "" or a sentence."""
    if re.fullmatch(_LABEL, text, re.ASCII) and len(text) <= 63:
        return ""
    return f"{text!r} is no DNS label: at most 63 lower-case letters, digits and '-', beginning and ending with no '-'"


def dns_subdomain(text: str) -> str:
    """ "" or a sentence."""
    if re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", text, re.ASCII) and len(text) <= 253:
        return ""
    return f"{text!r} is no DNS name: lower-case letters, digits, '-' and '.', and no '-' or '.' at its ends"


class NoQuantity(ValueError):
    """The text says what is wrong with it."""


def quantity(value: object) -> Fraction:
    """An amount such as 500m, 64Mi, 1e3, as the API reads it. Raises NoQuantity."""
    text = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
    match = re.fullmatch(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(.*)", text, re.ASCII) if isinstance(text, str) else None
    if match is None:
        raise NoQuantity(f"{value!r} is no quantity: a number with a unit such as 500m, 64Mi or 2G")
    number, unit = Fraction(match[1]), match[2]
    if unit in _SUFFIXES:
        return number * _SUFFIXES[unit]
    if unit in _SMALL:
        return number * _SMALL[unit]
    exponent = re.fullmatch(r"[eE]([+-]?[0-9]{1,3})", unit, re.ASCII)
    if exponent is None:
        raise NoQuantity(f"{value!r} is no quantity: there is no unit {unit!r} (Ki Mi Gi Ti Pi Ei, k M G T P E, m u n)")
    return number * Fraction(10) ** int(exponent[1])
