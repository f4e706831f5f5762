"""docs/composability.md says what the tests show."""

import features


def test_tables_are_those_of_the_tests(all_tests):
    """The tables are what ``pytest --collect-only --write-features tests`` writes."""
    _, written, _ = features.split(features.PATH.read_text())
    assert written == features.tables(all_tests)


def test_every_op_has_every_derivative(all_tests):
    """No op is missing from the tables that hold for all."""
    for title in ("Derivatives", "torch.func"):
        table = features.tables(all_tests).split(f"### {title}\n")[1].split("\n###")[0]
        assert "| all |" in table
        assert "·" not in table
