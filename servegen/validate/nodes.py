"""What a pod asks of the labels of its node: whether any node can have them, and whether the labels are called so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from servegen.validate.objects import dig, mapping, sequence
from servegen.validate.syntax import shown, whole

HOST = "kubernetes.io/hostname"
#: Labels that Kubernetes itself gives to nodes (kubernetes.io/docs/reference/labels-annotations-taints), domain -> names.
_WELL_KNOWN: Mapping[str, tuple[str, ...]] = {
    "topology.kubernetes.io": ("zone", "region"),
    "kubernetes.io": ("hostname", "os", "arch"),
    "node.kubernetes.io": ("instance-type",),
    "failure-domain.beta.kubernetes.io": ("zone", "region"),
    "beta.kubernetes.io": ("instance-type", "os", "arch"),
}
#: Letters by which a misspelt label differs from the right one at the most: of a name of a few letters, and of a longer one.
#: Whatever else is one of somebody's own, which a cluster may well have.
_FEW, _OFF = 5, (1, 2)


def misspelt(label: object) -> str:
    """The well-known label of nodes that is meant by one that differs from it by a slip of the pen, or that puts its name into
    another of the well-known domains; "" for any other label.
    """
    domain, _, name = str(label).rpartition("/")
    text = str(label).lower()
    known = [f"{domain}/{name}" for domain, names in _WELL_KNOWN.items() for name in names]
    if str(label) in known:
        return ""
    if domain in _WELL_KNOWN and (homes := [home for home, names in _WELL_KNOWN.items() if name in names]):
        return f"{homes[0]}/{name}"
    off = {right: _edits(text, right, _OFF[len(right.rpartition("/")[2]) > _FEW]) for right in known}
    found = [right for right in known if off[right] is not None]
    return min(found, key=lambda right: (off[right], right), default="")


def _edits(text: str, other: str, most: int) -> int | None:
    """Letters to add, to leave out, to change or to swap with the next one (Damerau 1964), None if more than ``most``."""
    if abs(len(text) - len(other)) > most:
        return None
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(text, start=1):
        earlier, before, row = before, row, [i]
        for j, right in enumerate(other, start=1):
            edits = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != right))
            if i > 1 and j > 1 and letter == other[j - 2] and text[i - 2] == right:
                edits = min(edits, earlier[j - 2] + 1)
            row.append(edits)
        if min(row) > most:
            return None
    return row[-1] if row[-1] <= most else None


def required_terms(pod: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """Terms of which a node must meet one, None where the pod asks for none."""
    required = dig(pod, "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else [mapping(t) for t in sequence(mapping(required).get("nodeSelectorTerms"))]


def named_nodes(pod: Mapping[str, Any]) -> frozenset[str] | None:
    """The nodes that a pod may go to where it names them, None where it does not."""
    host = mapping(pod.get("nodeSelector")).get(HOST)
    if host is not None:
        return frozenset({str(host)})
    found: set[str] = set()
    for term in required_terms(pod) or ():
        rules = (*_expressions(term, "matchExpressions"), *_expressions(term, "matchFields"))
        names = [values for key, operator, values in rules if key in (HOST, "metadata.name") and operator == "In"]
        if not names:
            return None
        found |= {str(value) for value in min(names, key=len)}
    return frozenset(found) or None


def contradictions(pod: Mapping[str, Any]) -> list[str]:
    """Why no node meets each of the required terms together with nodeSelector; nothing where one of them can be met."""
    why = [_contradiction(term, mapping(pod.get("nodeSelector"))) for term in required_terms(pod) or ()]
    return why if all(why) else []


def _contradiction(term: Mapping[str, Any], selector: Mapping[str, Any]) -> str:
    """Why no node meets one term, whose expressions must all hold; "" where one can."""
    expressions = list(_expressions(term, "matchExpressions"))
    if not expressions and not sequence(term.get("matchFields")):
        return "an empty term, which no node meets"
    for field, wanted in (("matchExpressions", selector), ("matchFields", {})):
        rules = list(_expressions(term, field))
        for key in dict.fromkeys(key for key, _, _ in rules):
            own = [(operator, values) for k, operator, values in rules if k == key]
            given = [("In", [wanted[key]])] if key in wanted else []
            if not _possible([*own, *given]):
                asked = " and ".join(f"{operator} {', '.join(map(shown, values))}".strip() for operator, values in own)
                against = f"nodeSelector has {shown(wanted[key])}" if given else "nothing is all of it"
                return f"{key} must be {asked}, and {against}"
    return ""


def _expressions(term: Mapping[str, Any], field: str) -> Iterator[tuple[str, str, list[Any]]]:
    for expression in map(mapping, sequence(term.get(field))):
        yield str(expression.get("key")), str(expression.get("operator")), sequence(expression.get("values"))


def _possible(rules: list[tuple[str, list[Any]]]) -> bool:
    """Whether a label can meet all of these at once, by being absent or by some value."""
    asked = {operator for operator, _ in rules}
    if "DoesNotExist" in asked:
        return not asked & {"In", "Exists", "Gt", "Lt"}
    excluded = [v for operator, values in rules for v in values if operator == "NotIn"]
    low = max((n for operator, values in rules if operator == "Gt" for n in map(whole, values) if n is not None), default=None)
    high = min((n for operator, values in rules if operator == "Lt" for n in map(whole, values) if n is not None), default=None)
    allowed = [values for operator, values in rules if operator == "In"]
    if not allowed:
        return low is None or high is None or high - low > 1
    return any(
        all(value in values for values in allowed) and value not in excluded and _between(value, low, high)
        for value in allowed[0]
    )


def _between(value: Any, low: int | None, high: int | None) -> bool:
    number = whole(value)
    if low is None and high is None:
        return True
    return number is not None and (low is None or number > low) and (high is None or number < high)
