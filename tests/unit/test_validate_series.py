"""Names of series: a typo is told, a name of one's own or of a newer engine is not."""

from __future__ import annotations

import pytest

from servegen.validate.series import SGLANG, misspelt


@pytest.mark.parametrize("name", sorted(SGLANG))
@pytest.mark.parametrize("tail", ["", "_sum", "_bucket"])
def test_what_the_engine_publishes_is_right(name: str, tail: str) -> None:
    assert list(misspelt(f"max(sglang:{name}{tail}{{namespace='a'}})")) == []


@pytest.mark.parametrize("name", ["num_queue_req", "num_qeueu_reqs", "token_usge", "time_to_first_token_second_sum"])
def test_a_letter_or_two_off_is_told(name: str) -> None:
    ((found, meant),) = misspelt(f"sum(rate(sglang:{name}[1m]))")
    assert found == f"sglang:{name}" and meant.removeprefix("sglang:") in SGLANG


@pytest.mark.parametrize("name", ["token_usage_max", "queue_reqs_by_tenant", "brand_new_gauge"])
def test_a_name_of_ones_own_is_let_be(name: str) -> None:
    assert list(misspelt(f"sglang:{name}")) == []
