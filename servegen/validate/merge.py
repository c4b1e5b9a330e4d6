"""A patch merged into an object as kustomize merges it, so that what a cluster would be given can be checked without one.

Of the kinds that Kubernetes itself has, kustomize knows by which fields the items of a list are told apart; a list of a custom
resource, and any list without such fields, is replaced whole. A null takes a field away. Items of a patch come first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from servegen.validate.schema import field_type

#: (type, field) -> the fields that tell the items of a list apart (x-kubernetes-list-map-keys and -patch-merge-key of the
#: API's OpenAPI document); none for a list of texts that is merged as a set.
_KEYS: Mapping[tuple[str, str], tuple[str, ...]] = {
    **{("PodSpec", field): ("name",) for field in ("containers", "initContainers", "ephemeralContainers", "volumes")},
    **{("PodSpec", field): ("name",) for field in ("imagePullSecrets", "resourceClaims", "schedulingGates")},
    ("PodSpec", "hostAliases"): ("ip",),
    ("PodSpec", "topologySpreadConstraints"): ("topologyKey", "whenUnsatisfiable"),
    **{(owner, "env"): ("name",) for owner in ("Container", "EphemeralContainer")},
    **{(owner, "ports"): ("containerPort", "protocol") for owner in ("Container", "EphemeralContainer")},
    **{(owner, "volumeMounts"): ("mountPath",) for owner in ("Container", "EphemeralContainer")},
    **{(owner, "volumeDevices"): ("devicePath",) for owner in ("Container", "EphemeralContainer")},
    ("ServiceSpec", "ports"): ("port", "protocol"),
    ("ServiceAccount", "secrets"): ("name",),
    ("ObjectMeta", "ownerReferences"): ("uid",),
    ("ObjectMeta", "finalizers"): (),
}
#: Kinds that Kubernetes itself does not have: no list of theirs is merged.
CUSTOM = frozenset({"LeaderWorkerSet", "PodMonitor", "ScaledObject"})
_METADATA = re.compile(r"metadata\.(labels|annotations)\..*")
#: The directives that kustomize carries out.
DIRECTIVE = "$patch"


class PatchError(ValueError):
    """A patch that kustomize would refuse, or of which it would drop a part in silence. ``path`` leads to the place."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(problem)
        self.path, self.problem = path, problem


def keys_of(owner: str, field: str) -> tuple[str, ...] | None:
    """By what the items of a list are told apart, None of one that is replaced whole."""
    return _KEYS.get((owner, field))


def merged(body: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any] | None:
    """``body`` with ``patch`` merged into it, None where the patch deletes it. Neither is changed. Raises PatchError.

    Kind, name and namespace stay what they are, whatever the patch says of them: it has a target.
    """
    kind = str(body.get("kind"))
    out = _mapping(body, patch, "" if kind in CUSTOM else kind, "")
    if out is None:
        return None
    _check_metadata(patch)
    meta = {**(out["metadata"] if isinstance(out.get("metadata"), dict) else {})}
    own = body.get("metadata")
    for field in ("name", "namespace"):
        if isinstance(own, Mapping) and field in own:
            meta[field] = own[field]
    return {**out, "kind": body.get("kind"), "metadata": meta}


def _check_metadata(patch: Mapping[str, Any]) -> None:
    """Labels and annotations become texts, whatever they are: a null the word null, a mapping nothing."""
    meta = patch.get("metadata")
    for field in ("labels", "annotations"):
        values = meta.get(field) if isinstance(meta, Mapping) else None
        for name, value in values.items() if isinstance(values, Mapping) else ():
            if value is None or isinstance(value, (Mapping, list)):
                why = "kustomize makes the text 'null' of it and takes nothing away" if value is None else "must be text"
                raise PatchError(f"metadata.{field}.{name}", why)


