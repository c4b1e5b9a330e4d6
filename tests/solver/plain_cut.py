"""How a replica may be cut into devices, as plain rules: which cuts there are, which can be, how many replicas nodes hold."""

from __future__ import annotations

from dataclasses import dataclass

from servegen.catalog.facts import ModelFacts
from servegen.solve.problem import EngineOption, Kind, Problem, WeightOption


@dataclass(frozen=True)
class Cut:
    """``tp`` devices for each of ``pp`` stages; inside them ``dp`` groups of attention and ``ep`` ranks of experts.

    ``ahead`` tokens are drafted before each step.
    """

    tp: int
    pp: int = 1
    dp: int = 1
    ep: int = 1
    ahead: int = 0

    @property
    def devices(self) -> int:
        return self.tp * self.pp

    @property
    def group(self) -> int:
        """Devices that have a sequence's attention between them."""
        return self.tp // self.dp

    @property
    def whole(self) -> bool:
        """Whether the replica is one stage and one group."""
        return self.pp == 1 and self.dp == 1

    @property
    def words(self) -> str:
        """As the name of a candidate has it."""
        more = "".join(f"-{axis}{n:02d}" for axis, n in (("pp", self.pp), ("dp", self.dp), ("ep", self.ep)) if n > 1)
        return f"tp{self.tp:02d}{more}"


def nodes_under(kind: Kind, devices: int) -> int:
    """Nodes that so many neighbours stand on."""
    assert kind.facts.scaleup_domain <= 8 and not kind.facts.legal_tp  # links that reach over hosts are not known here
    return (devices + kind.plan.per_node - 1) // kind.plan.per_node


def most_replicas(kind: Kind, cut: Cut) -> int:
    """Replicas that the nodes hold; one that takes several nodes takes them whole."""
    if cut.devices > kind.plan.per_node:
        return kind.plan.nodes // nodes_under(kind, cut.devices)
    return kind.plan.nodes * (kind.plan.per_node // cut.devices)


def cuts(problem: Problem, engine: EngineOption, kind: Kind, option: WeightOption, kv: str, split: bool = False) -> list[Cut]:
    """The cuts that can be, none drafting; the roles of a split have no stages."""
    per, model = kind.plan.per_node, problem.model
    experts = model.layers[0].num_experts > 0
    doubled = [2**i for i in range(10)]
    joined = [n for n in doubled if n <= kind.plan.nodes and (n == 1 or kind.plan.fabric_bytes_per_s > 0)]
    found = []
    for tp in sorted(set(problem.tps or [*doubled, *(per * n for n in joined)])):
        stages = problem.pps or (joined if tp == per and "pp" in engine.facts.parallel else [1])
        groups = problem.dps or ([n for n in doubled if n <= tp] if experts and "dp" in engine.facts.parallel else [1])
        ranks = problem.eps or ([1, tp] if experts and "ep" in engine.facts.parallel else [1])
        found += [Cut(tp, pp, dp, ep) for pp in stages for dp in groups for ep in ranks]
    served = _served(engine, kind, option, kv)
    wanted = (c for c in sorted(set(found), key=lambda c: (c.tp, c.pp, c.dp, c.ep)) if c.pp == 1 or not split)
    return [c for c in wanted if served and _stands(engine, kind, c) and _even(model, option, c)]


def _served(engine: EngineOption, kind: Kind, option: WeightOption, kv: str) -> bool:
    """Whether the engine serves these precisions on the device."""
    acc = kind.facts
    native = option.precision in acc.peak_flops and option.precision != "int4"
    return (
        acc.vendor in engine.facts.vendors
        and option.precision in acc.gemm
        and (not option.quantization or native)
        and (kv != "fp8" or "fp8" in acc.peak_flops)
    )


def _stands(engine: EngineOption, kind: Kind, cut: Cut) -> bool:
    """Whether the nodes can be such a replica: on one of them, or on several whole ones with a fabric between them."""
    acc, per = kind.facts, kind.plan.per_node
    if any(n > 1 and axis not in engine.facts.parallel for axis, n in (("pp", cut.pp), ("dp", cut.dp), ("ep", cut.ep))):
        return False
    if cut.devices > per * kind.plan.nodes:
        return False
    if cut.devices > per:
        whole = cut.devices % per == 0 and (per % cut.tp == 0 if cut.tp <= per else cut.tp % per == 0)
        if not (whole and engine.facts.multi_node and kind.plan.fabric_bytes_per_s > 0):
            return False
    elif cut.tp > acc.scaleup_domain:
        return False
    inside = min(cut.tp, per)
    return inside == 1 or inside in acc.allreduce_alpha_s


def _even(model: ModelFacts, option: WeightOption, cut: Cut) -> bool:
    """Whether heads, experts and widths divide, and no stored block of the quantization is cut."""
    (layer,) = model.layers
    att, experts = layer.attention, layer.num_experts
    if cut.tp % cut.dp or cut.tp % cut.ep or cut.pp > layer.count or (max(cut.dp, cut.ep) > 1 and not experts):
        return False
    if att.num_heads % cut.group or (att.num_kv_heads % cut.group and cut.group % att.num_kv_heads):
        return False
    if experts and experts % cut.ep:
        return False
    blocks = model.weight_block if not option.quantization and option.precision == model.native_precision else 0
    for width, by in (
        (layer.intermediate, cut.tp),
        (layer.moe_intermediate, cut.tp // cut.ep),
        (layer.shared_intermediate, cut.tp),
    ):
        if width % by or (blocks and width // by % blocks):
            return False
    return True


def drafting_cuts(problem: Problem, engine: EngineOption, kind: Kind, cut: Cut, discipline: str) -> list[Cut]:
    """The cut with every number of tokens that it may draft ahead; a draft is cut by the group that drafts."""
    asked = problem.speculation
    if asked is None or discipline in ("mixed", "static") or cut.pp > 1:
        return [cut]
    if asked.method not in engine.facts.drafts or (cut.dp > 1 and asked.method not in engine.facts.drafting_groups):
        return [cut]
    assert asked.steps <= 8
    if asked.draft is not None:
        own = asked.draft
        assert not own.layers[0].num_experts
        if own.native_precision not in kind.facts.gemm:
            return [cut]
        if not _even(own, WeightOption(own.native_precision, "", "", own.native_precision), Cut(cut.group)):
            return [cut]
    return [Cut(cut.tp, cut.pp, cut.dp, cut.ep, ahead) for ahead in range(asked.steps + 1)]
