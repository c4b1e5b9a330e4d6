"""Which servers the nodes of one kind hold together, as rows of an integer program: exact, whatever the sizes.

A server of at most ``per_node`` devices stands inside one node, a larger one takes whole nodes. Where each size divides the
next (powers of two do), servers packed largest first leave no more gaps than they must, so that one linear row for each size
says all: of a node, those of a size and above can fill no more than the largest multiple of it. Other sizes are a cutting-stock
problem, written as a flow through the devices of a node (Valério de Carvalho 1999): as many columns as sizes times devices,
where one for each pattern could be millions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from servegen.record import record


@record
class Row:
    """sum(``servers[size]`` x servers of the size) + sum(``flow[arc]`` x flow on the arc) <= ``nodes`` x nodes."""

    servers: Mapping[int, int]
    nodes: int
    flow: Mapping[tuple[int, int], int]


@record
class Packing:
    """All rows of one kind; ``arcs`` (first device, size) are integer columns of their own, none where sizes divide."""

    rows: tuple[Row, ...]
    arcs: tuple[tuple[int, int], ...]


def packing(sizes: frozenset[int], per_node: int) -> Packing:
    """The rows for servers of ``sizes`` devices on nodes of ``per_node``."""
    whole = {size: math.ceil(size / per_node) for size in sizes if size > per_node}
    inside = sorted(size for size in sizes if size <= per_node)
    if not inside:
        return Packing((Row(whole, 1, {}),), ())
    if all(b % a == 0 for a, b in itertools.pairwise(inside)):
        return Packing(tuple(_layer(inside[i:], whole, per_node) for i in range(len(inside))), ())
    arcs = _arcs(inside, per_node)
    rows = [Row(whole, 1, {arc: 1 for arc in arcs if arc[0] == 0})]
    for device in sorted({start for start, _ in arcs} - {0}):
        # What leaves a device must have come to it; what comes and does not leave is a gap.
        out = {arc: 1 for arc in arcs if arc[0] == device}
        came = {arc: -1 for arc in arcs if sum(arc) == device}
        rows.append(Row({}, 0, {**out, **came}))
    rows += [Row({size: 1}, 0, {arc: -1 for arc in arcs if arc[1] == size}) for size in inside]
    return Packing(tuple(rows), arcs)


def _layer(sizes: list[int], whole: Mapping[int, int], per_node: int) -> Row:
    """Servers of ``sizes``, multiples of the first, fill no more of a node than the largest multiple of it."""
    room = sizes[0] * (per_node // sizes[0])
    return Row({**{size: size for size in sizes}, **{size: room * nodes for size, nodes in whole.items()}}, room, {})


def _arcs(sizes: list[int], per_node: int) -> tuple[tuple[int, int], ...]:
    """Every place of a server in a node that is filled from its first device on, largest first."""
    reached: dict[int, int] = {0: max(sizes)}  # device -> the largest size that may still follow
    arcs = []
    for device in range(per_node):
        for size in sizes:
            if device in reached and size <= reached[device] and device + size <= per_node:
                arcs.append((device, size))
                reached[device + size] = max(reached.get(device + size, 0), size)
    return tuple(arcs)


def least_nodes(servers: Mapping[int, int], per_node: int) -> int:
    """The fewest nodes that hold so many servers of each size."""
    servers = {size: count for size, count in servers.items() if count}
    if not servers:
        return 0
    form = packing(frozenset(servers), per_node)
    if not form.arcs:
        return max(math.ceil(sum(a * servers[size] for size, a in row.servers.items()) / row.nodes) for row in form.rows)
    from servegen.solve.highs import Program

    program = Program()
    nodes = program.column()
    for size in servers:
        program.column(least=servers[size], most=servers[size])
    at = dict(zip(servers, range(1, len(servers) + 1), strict=True))
    flow = {arc: program.column() for arc in form.arcs}
    for row in form.rows:
        left = {at[size]: float(a) for size, a in row.servers.items()} | {flow[arc]: float(a) for arc, a in row.flow.items()}
        program.at_most({**left, nodes: -float(row.nodes)}, 0.0)
    found = program.least({nodes: 1.0})
    if found is None:
        raise ValueError(f"servers {dict(servers)} stand on no number of nodes of {per_node}")
    return found[nodes]
