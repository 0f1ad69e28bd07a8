"""What names, quantities, ports and paths may look like: the API's own rules.

Every function takes a text and returns "" or a sentence. Source: k8s.io/apimachinery/pkg/util/validation.
"""

import ipaddress
import re
from fractions import Fraction

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_IMAGE = re.compile(
    r"(?:(?P<host>(?:[a-zA-Z0-9](?:[-a-zA-Z0-9]*[a-zA-Z0-9])?)(?:\.[a-zA-Z0-9](?:[-a-zA-Z0-9]*[a-zA-Z0-9])?)*(?::[0-9]+)?"
    r"|\[[0-9a-fA-F:]+\](?::[0-9]+)?)/)?"
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
    r"(?::[\w][\w.-]{0,127})?(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
)


def dns_label(text: str) -> str:
    if re.fullmatch(_LABEL, text, re.ASCII) and len(text) <= 63:
        return ""
    return f"{text!r} is no DNS label: at most 63 lower-case letters, digits and '-', beginning and ending with no '-'"


def dns_1035_label(text: str) -> str:
    if re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", text, re.ASCII) and len(text) <= 63:
        return ""
    return f"{text!r} is no DNS-1035 label: at most 63 lower-case letters, digits and '-', beginning with a letter"


def dns_subdomain(text: str) -> str:
    if re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", text, re.ASCII) and len(text) <= 253:
        return ""
    return f"{text!r} is no DNS name: lower-case letters, digits, '-' and '.', and no '-' or '.' at its ends"


def qualified_name(text: str) -> str:
    """A key of a label, an annotation, a resource: [prefix/]name."""
    prefix, slash, name = text.rpartition("/")
    if slash and (not prefix or dns_subdomain(prefix)):
        return f"{text!r}: what stands before the / has to be a DNS name"
    if not re.fullmatch(_QUALIFIED, name, re.ASCII) or len(name) > 63:
        return f"{text!r} is no qualified name: [DNS name/]NAME of 1 to 63 letters, digits, '-', '_' and '.'"
    return ""


def label_value(text: str) -> str:
    if re.fullmatch(rf"({_QUALIFIED})?", text, re.ASCII) and len(text) <= 63:
        return ""
    return f"{text!r} can't be the value of a label: at most 63 letters, digits, '-', '_' and '.'"


def port_name(text: str) -> str:
    right = re.fullmatch(r"[-a-z0-9]+", text, re.ASCII) and re.search("[a-z]", text) and "--" not in text
    if right and len(text) <= 15 and not text.startswith("-") and not text.endswith("-"):
        return ""
    return f"{text!r} is no name of a port: at most 15 lower-case letters, digits and single '-', one of them a letter"


def environment_name(text: str) -> str:
    if text and all(" " <= c <= "~" and c != "=" for c in text):
        return ""
    return f"{text!r} is no name of a variable: printable ASCII without '='"


def header_name(text: str) -> str:
    return "" if re.fullmatch(r"[-A-Za-z0-9]+", text, re.ASCII) else f"{text!r} is no name of an HTTP header"


def config_key(text: str) -> str:
    if re.fullmatch(r"[-._a-zA-Z0-9]+", text, re.ASCII) and len(text) <= 253 and text not in (".", ".."):
        return ""
    return f"{text!r} is no key of a config map or secret: letters, digits, '-', '_' and '.'"


def relative_path(text: str) -> str:
    """A path below something else."""
    if text.startswith("/"):
        return f"{text!r} must be a relative path"
    return no_backsteps(text)


def no_backsteps(text: str) -> str:
    return f"{text!r} must not contain '..'" if ".." in text.split("/") else ""


def image(text: str) -> str:
    return "" if _IMAGE.fullmatch(text) else f"{text!r} is no name of an image: kubelet would say InvalidImageName"


def tag(text: str) -> str:
    """Of an image's name, or its digest, which says more. Without either kubelet takes latest."""
    return text.rpartition("/")[2].partition(":")[2] or "latest"


def address(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return f"{text!r} is no IP address"
    return ""


def network(text: str) -> str:
    try:
        if "/" not in text:
            raise ValueError
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return f"{text!r} is no range of addresses such as 10.0.0.0/8"
    return ""


def percent_or_count(value: object, *, at_most_100: bool = False) -> str:
    """An IntOrString of a rollout or a disruption budget."""
    if isinstance(value, str):
        if not re.fullmatch(r"[0-9]+%", value, re.ASCII):
            return f"{value!r} is neither a number nor a percentage such as 25%"
        return f"{value} is more than 100%" if at_most_100 and int(value[:-1]) > 100 else ""
    if isinstance(value, int) and not isinstance(value, bool):
        return "" if 0 <= value < 2**31 else f"{value} must not be negative, nor 2^31 or more"
    return ""


_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_SUFFIXES |= {f"{prefix}i": 1024**power for power, prefix in enumerate("KMGTPE", start=1)}
_SMALL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}


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
