"""Files written atomically, with digests that reveal damage: the lowest layer, independent of models."""

from resolvent.disk.document import (
    check_same,
    first_difference,
    read_json,
    read_sealed,
    replace,
    write_json,
    write_text,
)
from resolvent.disk.seal import DIGEST, Damaged, fingerprint, is_sealed, parse, seal, unseal

__all__ = [
    "DIGEST", "Damaged", "check_same", "fingerprint", "first_difference", "is_sealed", "parse", "read_json",
    "read_sealed", "replace", "seal", "unseal", "write_json", "write_text",
]  # fmt: skip
