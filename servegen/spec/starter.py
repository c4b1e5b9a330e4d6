"""The commented spec that ``servegen init`` writes."""

from __future__ import annotations

import json
import re

from servegen.record import record
from servegen.spec.load import loads
from servegen.spec.tree import core_scalar


@record
class Answers:
    """What ``servegen init`` asks, as a person writes it; the defaults are what ``--yes`` takes.

    ``schema`` is what editors are told to check the file against: a path from the spec's folder, or a URL.
    """

    model: str = "meta-llama/Llama-3.1-8B-Instruct"
    accelerator: str = "h100-sxm-80gb"
    nodes: int = 1
    per_node: int = 8
    preset: str = "chat"
    rate: str = "5/s"
    isl_mean: int = 1024
    isl_p95: int = 3072
    osl_mean: int = 256
    osl_p95: int = 768
    namespace: str = "default"
    schema: str = "servegen.schema.json"


def starter(name: str, answers: Answers | None = None) -> str:
    """A spec called ``name`` that loads. SpecError where the name or an answer is not legal."""
    a = answers or Answers()
    text = f"""\
# yaml-language-server: $schema={" ".join(a.schema.split())}
# (the schema of this language, for editors: servegen schema > {" ".join(a.schema.split())})
#
# servegen plan {name}.yaml                 shows the plan, why it was chosen, and what it costs
# servegen plan {name}.yaml --show-spec     shows every default that was applied
# servegen build {name}.yaml -o out/        writes launch scripts and Kubernetes manifests
apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata:
  name: {_scalar(name)}  # names every object: lower-case letters, digits and -, at most 40 characters
spec:
  # Fills what is not stated below: chat | api | batch | long-context | edge.
  preset: {_scalar(a.preset)}

  model:
    # `servegen catalog list` shows what is known. Or config: path/to/config.json, for a model of your own.
    name: {_scalar(a.model)}
    # contextLength: 8192    # default: the longest prompt and answer of the traffic
    # checkpoints:           # what can be loaded, by weight precision
    #   bf16: organisation/model

  # slo:                     # each bound optional; a scalar means p95
  #   ttft: {{p95: 500ms}}     # arrival to first token
  #   itl: {{p95: 50ms}}       # gap between two output tokens
  #   e2e: {{p95: 30s}}        # arrival to last token

  traffic:
    # Peak arrivals. Or concurrency: 200, or users: {{active: 500, thinkTime: 20s}}, or trace: file.csv.
    # Leave all of them out to load the pool as much as it carries.
    rate: {_scalar(a.rate)}
    isl: {{mean: {a.isl_mean}, p95: {a.isl_p95}}}  # prompt tokens; one number where all are equal
    osl: {{mean: {a.osl_mean}, p95: {a.osl_p95}}}  # answer tokens
    # prefix: {{shared: 512}}  # tokens of a prompt head that all requests share

  hardware:
    pool:
      - accelerator: {_scalar(a.accelerator)}  # several kinds may stand in one pool
        nodes: {a.nodes}
        perNode: {a.per_node}
        # price: 2.95/h      # per accelerator; default: the catalogue's, with its date

  # objective: cost          # cost | throughput | latency | energy

  # constraints:
  #   weights: [bf16, fp8]   # allowed precisions
  #   kvCache: [bf16, fp8]
  #   maxAccelerators: 8
  #   spareReplicas: 1       # N+1

  deploy:
    namespace: {_scalar(a.namespace)}
    # modelCache: {{claim: model-cache}}
    # hfTokenSecret: {{name: hf-token, key: HF_TOKEN}}
    # autoscaling: keda      # none | hpa | keda
    # monitoring: true
"""
    loads(text, f"{name}.yaml")
    return text


def _scalar(text: str) -> str:
    """``text`` as a YAML scalar that is read back as the very same text."""
    is_plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/@+-]*", text, re.ASCII) and isinstance(core_scalar(text), str)
    return text if is_plain else json.dumps(text)
