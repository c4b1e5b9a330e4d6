"""The prefix cache: blocks of prompts by their hashes, kept after use until room is needed, the longest unused going first.

A block's hash covers everything before it (chained hashes), so a set of blocks is a radix tree: a block is found only
behind those that lead to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Blocks of ``block_tokens`` tokens. Those in use by a sequence are locked; the others are idle and may be evicted."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._uses: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def locked(self) -> int:
        """Blocks in use."""
        return len(self._uses)

    @property
    def idle(self) -> int:
        """Blocks that may be evicted."""
        return len(self._idle)

    def match(self, blocks: Sequence[int]) -> int:
        """How many leading blocks are held."""
        uses, idle = self._uses, self._idle
        for n, block in enumerate(blocks):
            if block not in uses and block not in idle:
                return n
        return len(blocks)

    def idle_among(self, blocks: Sequence[int]) -> int:
        """How many of these blocks are idle: using them takes no new room, but what was evictable no longer is."""
        return sum(block in self._idle for block in blocks)

    def lock(self, blocks: Sequence[int]) -> None:
        """Use blocks, taking in those that are not held."""
        uses, idle = self._uses, self._idle
        for block in blocks:
            count = uses.get(block, 0)
            if not count:
                idle.pop(block, None)
            uses[block] = count + 1

    def release(self, blocks: Sequence[int]) -> None:
        """Stop using blocks. The last ones of a prompt are evicted first: without them the head is still of use."""
        uses, idle = self._uses, self._idle
        for block in reversed(blocks):
            count = uses[block] - 1
            if count:
                uses[block] = count
            else:
                del uses[block]
                idle[block] = None

    def evict(self, blocks: int) -> None:
        """Drop this many idle blocks, or all there are."""
        for _ in range(min(blocks, len(self._idle))):
            self._idle.popitem(last=False)
