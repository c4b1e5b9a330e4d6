"""How publishers of benchmarks start their engines: what stands in their scripts, and what their figures show.

- InferenceX (SemiAnalysisAI/InferenceX benchmarks/70b_fp8_b200_trt_slurm.sh and its likes) gives TensorRT-LLM steps as long
  as the longest request and, for 1024/1024 tokens below TP 8, ``batch_wait_timeout_iters: 20`` with
  ``batch_wait_max_tokens_ratio: 0.9``: prompts wait up to 20 decode steps for company.
- It starts vLLM on Blackwell with graphs of decode steps alone (``FULL_DECODE_ONLY``), and with norms and quantization as
  kernels of their own (``+rms_norm``, ``+quant_fp8``; benchmarks/70b_fp8_b200_docker.sh), on Hopper with vLLM's own settings.
  Steps with prompts then are launched one small kernel after the other.
- The generator of fixed lengths that are powers of two starts TensorRT-LLM with steps of one prompt, and with as many places
  as users, of which one is not there for requests: the mean first token of 8 users comes after a seventh of an answer, of 16
  users after a fifteenth, at every length and TP. Its scripts are not public; this is what its 177 runs show.
"""

from __future__ import annotations

from servegen.record import record
from servegen.simulate.benchmark import DRAWN_PAIRS, FIXED_ISL, FIXED_OSL

#: Engines that put whole prompts into a step.
WHOLE_PROMPTS = frozenset({"tensorrt-llm"})
#: SGLang's prefill step on Blackwell, whose devices have the memory for it (its server arguments, above 90 GB).
LARGE_STEP_TOKENS = 16384
LARGE_STEP_CAPABILITY = 10.0
#: What InferenceX adds to the longest request in max_model_len, which is also its max_num_tokens.
LENGTH_MARGIN = 200
#: InferenceX's batch waiting: for these lengths, below this TP, at most so many decode steps.
WAITING_PAIR = (1024, 1024)
WAITING_BELOW_TP = 8
WAIT_STEPS = 20
#: What launching a layer of a step with a prompt takes in vLLM with graphs of decode steps alone, over that of its own
#: settings. InferenceX's 60 runs on B200 are met equally well by 1.5 to 2; the least of these is taken.
DECODE_GRAPHS_ONLY = 1.5
#: Compute capabilities, from and below, of the devices on which InferenceX starts vLLM so.
DATACENTER_BLACKWELL = (10.0, 11.0)


@record
class Started:
    """Tokens of a step, sequences at a time, decode steps for which a prompt waits for company, and what a layer of a step with
    a prompt takes to launch, over the engine's own ``prompt_layer_s``.
    """

    chunk: int
    slots: int
    wait_steps: int = 0
    launches: float = 1.0


def started(engine: str, capability: float, token_budget: int, tp: int, users: int, isl: int, osl: int) -> Started:
    """The settings under which the known generators measured ``engine`` at these nominal lengths; elsewhere its defaults."""
    if engine not in WHOLE_PROMPTS:
        large = engine == "sglang" and capability >= LARGE_STEP_CAPABILITY
        least, below = DATACENTER_BLACKWELL
        unfused = engine == "vllm" and least <= capability < below and (isl, osl) in DRAWN_PAIRS
        tokens = LARGE_STEP_TOKENS if large else token_budget
        return Started(tokens, users, launches=DECODE_GRAPHS_ONLY if unfused else 1.0)
    if (isl, osl) in DRAWN_PAIRS:
        waits = (isl, osl) == WAITING_PAIR and tp < WAITING_BELOW_TP
        return Started(isl + osl + LENGTH_MARGIN, users, WAIT_STEPS if waits else 0)
    fixed = isl in FIXED_ISL and osl in FIXED_OSL
    # A prompt must fit beside the running batch.
    longest = -(-(users + isl + 64) // 64) * 64
    return Started(longest if fixed else max(longest, token_budget), max(users - 1, 1) if fixed else users)
