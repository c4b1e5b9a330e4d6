"""What every section of the language is made of: strict models, quantities with units, and texts with a grammar."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError, core_schema

from servegen import units
from servegen.record import record


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


class Section(BaseModel):
    """A mapping of the language: camelCase outside, snake_case inside, unknown keys refused, null keys absent.

    ``RESOLVED`` names the attributes whose None means "found out later"; they show as null, other Nones not at all.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=_camel,
        defer_build=True,
        protected_namespaces=(),  # pydantic before 2.10 warns about every field that begins with `model_`
    )
    RESOLVED: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict) or None not in data.values():
            return data
        known = {f.alias for f in cls.model_fields.values()}
        return {key: value for key, value in data.items() if value is not None or key not in known}

    @model_serializer(mode="wrap")
    def _show(self, handler: SerializerFunctionWrapHandler) -> Any:
        shown = handler(self)
        kept = {type(self).model_fields[name].alias for name in self.RESOLVED}
        return {key: _person(value) for key, value in shown.items() if value is not None or key in kept}


def _person(value: Any) -> Any:
    """``2048`` instead of ``2048.0``, also inside lists."""
    if isinstance(value, list):
        return [_person(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Finding(NamedTuple):
    """What a rule over several keys has against one of them.

    ``key`` is dotted and relative to the section; "" is the section itself.
    """

    key: str
    code: str
    message: str
    hint: str = ""


def refuse(findings: list[Finding]) -> None:
    """Raise what a section's rules found, if anything, in the form that ``explain`` unpacks."""
    if findings:
        raise PydanticCustomError("findings", "rules over several keys", {"findings": findings})


@record
class Quantity:
    """A float of SI units that is written with a unit, from ``least`` to ``most``; ``may_be_zero`` allows 0, too.

    The range holds everything that is real. Beyond it, products and quotients of the physics would leave the floats,
    and counts of seconds or bytes the integers of Kubernetes.
    """

    parse: Callable[[object], float]
    write: Callable[[float], str]
    units: tuple[str, ...]
    example: str
    least: float
    most: float
    may_be_zero: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        shown = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_plain_validator_function(self.check, serialization=shown)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return self.json_schema()

    def json_schema(self) -> dict[str, Any]:
        legal = "|".join(re.escape(unit) for unit in self.units)
        sign = r"\$?" if self.example.startswith("2.95") else ""
        return {
            "type": "string",
            "pattern": rf"^{sign}[0-9.]+([eE][-+]?[0-9]+)?\s*({legal})$",
            "examples": [self.example],
        }

    def check(self, value: object) -> float:
        try:
            number = self.parse(value)
        except ValueError as error:
            problem, _, legal = str(error).partition(": write ")
            hint = f"write {legal}" if legal else ""
            code = "wrong-unit" if legal else "out-of-range"
            raise PydanticCustomError(code, "{problem}", {"problem": problem, "hint": hint}) from error
        if number == 0 and not self.may_be_zero:
            raise PydanticCustomError("out-of-range", "must be more than zero", {"hint": f"for example {self.example}"})
        if number > self.most or 0 < number < self.least:
            rule = f"at most {self.write(self.most)}" if number > self.most else f"at least {self.write(self.least)}"
            raise PydanticCustomError("out-of-range", "must be {rule}, not {text}", {"rule": rule, "text": str(value)[:40]})
        return number


DURATION = Quantity(units.parse_duration, units.format_duration, tuple(units.SECONDS), "500ms", 1e-6, 3.6e7)
_PAUSE = Quantity(units.parse_duration, units.format_duration, tuple(units.SECONDS), "20s", 1e-6, 3.6e7, may_be_zero=True)
_BYTES = Quantity(units.parse_bytes, units.format_bytes, tuple(units.BYTES), "200GiB", 1e6, 1e18)
_BANDWIDTH = Quantity(units.parse_bandwidth, units.format_bandwidth, tuple(units.BYTES_PER_S), "400Gbps", 1e6, 1e15)
_RATE = Quantity(units.parse_rate, units.format_rate, tuple(units.PER_S), "20/s", 1e-9, 1e9)
_PRICE = Quantity(units.parse_price, units.format_price, tuple(units.PER_H), "2.95/h", 1e-9, 1e9, may_be_zero=True)
Duration = Annotated[float, DURATION]  # s
Pause = Annotated[float, _PAUSE]  # s, may be 0
Bytes = Annotated[float, _BYTES]
Bandwidth = Annotated[float, _BANDWIDTH]  # bytes/s
Rate = Annotated[float, _RATE]  # 1/s
Price = Annotated[float, _PRICE]  # $/h, may be 0


@record
class Text:
    """A string that matches ``pattern`` whole. ``what`` names it in messages, ``rule`` says what is legal."""

    what: str
    pattern: str
    rule: str
    longest: int = 253
    code: str = "bad-name"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^(?:{self.pattern})$", "maxLength": self.longest}

    def check(self, value: object) -> str:
        if not isinstance(value, str):
            raise PydanticCustomError("string_type", "must be text")
        if len(value) > self.longest:
            message = "{what} has {length} characters, more than {longest}"
            raise PydanticCustomError(
                "bad-name",
                message,
                {"what": self.what, "length": len(value), "longest": self.longest, "hint": self.rule},
            )
        if not re.fullmatch(self.pattern, value, re.ASCII):
            ctx = {"value": value[:80], "what": self.what, "hint": self.rule}
            raise PydanticCustomError(self.code, "'{value}' is no {what}", ctx)
        return value


_DNS = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_RULE = "lower-case letters, digits and -, a letter or digit at both ends (RFC 1123)"
_QUALIFIED = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = rf"({_DNS}(\.{_DNS})*/)?{_QUALIFIED}"

#: Services are named after the spec, and their names begin with a letter (RFC 1035).
SpecName = Annotated[
    str, Text("RFC 1123 label", rf"(?![0-9]){_DNS}", f"at most 40 characters, a letter first: {_DNS_RULE}", 40)
]
DnsLabel = Annotated[str, Text("RFC 1123 label", _DNS, f"at most 63 characters: {_DNS_RULE}", 63)]
DnsName = Annotated[str, Text("RFC 1123 name", rf"{_DNS}(\.{_DNS})*", f"{_DNS_RULE}, dots between parts")]
LabelKey = Annotated[
    str,
    Text("label key", _LABEL_KEY, "like nvidia.com/gpu.product: [domain/]name, the name at most 63 characters", 317),
]
LabelValue = Annotated[
    str,
    Text(
        "label value", f"({_QUALIFIED})?", "at most 63 letters, digits, -, _ and ., a letter or digit at both ends", 63
    ),
]
ResourceName = Annotated[
    str,
    Text("extended resource", rf"{_DNS}(\.{_DNS})*/{_QUALIFIED}", "like nvidia.com/gpu or rdma/ib: domain/name", 317),
]
DataKey = Annotated[str, Text("key of a secret", "[-._A-Za-z0-9]+", "letters, digits, -, _ and .")]
Id = Annotated[str, Text("identifier", r"[A-Za-z0-9][A-Za-z0-9 ._/@+-]*", "a name as `servegen catalog list` shows it")]
Checkpoint = Annotated[
    str,
    Text(
        "checkpoint",
        r"[A-Za-z0-9./_][A-Za-z0-9._/:@+-]*",
        "a Hugging Face id (organisation/name) or the path that the server sees",
        512,
    ),
]
Version = Annotated[str, Text("version", r"[0-9A-Za-z][0-9A-Za-z.+_-]*", 'like "0.5.23"', 64)]
_FOLDER = r"/+(?!.*(^|/)\.\.(/|$))[A-Za-z0-9._@+-][A-Za-z0-9._/@+-]*"
AbsolutePath = Annotated[str, Text("absolute path", _FOLDER, "like /models, without .., and not / itself", 1024, "bad-path")]
Ratio = Annotated[float, Field(strict=True, ge=0, lt=1)]
Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Flag = Annotated[bool, Field(strict=True)]


def whole(least: int, most: int) -> Any:
    """The constraint of an integer between ``least`` and ``most``."""
    return Field(strict=True, ge=least, le=most)


Count = Annotated[int, whole(1, 1_000_000)]
Tokens = Annotated[int, whole(1, 1_000_000_000)]


@record
class RelativePath:
    """A path to a file, kept as written: relative to the spec file. ``endings`` are the legal ends of its name."""

    endings: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[^/~].*$"}

    def check(self, value: object) -> str:
        if not isinstance(value, str):
            raise PydanticCustomError("string_type", "must be text")
        hint = "write it relative to the spec file, with / between folders"
        if not value or value[0] in "/~" or "\\" in value or "://" in value or re.match("[A-Za-z]:", value):
            raise PydanticCustomError("bad-path", "'{value}' is no relative path", {"value": value[:80], "hint": hint})
        if self.endings and not value.endswith(self.endings):
            ctx = {"value": value[:80], "hint": f"a file that ends in {', '.join(self.endings)}"}
            raise PydanticCustomError("bad-path", "'{value}' is of no kind that can be read", ctx)
        return value
