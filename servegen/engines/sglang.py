"""SGLang: one server per replica, or prefill and decode servers behind sglang-router when the plan splits them.

Flags as of 0.5.23, each by its full canonical name: the parser refuses ambiguous abbreviations (``--pp``).
"""

from __future__ import annotations

from servegen.engines import sglang_drafting, sglang_router
from servegen.engines.contract import Contract, contract_name, load_contract, require
from servegen.engines.launch import Arg, Group, Launch, Place, Probes
from servegen.engines.overrides import environment, merge, value_of
from servegen.engines.startup import require_whole_nodes, startup_budget_s
from servegen.errors import Diagnostic, UserError
from servegen.plan import Plan, Role

#: ``sglang serve`` and this module run the same server; the module needs no script on PATH.
PROGRAM = ("python3", "-m", "sglang.launch_server")
PORT = 30000
BOOTSTRAP_PORT = 8998  # the engine's own default; the router must be told it per prefill server

#: Where the processes of a replica over several nodes meet: a port of the leader (the one that the LWS project's example takes).
RENDEZVOUS_PORT = 20000
NODE_FLAGS = ("--dist-init-addr", "--node-rank")

#: ``/health`` runs a one-token generation unless the variable below is 0: a busy server would be killed as dead.
#: ``/health_generate`` always does, and answers after at most SGLANG_HEALTH_CHECK_TIMEOUT = 20 s (http_server.py).
PROBES = Probes(liveness="/health", readiness="/health_generate", timeout_s=20)
HEALTH_ENV = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}

#: NIXL moves KV through UCX, which picks RDMA, NVLink or TCP by what the pod has. The engine's default, mooncake, needs
#: an InfiniBand device (named by --disaggregation-ib-device) or a backend of its own for TCP (mooncake_tcp).
TRANSFER_BACKEND = "nixl"

KV_DTYPES = {"bf16": "bfloat16", "fp8": "fp8_e4m3"}  # "auto" would follow the checkpoint, not the plan

_MLA_PREFIXES = ("Deepseek", "Glm4MoeLite", "GlmMoeDsa", "Kimi", "LongcatFlash", "MiniCPM3")


class SGLang:
    """See :class:`servegen.engines.launch.Engine`."""

    id = "sglang"

    def launches(self, plan: Plan) -> tuple[Launch, ...]:
        """``serve``; or ``prefill``, ``decode`` and ``router`` in that order.

        UserError: an override or a choice that this version's parser refuses. NotBuiltError: a replica over parts of nodes.
        """
        name = contract_name(self.id, plan.choice.engine_version)
        contract = load_contract(name)
        servers = tuple(_server(plan, role, contract) for role in plan.choice.roles)
        if plan.choice.topology == "aggregated":
            return servers
        return (*servers, sglang_router.launch(plan, servers))


ENGINE = SGLang()