def _mapping(node: Mapping[str, Any], patch: Mapping[str, Any], owner: str, path: str) -> dict[str, Any] | None:
    directive = patch.get(DIRECTIVE)
    if directive is not None and directive not in ("delete", "replace", "merge"):
        raise PatchError(path, f"{DIRECTIVE}: must be delete, replace or merge")
    if directive == "delete":
        return None
    own = {} if directive == "replace" else dict(node)
    for field, value in patch.items():
        here = f"{path}.{field}" if path else str(field)
        if str(field).startswith("$") and field != DIRECTIVE:
            raise PatchError(here, f"kustomize has no directive {field}, and would keep it as a field")
        if field == DIRECTIVE:
            continue
        kept = _value(own.get(field), value, owner, str(field), here)
        if kept is None:
            own.pop(field, None)
        else:
            own[field] = kept
    return own


def _value(node: Any, patch: Any, owner: str, field: str, path: str) -> Any:
    notation = field_type(owner, field)
    if isinstance(patch, Mapping):
        return _mapping(node if isinstance(node, Mapping) else {}, patch, notation.strip("[]"), path)
    if isinstance(patch, list):
        keys = keys_of(owner, field)
        if keys is not None and isinstance(node, list):
            return _items(node, patch, keys, notation.strip("[]"), path)
        return _fresh(patch, notation.strip("[]"), path, keys)
    if patch is not None and not isinstance(patch, str) and (isinstance(node, str) or _METADATA.fullmatch(path)):
        return json.dumps(patch)  # what was in quotes stays in quotes
    return patch


def _fresh(items: list[Any], owner: str, path: str, keys: tuple[str, ...] | None) -> list[Any] | None:
    """A list that stands where there was none, or in place of another."""
    if keys is None:
        return list(items)
    for i, item in enumerate(items):
        # Of an item of its own alone; one that is to be deleted and is not there is left out, as kustomize does.
        if isinstance(item, Mapping) and set(item) == {DIRECTIVE}:
            raise PatchError(f"{path}[{i}]", f"there is no such list: kustomize would keep {DIRECTIVE} as an item")
    return _items([], items, keys, owner, path)


def _items(node: list[Any], patch: list[Any], keys: tuple[str, ...], owner: str, path: str) -> list[Any] | None:
    """The items of a list whose items are told apart: those of the patch first, then the others; None of one that is deleted."""
    if not keys:
        return [*patch, *(item for item in node if item not in patch)]
    wholly = [item for item in patch if isinstance(item, Mapping) and set(item) == {DIRECTIVE}]
    said = {str(item[DIRECTIVE]) for item in wholly}
    if len(said) > 1 or not said <= {"delete", "replace", "merge"}:
        words = ", ".join(sorted(said))
        raise PatchError(path, f"{DIRECTIVE}: must be one of delete, replace and merge for a whole list, not {words}")
    if said == {"delete"}:
        return None  # with all that the patch lists beside it
    if said == {"replace"}:
        node = []
    rest = list(node)
    out: list[Any] = []
    for i, item in enumerate(patch):
        here = f"{path}[{i}]"
        if item in wholly:
            continue
        if isinstance(item, Mapping) and item.get(DIRECTIVE) == "replace":
            raise PatchError(here, f"kustomize does not carry out {DIRECTIVE}: replace of one item, and would drop it")
        if not isinstance(item, Mapping):
            raise PatchError(here, "must be a mapping")
        if item.get(keys[0]) is None:
            raise PatchError(here, f"has no {keys[0]}, by which kustomize tells the items of this list apart")
        alike = [x for x in rest if isinstance(x, Mapping) and all(x.get(k) == item[k] for k in keys if item.get(k) is not None)]
        whole = [x for x in alike if all(x.get(k) == item.get(k) for k in keys)]
        if alike and not whole:
            lacks = " and ".join(k for k in keys if item.get(k) is None)
            problem = f"has no {lacks}: kustomize tells these items apart by {' and '.join(keys)}, and would drop this one"
            raise PatchError(here, problem)
        made = _mapping(whole[0] if whole else {}, item, owner, here)
        rest = [x for x in rest if not any(x is other for other in whole)]
        if made is not None:
            out.append(made)
    return [*out, *rest]
