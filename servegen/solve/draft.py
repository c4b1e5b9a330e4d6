"""From the spec's ``model.speculative`` to facts: which model drafts, and what is known of it."""

from __future__ import annotations

from servegen.catalog.drafts import head_from_file, mtp_layer, usual_head
from servegen.catalog.facts import ModelFacts
from servegen.catalog.models import model_from_file, resolve_model
from servegen.errors import CatalogError, Diagnostic, SpecError
from servegen.solve.drafting import Speculation
from servegen.spec.load import LoadedSpec
from servegen.spec.schema import Speculative

KEY = "spec.model.speculative"
#: Vocabularies of one tokenizer differ by their padding only.
PADDING = 0.01


def speculation(loaded: LoadedSpec, target: ModelFacts) -> Speculation | None:
    """What the spec allows to draft, None if nothing. SpecError at the key that says too little or what cannot be."""
    stated = loaded.spec.spec.model.speculative
    if stated is None:
        return None
    key = f"{KEY}.{'draftConfig' if stated.draft_config else 'draft' if stated.draft else 'method'}"
    try:
        draft, assumed = _draft(loaded, stated, target)
    except CatalogError as error:
        raise SpecError(tuple(d.at(loaded.where.at(key)) for d in error.diagnostics)) from error
    return Speculation(stated.method, draft, stated.draft or "", stated.steps, stated.acceptance, assumed)


def _draft(loaded: LoadedSpec, stated: Speculative, target: ModelFacts) -> tuple[ModelFacts | None, str]:
    """The model that drafts, and what was taken as usual about it."""
    if stated.method == "ngram":
        return None, ""
    if stated.method == "nextn":
        return mtp_layer(target), ""
    name = stated.draft or ""
    path = loaded.path(stated.draft_config, f"{KEY}.draftConfig") if stated.draft_config else None
    if stated.method == "standalone":
        draft = model_from_file(path) if path is not None else _known(name)
        if abs(draft.vocab_size / target.vocab_size - 1.0) > PADDING:
            message = f"{name} has a vocabulary of {draft.vocab_size:,} tokens, {target.id} one of {target.vocab_size:,}"
            raise CatalogError(Diagnostic("draft-vocabulary", message, hint="choose a draft with the target's own tokenizer"))
        return draft, ""
    if path is not None:
        return head_from_file(target, stated.method, name, path), ""
    head = usual_head(target, stated.method, name)
    vocabulary = f", {head.vocab_size:,} tokens of vocabulary" if stated.method == "eagle3" else ""
    return head, f"{name} is taken as one layer of the shape of {target.id}'s{vocabulary}; state draftConfig if it is not"


def _known(name: str) -> ModelFacts:
    """A draft by its catalogue id, with a hint that fits a draft where there is none."""
    try:
        return resolve_model(name)
    except CatalogError as error:
        message = f"the catalogue has no model {name!r}, so that what it costs to draft with it is not known"
        hint = f"state {KEY.removeprefix('spec.')}.draftConfig: the draft's config.json"
        raise CatalogError(Diagnostic("draft-unknown", message, hint=hint)) from error
