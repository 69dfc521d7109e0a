"""The table of costs: a row a part, and what collects them."""

import dataclasses
from dataclasses import dataclass

STATISTIC = 4  # bytes: means, deviations and log-sum-exps are float32


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the model over all blocks; MACs are of one image, bytes of the batch.

    Args:
        name: what the part is called.
        formula: its MACs in the letters above; empty for a part that multiplies nothing.
        params_formula: its parameters likewise; empty for a part without any.
        macs: multiply-adds when every token is computed.
        macs_for_logits: those left when the last block computes only the token that the head reads.
        params: parameters.
        share: of the model's MACs, 0 to 1.
        kept_fused: bytes kept for the backward pass, with fused attention.
        kept_explicit: the same with the attention weights written out.
    """

    name: str
    formula: str
    params_formula: str
    macs: int
    macs_for_logits: int
    params: int
    share: float
    kept_fused: int
    kept_explicit: int


class Parts:
    """Collects parts; shares are known once all are there."""

    def __init__(self, batch_size: int, size: int) -> None:
        self.batch_size, self.size = batch_size, size
        self.parts: list[Part] = []

    def add(
        self,
        name: str,
        *,
        macs: tuple[str, int] = ("", 0),
        params: tuple[str, int] = ("", 0),
        for_logits: int | None = None,
        kept: int = 0,
        kept_bytes: int = 0,
        fused_bytes: int = 0,
        explicit_bytes: int = 0,
        once: int = 0,
    ) -> None:
        """`kept` counts elements of one image, `..._bytes` bytes of one image, `once` elements of any batch."""
        common = self.batch_size * (kept * self.size + kept_bytes) + once * self.size
        part = Part(
            name=name,
            formula=macs[0],
            params_formula=params[0],
            macs=macs[1],
            macs_for_logits=macs[1] if for_logits is None else for_logits,
            params=params[1],
            share=0.0,
            kept_fused=common + self.batch_size * fused_bytes,
            kept_explicit=common + self.batch_size * explicit_bytes,
        )
        self.parts.append(part)

    def finish(self) -> tuple[Part, ...]:
        total = sum(part.macs for part in self.parts)
        return tuple(dataclasses.replace(part, share=part.macs / total) for part in self.parts)
