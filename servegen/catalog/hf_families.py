"""The families of decoders that can be read, one row each: what their config fields do not say but their code does.

Source of the rows: the modeling files of Hugging Face transformers (4.57 and 5.24) and, for what is not in them, the
modeling code that the model's own repository ships. A family that is not here is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping

from servegen.catalog.hf_families_dense import DENSE
from servegen.catalog.hf_families_hybrid import HYBRID
from servegen.catalog.hf_families_sparse import SPARSE
from servegen.catalog.hf_family import Family

FAMILIES: Mapping[str, Family] = {**DENSE, **SPARSE, **HYBRID}
