"""What a pod asks of the labels of its node: whether any node can have them, and whether the labels are called so."""

from __future__ import annotations

import difflib
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
#: Domains beside them in which people and their tools put what they like.
_OF_OTHERS = ("node-restriction.kubernetes.io", "node-role.kubernetes.io", "feature.node.kubernetes.io", "topology.gke.io")
#: From which likeness on, 0 to 1, a name or a domain is a misspelt one, where the other half is right; and where neither is.
_ALIKE, _BOTH_ALIKE = 0.75, 0.85


def misspelt(label: object) -> str:
    """The well-known label of nodes that is meant by one that is nearly the same, "" for any other."""
    domain, slash, name = str(label).rpartition("/")
    if not slash or domain in _OF_OTHERS or domain.endswith(_OF_OTHERS) or name in _WELL_KNOWN.get(domain, ()):
        return ""
    found = []
    for known, names in _WELL_KNOWN.items():
        of_domain = _likeness(domain, known)
        # In the domain of Kubernetes itself a name that it has elsewhere is misplaced, however far apart the domains are.
        beside = domain.endswith("kubernetes.io") or of_domain >= _ALIKE
        for right in names:
            of_name = _likeness(name, right)
            if (
                (known == domain and of_name >= _ALIKE)
                or (name == right and beside)
                or (of_name >= _BOTH_ALIKE and of_domain >= _BOTH_ALIKE)
            ):
                found.append((of_name + of_domain, f"{known}/{right}"))
    return max(found, key=lambda pair: pair[0], default=(0.0, ""))[1]


def _likeness(text: str, other: str) -> float:
    return difflib.SequenceMatcher(None, text.lower(), other, autojunk=False).ratio()


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
