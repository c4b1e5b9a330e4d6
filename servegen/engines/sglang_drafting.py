"""SGLang's flags of speculative decoding, the same on every server of a plan.

Guesses form a chain (top-k 1), so that a step verifies one token more than it drafts. The parser of 0.5.23 knows NEXTN as an
alias of EAGLE whose draft is the target's own checkpoint.
"""

from __future__ import annotations

from servegen.plan import Plan, Role

ALGORITHMS = {"eagle": "EAGLE", "eagle3": "EAGLE3", "nextn": "NEXTN", "standalone": "STANDALONE", "ngram": "NGRAM"}


def flags(plan: Plan, role: Role) -> list[tuple[str, str | int | None]]:
    """The flags of one server; none where the plan drafts nothing."""
    chosen = plan.speculative
    if chosen is None or not chosen.drafted:
        return []
    out: list[tuple[str, str | int | None]] = [("--speculative-algorithm", ALGORITHMS[chosen.method])]
    if chosen.method == "ngram":
        # A trie without branches: the verified tokens are the last one and its continuation.
        out.append(("--speculative-ngram-max-bfs-breadth", 1))
    else:
        # Models outside the DeepSeek and GLM families must be told where their own MTP layer lies.
        out.append(("--speculative-draft-model-path", chosen.draft or role.load))
        # Otherwise a draft would be quantized like its target.
        out.append(("--speculative-draft-model-quantization", "unquant" if role.quantization else ""))
        out.append(("--speculative-num-steps", chosen.drafted))
        out.append(("--speculative-eagle-topk", 1))
    out.append(("--speculative-num-draft-tokens", chosen.drafted + 1))
    return out
