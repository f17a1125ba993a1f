"""The tables of the report: rows, reasons for missing figures, and the layers they rest on."""

from profstack.storage.reader import FEWEST_STEPS, LARGEST_FACTOR
from profstack.storage.schema.nsys_rows import NsysKernelRow
from profstack.storage.schema.report import REPORT, REPORT_OF_NSYS, table_rows
from profstack.storage.schema.rows import NOT_CALIBRATED, OperatorRow


def test_rows_have_all_columns_of_their_table_and_no_others():
    (row,) = table_rows("operators", [{"name": "aten::mm", "self_s": 0.5, "other": 1}])
    assert tuple(row) == REPORT["operators"].names == tuple(OperatorRow.__annotations__)
    known = {name: value for name, value in row.items() if value is not None}
    assert known == {"name": "aten::mm", "self_s": 0.5}
    assert set(REPORT_OF_NSYS) == {name for name in REPORT if name.startswith("nsys_")}
    assert REPORT_OF_NSYS["nsys_kernels"].names == tuple(NsysKernelRow.__annotations__)
    for table in REPORT.values():
        for each in table.columns:
            calibrated = each.sense in ("calibrated", "rate") and each.name != "calibrated_s"
            assert each.empty or each.needs or not calibrated, each
    givers = dict.fromkeys(("operators", "kernels"), "torch")
    givers |= dict.fromkeys(("functions", "calls"), "cprofile")
    assert {name: REPORT[name].given_by for name in givers} == givers
    assert f"{FEWEST_STEPS} steps" in NOT_CALIBRATED
    assert f"above {LARGEST_FACTOR:g}" in NOT_CALIBRATED
