"""Peak rates that makers state for GPUs, by the exact name torch gives them.

Dense rates throughout: what a maker states "with sparsity" is twice what a product of full
matrices can reach. Rates of 16-bit types are those of tensor cores adding up in float32, which is
what torch asks for; float64 is that of tensor cores where there are any for it. A GPU that is not
in the table has no such figure: variants of one chip differ in clocks, power and memory, and a
name that merely looks alike tells nothing. (The B200 is not in it: under that one name several
rates are stated for float64, float32 and the memory.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_T = 1e12
_G = 1e9


@dataclass(frozen=True)
class Sheet:
    """Operations per second by type, bytes per second of the memory, and where they stand."""

    flop_per_s: Mapping[str, float]
    bytes_per_s: float
    source: str


def _rates(
    float64: float | None, float32: float, tf32: float | None, half: float
) -> dict[str, float]:
    """Rates in TFLOP/s; `half` is float16, and bfloat16 where there is TF32."""
    rates = {"float32": float32 * _T, "float16": half * _T}
    if float64 is not None:
        rates["float64"] = float64 * _T
    if tf32 is not None:
        rates["tf32"] = tf32 * _T
        rates["bfloat16"] = half * _T
    return rates


_V100 = _rates(7.8, 15.7, None, 125.0)
_A100 = _rates(19.5, 19.5, 156.0, 312.0)
_H100 = _rates(67.0, 67.0, 494.7, 989.4)
_V100_SHEET = "NVIDIA V100 datasheet, January 2020"
_A100_SHEET = "NVIDIA A100 datasheet, June 2021"

_SHEETS = {
    "Tesla V100-SXM2-16GB": Sheet(_V100, 900 * _G, _V100_SHEET),
    "Tesla V100-SXM2-32GB": Sheet(_V100, 900 * _G, _V100_SHEET),
    "Tesla T4": Sheet(_rates(None, 8.1, None, 65.0), 320 * _G, "NVIDIA T4 product page"),
    "NVIDIA A100-SXM4-40GB": Sheet(_A100, 1555 * _G, _A100_SHEET),
    "NVIDIA A100-PCIE-40GB": Sheet(_A100, 1555 * _G, _A100_SHEET),
    "NVIDIA A100-SXM4-80GB": Sheet(_A100, 2039 * _G, _A100_SHEET),
    "NVIDIA A100 80GB PCIe": Sheet(_A100, 1935 * _G, _A100_SHEET),
    "NVIDIA A10": Sheet(_rates(None, 31.2, 62.5, 125.0), 600 * _G, "NVIDIA A10 datasheet"),
    "NVIDIA L4": Sheet(_rates(None, 30.3, 60.0, 121.0), 300 * _G, "NVIDIA L4 datasheet, halved"),
    "NVIDIA L40S": Sheet(_rates(None, 91.6, 183.0, 362.05), 864 * _G, "NVIDIA L40S datasheet"),
    "NVIDIA H100 80GB HBM3": Sheet(_H100, 3350 * _G, "NVIDIA H100 whitepaper and datasheet, SXM5"),
    "NVIDIA H100 PCIe": Sheet(
        _rates(51.2, 51.2, 378.0, 756.0), 2000 * _G, "NVIDIA H100 whitepaper, PCIe"
    ),
    "NVIDIA H200": Sheet(_H100, 4800 * _G, "NVIDIA H200 datasheet, halved where with sparsity"),
    "NVIDIA GeForce RTX 3090": Sheet(
        _rates(None, 35.6, 35.6, 71.0), 936 * _G, "NVIDIA Ampere GA102 whitepaper"
    ),
    "NVIDIA GeForce RTX 4090": Sheet(
        _rates(None, 82.6, 82.6, 165.2), 1008 * _G, "NVIDIA Ada whitepaper"
    ),
}


def sheet(name: str | None) -> Sheet | None:
    """What the maker states for the GPU of exactly that name; None for any other."""
    return _SHEETS.get(name) if name is not None else None
