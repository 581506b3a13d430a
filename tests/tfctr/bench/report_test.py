from tfctr.bench import report

MACHINE = {
    "cpu": "Abacus 3",
    "cores": 2,
    "memory_gb": 4.0,
    "transparent_huge_pages": "madvise",
    "other_cpu_share_before": 0.5,
    "other_cpu_share_during": 0.25,
    "waited_seconds": 20.0,
    "quiet_at_start": False,
}


def test_columns_are_as_wide_as_their_widest_cell():
    lines = report.columns(["name", "ms"], [["a", "1234.5"], ["longest", "1"]])
    assert lines == ["name         ms", "a        1234.5", "longest       1"]


def test_table_without_rows_is_its_header():
    assert report.columns(["name", "ms"], []) == ["name  ms"]


def test_load_of_others_is_told_and_warned_of():
    facts, warning = report.machine_lines(MACHINE)
    assert "Abacus 3, 2 cores" in facts
    assert "50% of it before and 25% during" in facts
    assert "after 20 seconds of waiting" in warning


def test_quiet_machine_needs_no_warning():
    assert len(report.machine_lines({**MACHINE, "quiet_at_start": True})) == 1


def test_absent_system_is_told_with_the_way_to_get_it():
    missing = {"system": "fbgemm", "reason": "x is missing.", "remedy": "make peers"}
    late = {"system": "tfra", "reason": "It was late.\nTraceback", "remedy": None}
    assert report.absent_lines([missing, late]) == [
        "Not fully measured: fbgemm. x is missing. Run `make peers` to get it.",
        "Not fully measured: tfra. It was late.",
    ]


def test_page_leaves_empty_parts_out():
    result = {"machine": {**MACHINE, "quiet_at_start": True}, "absent": []}
    text = report.page(result, ["one", "two"], [], ["three"])
    assert text.startswith("one\ntwo\n\nthree\n\nAbacus 3")
