"""Planted mistakes are found on a GPU, and the same loop without them has none of them."""

from tests.support.gpu_programs import NEEDS_GPU, WORKLOADS, reported
from tests.support.tables import cases

pytestmark = [*NEEDS_GPU]

SLUGS = {"item": "forced-synchronisation", "pageable": "host-to-device-copy"}
SLUGS["float32"] = "float32-matmul-without-tf32"
TEXTS = {"item": ".item()", "pageable": ".to("}


@cases("model mistake", "mlp None; small None; small item; mlp pageable; mlp float32")
def test_what_is_planted_is_found_alone(tmp_path, model, mistake):
    options = ("--mistake", mistake) if mistake else ()
    # Whether TF32 would help is told by peaks, which are measured for this.
    report = reported(tmp_path, str(WORKLOADS), model, *options, PROFSTACK_PEAKS="1")
    findings = {finding["slug"]: finding for finding in report["findings"]}
    assert findings.keys() & {*SLUGS.values()} == ({SLUGS[mistake]} if mistake else set())
    if mistake:
        finding = findings[SLUGS[mistake]]
        assert finding["gain_s"] is None or finding["gain_s"] > 0
    if mistake in TEXTS:
        text = WORKLOADS.read_text("utf-8").splitlines()[finding["line"] - 1]
        assert TEXTS[mistake] in text
