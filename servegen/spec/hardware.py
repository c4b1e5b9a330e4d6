"""What there is to run on: the section ``hardware``."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from servegen.spec.base import (
    Bandwidth,
    Bytes,
    Finding,
    Flag,
    Id,
    LabelKey,
    LabelValue,
    Price,
    ResourceName,
    Section,
    refuse,
    whole,
)


class Fabric(Section):
    """The network between nodes."""

    bandwidth: Bandwidth = Field(description="Per accelerator, one way.")
    rdma: Flag = Field(False, description="Whether it does RDMA; default: true where resource is stated.")
    resource: ResourceName | None = Field(None, description="Extended resource of the RDMA devices, like rdma/ib.")

    @model_validator(mode="before")
    @classmethod
    def _resource_means_rdma(cls, data: Any) -> Any:
        silent = isinstance(data, dict) and data.get("rdma") is None and data.get("resource") is not None
        return {**data, "rdma": True} if silent else data

    @model_validator(mode="after")
    def _rules(self) -> Fabric:
        if self.resource is not None and not self.rdma:
            message = "a resource of RDMA devices without RDMA"
            refuse([Finding("resource", "conflict", message, "set rdma: true, or leave one of them out")])
        return self


class Storage(Section):
    """Where weights are read from."""

    bandwidth: Bandwidth = Field(description="Per node.")


class Toleration(Section):
    """A Kubernetes toleration."""

    key: LabelKey | None = Field(None, description="Taint key; absent tolerates every taint (operator Exists).")
    operator: Literal["Exists", "Equal"] | None = Field(None, description="Default of Kubernetes: Equal.")
    value: LabelValue | None = Field(None, description="Taint value, with operator Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Absent: every effect."
    )
    toleration_seconds: Annotated[int, whole(0, 2**31)] | None = Field(None, description="With effect NoExecute.")

    @model_validator(mode="after")
    def _rules(self) -> Toleration:
        found = []
        if self.operator == "Exists" and self.value is not None:
            found.append(
                Finding(
                    "value", "conflict", "operator Exists takes no value", "leave value out, or write operator: Equal"
                )
            )
        if self.operator != "Exists" and self.key is None:
            found.append(
                Finding("", "missing-key", "a toleration without a key needs operator: Exists", "state the key")
            )
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            found.append(Finding("tolerationSeconds", "conflict", "tolerationSeconds needs effect: NoExecute", ""))
        refuse(found)
        return self

    def manifest(self) -> dict[str, Any]:
        """As Kubernetes writes it."""
        return self.model_dump(by_alias=True)


class PoolEntry(Section):
    """Nodes of one kind."""

    RESOLVED: ClassVar[frozenset[str]] = frozenset({"price", "cpu", "memory", "resource"})

    accelerator: Id = Field(description="Catalogue id or alias; `servegen catalog list` shows them.")
    nodes: Annotated[int, whole(1, 100_000)] = Field(description="Nodes of this kind.")
    per_node: Annotated[int, whole(1, 1024)] = Field(description="Accelerators in a node.")
    price: Price | None = Field(None, description="Dollars per accelerator and hour; default: the catalogue's.")
    cpu: Annotated[float, Field(strict=True, ge=1, le=100_000)] | None = Field(
        None, description="CPUs of a node; default: the accelerator's usual host."
    )
    memory: Bytes | None = Field(None, description="Memory of a node; default: the accelerator's usual host.")
    fabric: Fabric | None = Field(None, description="The network between nodes.")
    storage: Storage | None = Field(None, description="Where weights are read from.")
    resource: ResourceName | None = Field(
        None, description="Extended resource; default by accelerator, like nvidia.com/gpu."
    )
    node_selector: dict[LabelKey, LabelValue] | None = Field(None, description="Labels of the nodes.")
    tolerations: tuple[Toleration, ...] | None = Field(None, description="Tolerations of the pods.")


#: Prefill and decode may stand on different entries, so that the search grows with the square of their number.
MOST_KINDS = 16


class Hardware(Section):
    """Nodes by their kind."""

    pool: tuple[PoolEntry, ...] = Field(
        min_length=1, description="The nodes there are; several kinds may stand in one pool."
    )

    @model_validator(mode="after")
    def _rules(self) -> Hardware:
        if len(self.pool) > MOST_KINDS:
            message = f"{len(self.pool)} entries, and a pool has at most {MOST_KINDS}"
            refuse([Finding("pool", "out-of-range", message, "state nodes of the same kind as one entry")])
        return self
