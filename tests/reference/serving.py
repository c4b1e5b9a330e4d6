"""The methods of the vectors about servers under load, and those of the literature."""

from __future__ import annotations

import dataclasses
import math

from servegen.roofline import collectives
from servegen.roofline.speculation import yield_moments
from servegen.service import latency, size
from servegen.service.demand import Demand, demand
from servegen.service.disciplines import DISCIPLINES
from servegen.service.server import Server, server
from servegen.workload import Lengths, Workload
from tests.reference import formulas, textbook
from tests.reference.methods import Inputs, decode_step, method, prefill, sequences
from tests.reference.textbook import Case, column


def steady(time_s: float, gaps: int = 1) -> tuple[Server, Demand]:
    """A server whose decode step, and whose prompt of one token, take ``time_s`` whatever the batch."""
    d = demand(Workload(isl=Lengths.fixed(1), osl=Lengths.fixed(gaps + 1), rate_per_s=1.0))
    shape = Case(textbook.model(1.0, time_s), textbook.chip(1e30, 1.0))
    return server(shape.terms, column(1.0), 0.0, d), d


def decode_rate_of(step_s: float, gaps: int, batch: float) -> float:
    """Requests/s of a decode server with ``batch`` sequences, each of ``gaps`` steps."""
    s, d = steady(step_s, gaps)
    return float(DISCIPLINES["decode"](s, d, column(batch)).rate[0])


def prefill_rate_of(prompt_s: float) -> float:
    """Requests/s of a prefill server that is always busy."""
    s, d = steady(prompt_s)
    return float(DISCIPLINES["prefill"](s, d, column(1.0)).rate[0])


# -- H: serving -------------------------------------------------------------------------------------------------------


@method
def handoff(i: Inputs) -> float:
    """The cache of one sequence over a link that is used in full."""
    full = collectives.HandoffCurve(1.0, 0.0, "the vector")
    return float(collectives.handoff_s(column(i.token_bytes * i.context), column(i("link")), full)[0])


@method
def tokens_evicted(i: Inputs) -> float:
    """Tokens that leave the cache in each step: finished sequences with all they hold."""
    return sequences_finished(i) * (i("I") + i("O"))


@method
def sequences_finished(i: Inputs) -> float:
    """Per step."""
    return decode_rate_of(1.0, i("O"), i("B"))


@method
def prefill_to_decode(i: Inputs) -> float:
    """Prefill servers per decode server."""
    return decode_rate_of(i("T_step"), i("O"), i("B")) / prefill_rate_of(i("T_prefill"))


@method
def decode_requests(i: Inputs) -> float:
    """Requests/s of a decode server, or of one device of it; the step is given, or follows from the configuration."""
    rate = decode_rate_of(i("T_step") if "T_step" in i else decode_step(i), i("O"), i("B"))
    return rate / i("n") if i("per_device", True) else rate


@method
def decode_gain(i: Inputs) -> float:
    """Requests per device of the larger slice over the smaller one, at one step time and full memory."""
    small, large = (decode_rate_of(1.0, i("O"), sequences(i.but(n=n))) / n for n in (i("n_small"), i("n_large")))
    return large / small


@method
def decode_devices(i: Inputs) -> float:
    """Devices of whole decode servers for a rate."""
    return formulas.devices_for(i("rate"), decode_requests(i.but(per_device=False)), i("n"))


@method
def decode_dollars(i: Inputs) -> float:
    """Dollars per hour of those devices."""
    return decode_devices(i) * i("usd")


@method
def prefill_devices(i: Inputs) -> float:
    """Devices that prefill a rate when always busy."""
    return formulas.devices_for(i("rate"), prefill_rate_of(prefill(i)), i("n", 1))


def batch_within(i: Inputs) -> float:
    """Largest batch whose step keeps a bound, real: as the search sizes a decode server."""
    case, d = i.case(), demand(Workload(isl=Lengths.fixed(1), osl=Lengths.fixed(2), saturate=True), bounded=False)
    s = dataclasses.replace(server(case.terms, column(1.0), 0.0, d), kv_s=case.terms.kv_s(i.context))
    bound = size.Slo((size.Bound("itl", "itl", math.nan, i("bound_s")),), math.nan, ())
    return float(size.largest_level(DISCIPLINES["decode"], s, d, bound, column(1e6), {})[0][0])


@method
def whole_batch_within(i: Inputs) -> float:
    return float(math.floor(batch_within(i)))


@method
def cost_reduction(i: Inputs) -> float:
    """How much cheaper a token gets when a step may take ``factor`` times that of one sequence."""
    alone = i.case().decode_s(1, i.context)
    return batch_within(i.but(bound_s=i("factor") * alone)) / i("factor")


@method
def batch_of_equal_kv(i: Inputs) -> float:
    """Sequences whose cache takes as long to read as the weights."""
    terms = i.case().terms
    return float((terms.weight_s / terms.kv_s(i.context))[0])


@method
def context_of_equal_kv(i: Inputs) -> float:
    """Context whose reading takes as long as a token's multiplications."""
    terms = i.case().terms
    return float(terms.token_flop_s[0] / terms.token_read_s[0, 0])


