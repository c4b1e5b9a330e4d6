"""Formulas of the literature that the product does not use, written down once more and independently.

The vectors that exercise them keep the reference honest; docs/physics.md says which is which. Units as in the product.
"""

from __future__ import annotations

import math

# -- arithmetic intensity, FLOP per byte ------------------------------------------------------------------------------


def attention_intensity(queries: float, keys: float, group: float = 1.0) -> float:
    """F14, F14b: scores and values of ``queries`` on ``keys`` tokens, ``group`` query heads per KV head."""
    return queries * keys * group / (queries * group + keys)


def values_intensity(head_dim: float) -> float:
    """F14: scores times V of one query, whose S x S scores are not kept: H/(H+1)."""
    return head_dim / (head_dim + 1.0)


def softmax_intensity(flops_per_element: float, bytes_per_element: float) -> float:
    """F14: softmax reads and writes each element once."""
    return flops_per_element / bytes_per_element


def matmul_bytes(rows: float, inner: float, columns: float, weight_bytes: float, activation_bytes: float) -> float:
    """F13: what [rows, inner] x [inner, columns] moves."""
    return activation_bytes * rows * (inner + columns) + weight_bytes * inner * columns


def matmul_intensity(rows: float, inner: float, columns: float, weight_bytes: float, activation_bytes: float) -> float:
    """F13."""
    return 2.0 * rows * inner * columns / matmul_bytes(rows, inner, columns, weight_bytes, activation_bytes)


def step_intensity_limit(params: float, sequence_bytes: float) -> float:
    """F17: of a whole decode step as the batch grows."""
    return 2.0 * params / sequence_bytes


# -- how far a matrix can be split, and what that says over the wire ---------------------------------------------------


def ridge(flops: float, link_bytes_per_s: float) -> float:
    """F21: FLOP per byte on the wire at which multiplying hides communication; tokens per device likewise."""
    return flops / link_bytes_per_s


def compute_bound_ways(width: float, flops_per_byte: float, axes: float = 1.0) -> float:
    """F21: ways that a matrix of ``width`` can be split before the wire takes longer than multiplying."""
    return axes * width / flops_per_byte


def memory_bound_ways(width: float, batch: float, hbm_over_link: float) -> float:
    """F22: the same against streaming the weights."""
    return width / (batch * hbm_over_link)


def ring_gather_s(message_bytes: float, link_bytes_per_s: float) -> float:
    """F23: all-gather or reduce-scatter over a ring of chips, both directions used."""
    return message_bytes / link_bytes_per_s


def switch_gather_s(message_bytes: float, devices: float, link_bytes_per_s: float) -> float:
    """F41: all-gather or reduce-scatter behind a switch."""
    return message_bytes * (devices - 1.0) / (devices * link_bytes_per_s)


def switch_exchange_s(message_bytes: float, devices: float, link_bytes_per_s: float) -> float:
    """F25, F41: all-to-all behind a switch."""
    return message_bytes * (devices - 1.0) / (devices**2 * link_bytes_per_s)


def reduced_in_network_s(message_bytes: float, link_bytes_per_s: float) -> float:
    """F41: all-reduce that the switch itself sums."""
    return message_bytes / link_bytes_per_s


def collective_bytes_per_s(degree: float, link_bytes_per_s: float) -> float:
    """F41: what a level of ``degree`` children yields to a collective."""
    return link_bytes_per_s * degree / (degree - 1.0)


def latency_bound_bytes(shards: float, link_bytes_per_s: float, hop_s: float) -> float:
    """F26: message below which hops, not bytes, decide."""
    return shards * link_bytes_per_s * hop_s


def two_dimensional_from(width_over_hidden: float) -> float:
    """F27: devices from which splitting both axes of the weights moves less than splitting one.

    Per layer one axis moves 4BD/(3W); two move 2BD/(XW) + 4BF/(YZ W) with the best X: 2 sqrt(8 r/N) BD/W for F = rD.
    """
    return 8.0 * width_over_hidden * (2.0 * 3.0 / 4.0) ** 2


# -- serving -----------------------------------------------------------------------------------------------------------


def shared_prefix_bytes(token_bytes: float, prompt: float, shared: float, requests: float) -> float:
    """F32: one copy of the shared head and every request's own rest."""
    return token_bytes * (shared + requests * (prompt - shared))


def shared_prefix_saving(prompt: float, shared: float, requests: float) -> float:
    """F32: the share of all prompt tokens that is not stored twice."""
    return (requests - 1.0) * shared / (requests * prompt)


def devices_for(rate: float, rate_of_one: float, devices: float) -> float:
    """F39: whole replicas of ``devices`` that carry ``rate``."""
    return devices * math.ceil(rate / rate_of_one)


def per_dollar(quantity: float, dollars: float) -> float:
    """F36, F37: FLOP/s x 3600, or bytes, by the hourly price."""
    return quantity / dollars


def chunk_reread(chunks: float) -> float:
    """F45: how often chunks read the cache again, over one pass."""
    return chunks * (chunks + 1.0) / 2.0 / chunks


def speculated_tokens(acceptance: float, guesses: float) -> float:
    """F49: tokens per verification of ``guesses`` drafts."""
    return (1.0 - acceptance ** (guesses + 1.0)) / (1.0 - acceptance)


def two_stage_queue_s(service_s: float, rate: float) -> float:
    """F42: mean time through two equal pipeline stages, deterministic service, Poisson arrivals."""
    return service_s + rate * service_s**2 / (4.0 * (2.0 - rate * service_s))


def aiconfigurator_tpot_s(batch: float, prompt: float, output: float, budget: float, mixed_s: float, decode_s: float) -> float:
    """F46: AIConfigurator's aggregated time per token (base backend)."""
    mixed_steps = math.ceil(prompt * batch / budget)
    decode_steps = output - mixed_steps
    return (mixed_s * mixed_steps + decode_s * decode_steps) / (mixed_steps + decode_steps)


def aiconfigurator_ttft_factor(context_steps: float) -> float:
    """F46: by how much AIConfigurator lengthens a first token for the queue before it."""
    return min(2.0 + (context_steps - 3.0) / 20.0, 4.0)


def aiconfigurator_split_rate(prefill: tuple[float, float, float], decode: tuple[float, float, float]) -> float:
    """F47: requests/s per device of a split; each side (workers, requests/s of one, share kept), devices in ``devices``."""
    return min(prefill[0] * prefill[1] * prefill[2], decode[0] * decode[1] * decode[2])