def _server(plan: Plan, role: Role, contract: Contract) -> Launch:
    require_whole_nodes(plan, role)
    group = _group(plan, role)
    _refuse_nodes(plan, contract, group)
    args = merge(_args(plan, role), plan.deploy.args, contract)
    own = group.args(Place("leader", "0")) if group is not None else ()
    require(contract, (*args, *own), f"sglang {role.role}")
    port = int(value_of(args, "--port", str(PORT)))
    metrics = any(a.flag == "--enable-metrics" for a in args)
    bootstrap = int(value_of(args, "--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT)))
    return Launch(
        name=role.role,
        role=role.role,
        program=PROGRAM,
        args=args,
        env=environment(_env(plan), plan.deploy.env),
        port=port,
        probes=PROBES,
        contract=contract.name,
        metrics_port=port if metrics else 0,
        extra_ports={"bootstrap": bootstrap} if role.role == "prefill" else {},
        group=group,
    )


def _group(plan: Plan, role: Role) -> Group | None:
    nodes = plan.nodes(role)
    return Group(nodes, RENDEZVOUS_PORT, *NODE_FLAGS) if nodes > 1 else None


def _refuse_nodes(plan: Plan, contract: Contract, group: Group | None) -> None:
    """How many nodes a replica takes is the plan's to say: UserError on an override that would say otherwise."""
    mine = {"--nnodes", "--node-rank", *(NODE_FLAGS if group is not None else ())}
    for key in sorted(plan.deploy.args):
        flag = contract.flags.get("--" + key.removeprefix("--"))
        if flag is not None and flag.canonical in mine:
            nodes = group.nodes if group is not None else 1
            message = f"deploy.overrides.args.{key}: a replica of this plan takes {nodes} node{'s' * (nodes > 1)}"
            hint = "leave it out; constraints.tp and constraints.pp decide over how many nodes a replica goes"
            raise UserError(Diagnostic("flag-nodes", message, hint=hint))


def _args(plan: Plan, role: Role) -> tuple[Arg, ...]:
    """The planned flags of one server, in the order in which scripts show them."""
    flags: list[tuple[str, str | int | None]] = [
        ("--model-path", role.load),
        ("--served-model-name", plan.model.served_name),
        ("--trust-remote-code", None if plan.model.trust_remote_code else ""),
        ("--host", "0.0.0.0"),  # the default is the loopback address, which no Service reaches
        ("--port", PORT),
        ("--tp-size", role.tp),
        ("--pp-size", role.pp if role.pp > 1 else ""),
        *_nodes(plan, role),
        # Attention-DP inside the TP group; --dp-size would start whole copies of the model.
        ("--attn-dp-size", role.dp if role.dp > 1 else ""),
        ("--ep-size", role.ep if role.ep > 1 else ""),
        ("--dtype", "bfloat16" if role.weights == "bf16" else "auto"),
        ("--quantization", role.quantization),
        ("--kv-cache-dtype", _kv_dtype(role)),
        ("--context-length", role.context_length),
        ("--mem-fraction-static", f"{role.mem_fraction_static:.6g}"),
        ("--max-running-requests", role.max_running_requests),
        *_scheduling(plan, role),
        *sglang_drafting.flags(plan, role),
        *_disaggregation(role),
        ("--enable-metrics", None),
    ]
    return tuple(Arg(flag, () if value is None else (str(value),)) for flag, value in flags if value != "")


def _nodes(plan: Plan, role: Role) -> list[tuple[str, str | int | None]]:
    """How many processes make a replica, and how long they wait for one another.

    Left to itself torch gives up after 10 minutes (NCCL's default), in which a node may still pull the image or read
    weights. A collective that hangs later is noticed by the engine's own watchdog (--watchdog-timeout).
    """
    nodes = plan.nodes(role)
    return [("--nnodes", nodes), ("--dist-timeout", int(startup_budget_s(plan, role)))] if nodes > 1 else []


def _scheduling(plan: Plan, role: Role) -> list[tuple[str, str | int | None]]:
    """Chunks for what prefills, CUDA graphs for what decodes, and the order of the queue."""
    flags: list[tuple[str, str | int | None]] = []
    if role.role != "decode" and role.chunked_prefill_size > 0:
        flags.append(("--chunked-prefill-size", role.chunked_prefill_size))
        # One step never prefills more than the chunk that the step time was planned for.
        flags.append(("--max-prefill-tokens", role.chunked_prefill_size))
    if role.role == "serve" and role.mixed_chunk:
        flags.append(("--enable-mixed-chunk", None))
    if role.role != "prefill":  # a prefill server captures no decode graphs
        # Each attention-DP rank runs its own share of the batch.
        flags.append(("--cuda-graph-max-bs-decode", -(-role.max_running_requests // max(1, role.dp))))
    flags.append(("--schedule-policy", "lpm" if plan.traffic.prefix_hit > 0 and role.role != "decode" else "fcfs"))
    return flags


def _disaggregation(role: Role) -> list[tuple[str, str | int | None]]:
    if role.role == "serve":
        return []
    flags: list[tuple[str, str | int | None]] = [
        ("--disaggregation-mode", role.role),
        ("--disaggregation-transfer-backend", TRANSFER_BACKEND),
    ]
    if role.role == "prefill":  # a decode server learns it with each request
        flags.append(("--disaggregation-bootstrap-port", BOOTSTRAP_PORT))
    return flags


def _env(plan: Plan) -> dict[str, str]:
    env = dict(HEALTH_ENV)
    if _needs_staging(plan):
        # Without it, KV heads that lie differently on the two sides cross token by token (sglang PR 18158).
        env["SGLANG_DISAGG_STAGING_BUFFER"] = "1"
    return env


def _needs_staging(plan: Plan) -> bool:
    """Different attention TP on the two sides of a non-MLA model.

    The engine refuses the buffer for MLA, whose KV is not split by head, and NIXL has it for one pipeline stage only.
    """
    if plan.choice.topology == "aggregated" or is_mla(plan):
        return False
    prefill, decode = plan.role("prefill"), plan.role("decode")
    split = {role.tp // max(1, role.dp) for role in (prefill, decode)}
    return len(split) > 1 and prefill.pp == decode.pp == 1


def is_mla(plan: Plan) -> bool:
    """Whether the model keeps compressed KV (multi-head latent attention), by its config or its architecture's name."""
    return bool(plan.model.hf_config.get("kv_lora_rank")) or plan.model.architecture.startswith(_MLA_PREFIXES)


def _kv_dtype(role: Role) -> str:
    if role.kv not in KV_DTYPES:
        hint = f"constraints.kvCache: one of {', '.join(KV_DTYPES)}"
        raise UserError(Diagnostic("engine-kv", f"SGLang has no {role.kv} KV cache", hint=hint))
    return KV_DTYPES[role.kv]
