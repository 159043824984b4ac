from __future__ import annotations

from engines.conftest import pictures, text_bundle, vl_bundle, vl_encoder

__all__ = ["pictures", "text_bundle", "vl_bundle", "vl_encoder"]
