"""Texts with a grammar of their own in Kubernetes: quantities, names, labels, images, versions."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from fractions import Fraction

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][-+]?[0-9]{1,3})?")
_SCALE: dict[str, Fraction] = {
    "": Fraction(1),
    **{suffix: Fraction(1, 1000**i) for i, suffix in enumerate("mun", start=1)},
    **{suffix: Fraction(1000**i) for i, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024**i) for i, suffix in enumerate("KMGTPE", start=1)},
}
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_PORT_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
_LABEL_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_LONGEST_SHOWN = 200
#: Of a whole number in a text, and of a quantity: Kubernetes keeps 64 bits, and int() refuses thousands of digits.
_MOST_DIGITS = 18
_LONGEST_QUANTITY = 64
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}")


def quantity(value: object) -> Fraction | None:
    """The exact number of a Kubernetes quantity (``16Gi``, ``500m``, ``8``), None if it is not one (``16GiB``).

    A number without quotes is one, too: the server reads what JSON writes of it.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, int) and abs(value) >= 10**_LONGEST_QUANTITY:
        return None  # str() refuses thousands of digits
    text = str(value)
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST_QUANTITY else None
    if match is None:
        return None
    number, suffix = Fraction(match[1].rstrip(".")), match[2] or ""
    scale = _SCALE.get(suffix)
    return number * (Fraction(f"1{suffix}") if scale is None else scale)


def whole(text: object) -> int | None:
    """The whole number that a text holds, None if it holds none; only ``0`` to ``9`` are digits, as in Go."""
    if not isinstance(text, str) or len(text) > _MOST_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def is_name(text: str) -> bool:
    """RFC 1123 label of at most 63 characters."""
    return _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """RFC 1123 subdomain of at most 253 characters: labels with dots between them."""
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def is_service_name(text: str) -> bool:
    """RFC 1035 label, which starts with a letter: what a Service needs wherever KEP-5311 is not enabled."""
    return _SERVICE.fullmatch(text) is not None


def is_port_name(text: str) -> bool:
    """IANA service name: at most 15 characters with a letter among them."""
    return _PORT_NAME.fullmatch(text) is not None


def is_loopback(host: str) -> bool:
    """Whether an address or a name means whoever asks it; to connect to no address at all is to connect to oneself."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def is_port(value: object) -> bool:
    """Whether ``value`` is a number from 1 to 65535."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535


def is_label_key(text: str) -> bool:
    """``[prefix/]name``: a DNS subdomain of at most 253 characters, a name of at most 63."""
    prefix, slash, name = text.rpartition("/")
    if slash and not is_subdomain(prefix):
        return False
    return _LABEL_PART.fullmatch(name) is not None


def is_label_value(value: object) -> bool:
    """Empty, or at most 63 of ``A-Za-z0-9-_.`` with alphanumeric ends. Only a string: ``true`` and ``1`` are none."""
    return isinstance(value, str) and (value == "" or _LABEL_PART.fullmatch(value) is not None)


def is_variable(text: str) -> bool:
    """A name of an environment variable that every supported Kubernetes takes."""
    return _VARIABLE.fullmatch(text) is not None


def image_problem(image: object) -> str:
    """What keeps ``image`` from naming one build, "" if nothing does."""
    if not isinstance(image, str) or not image:
        return "no image is given"
    if any(c.isspace() for c in image):
        return f"{image!r} holds white space"
    if "@" in image:
        return "" if _DIGEST.search(image) else f"{image!r} has a digest that is no sha256 of 64 hex digits"
    tag = image.rpartition("/")[2].partition(":")[2]
    if not tag:
        return f"{image!r} has no tag, which means :latest"
    return f"{image!r} means another build tomorrow" if tag == "latest" else ""


def shown(value: object) -> str:
    """A value of a manifest in a message: as YAML has it, and at most so long that a line is still read."""
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "...")
    if value is None:
        return "nothing"
    if not isinstance(value, (bool, int, float, list, Mapping)):
        return repr(value)
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def minor_version(text: str) -> tuple[int, int] | None:
    """(1, 34) of ``1.34`` or ``v1.34.2``, None if it is no version."""
    match = re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})(\.\S*)?", text)
    return (int(match[1]), int(match[2])) if match else None