@method
def prefix_bytes(i: Inputs) -> float:
    return formulas.shared_prefix_bytes(i("kv_seq") / i("prompt"), i("prompt"), i("shared", 0), i("n_req"))


@method
def prefix_saving(i: Inputs) -> float:
    everything = formulas.shared_prefix_bytes(1.0, i("prompt"), 0, i("n_req"))
    return 1.0 - formulas.shared_prefix_bytes(1.0, i("prompt"), i("shared"), i("n_req")) / everything


@method
def prefix_saved_bytes(i: Inputs) -> float:
    """What a head held once saves over ``n_req`` requests."""
    saved = formulas.shared_prefix_saving(i("shared"), i("shared"), i("n_req"))
    return saved * i("n_req") * i("shared") * i("kv_tok")


@method
def prefix_copy_bytes(i: Inputs) -> float:
    return formulas.shared_prefix_bytes(i("kv_tok"), i("shared"), i("shared"), 1)


@method
def chunks(i: Inputs) -> float:
    """Steps of a prompt: each takes one unit of time."""
    shape = textbook.model(1.0, 1.0)
    return Case(shape, textbook.chip(1e30, 1.0)).prefill_s(i("prompt"), i("chunk"))


@method
def chunk_stall(i: Inputs) -> float:
    """The stall of one chunk where the whole prompt takes ``stall_s``."""
    whole = float(i("prompt"))
    shape = textbook.model(1.0, 1e-30)
    terms = Case(shape, textbook.chip(2.0 * whole / i("stall_s"), 1.0)).terms
    return float(terms.chunk_s(column(whole / i("chunks")))[0])


@method
def per_dollar(i: Inputs) -> float:
    return formulas.per_dollar(i(i("of")) * i("times", 1.0), i("usd"))


@method
def request_time(i: Inputs) -> float:
    """First token, then ``O`` gaps."""
    s, d = steady(i("T_step"), i("O"))
    return i("T_prefill") + float(latency.e2e_mean(DISCIPLINES["decode"](s, d, column(1.0)), d)[0])


# -- I: literature -----------------------------------------------------------------------------------------------------


@method
def queued_prefill(i: Inputs) -> float:
    """Mean first token of a prefill server under Poisson arrivals; ``speedup`` divides the service time."""
    service = i("D") / i("speedup", 1.0)
    s, d = steady(service)
    return float(latency.ttft_mean(DISCIPLINES["prefill"](s, d, column(i("R") * service)))[0])


@method
def two_stage_queue(i: Inputs) -> float:
    return formulas.two_stage_queue_s(i("D"), i("R"))


@method
def experts_awake(i: Inputs) -> float:
    """Experts whose weights a step streams, each taking one unit of time."""
    shape = textbook.model(i("E"), 1.0, active=1e-9, experts=(i("E"), i("k")))
    return float(Case(shape, textbook.chip(1e30, 1.0)).terms.gemm_s(column(i("B")))[0])


def mixed_server(i: Inputs) -> tuple[Server, Demand]:
    """A server whose token budget is just what keeps up with its decodes."""
    d = demand(Workload(isl=Lengths.fixed(i("I")), osl=Lengths.fixed(i("O") + 1), saturate=True), bounded=False)
    case = i.case()
    budget = i("B") + i("B") * i("I") * (1.0 - i("hit", 0.0)) / i("O")
    s = server(case.terms, column(budget), 0.0, d)
    return dataclasses.replace(s, kv_s=case.terms.kv_s(i.context)), d


@method
def mixed_tokens(i: Inputs) -> float:
    """Prefill tokens per step of a steady state."""
    s, d = mixed_server(i)
    p = DISCIPLINES["mixed"](s, d, column(i("B")))
    return float((p.rate * i("I") * p.gap_mean_s)[0])


@method
def mixed_gap(i: Inputs) -> float:
    """Mean gap while prompts are prefilled in the decode steps."""
    s, d = mixed_server(i)
    return float(DISCIPLINES["mixed"](s, d, column(i("B"))).gap_mean_s[0])


@method
def chunk_reread(i: Inputs) -> float:
    return formulas.chunk_reread(i("n_chunks"))


@method
def aic_tpot(i: Inputs) -> float:
    return formulas.aiconfigurator_tpot_s(i("b"), i("isl"), i("osl"), i("ctx_tokens"), i("mix_s"), i("gen_s"))


@method
def aic_ttft_factor(i: Inputs) -> float:
    return formulas.aiconfigurator_ttft_factor(i("steps_to_finish_ctx"))


@method
def aic_split_rate(i: Inputs) -> float:
    rate = formulas.aiconfigurator_split_rate((i("np"), i("prefill_seq_s"), i("fp")), (i("nd"), i("decode_seq_s"), i("fd")))
    return rate / (i("np") * i("prefill_gpus") + i("nd") * i("decode_gpus"))


@method
def speculated_tokens(i: Inputs) -> float:
    return float(yield_moments(column(i("gamma")), column(i("alpha")))[0][0])
