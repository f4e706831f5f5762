"""The environment variables that a user may set: a bad value is an error of ``import fastops``."""

from __future__ import annotations

import re

from processes import run, run_each

# What the message says of each.
NEEDED = {
    "FASTOPS_BACKEND_AUTOLOAD": "here it can be one of: 0, 1",
    "FASTOPS_CPU_CAPABILITY": "here it can be one of: ([a-z0-9_]+, )*default",
    "FASTOPS_CPU_KEPT_MIB": "must be a whole number of MiB, 0 or more",
    "FASTOPS_CPU_PRODUCTS": "here it can be one of: (own, unpacked, )?torch",
    "FASTOPS_FALLBACK": "here it can be one of: warn, error",
}


# Values that no variable can have, and how a message shows them.
BAD = {"OWN ": "OWN ", "\udcff\né": r"\xff\x0a\xc3\xa9"}


def test_bad_values() -> None:
    """The message names the variable, what it is and what it can be; bytes that are no text are no trouble."""
    tried = [(variable, value) for variable in NEEDED for value in BAD]
    results = run_each("import torch\n", *(("import fastops", {variable: value}) for variable, value in tried))
    for (variable, value), (code, printed) in zip(tried, results, strict=True):
        assert code != 0
        message = printed.strip().splitlines()[-1]
        expected = f"ValueError: fastops: {variable} is '{re.escape(BAD[value])}', but {NEEDED[variable]}"
        assert re.fullmatch(expected, message)


def test_empty_values() -> None:
    """An empty value is none."""
    result = run("-c", "import fastops", **dict.fromkeys(NEEDED, ""))
    assert result.returncode == 0, result.stderr


def test_info_of_any_bytes() -> None:
    """fastops.info() shows values, and names, that are not UTF-8."""
    values = {"FASTOPS_TEST": "a\udcff", "FASTOPS_\udcfe": "b", "PYTHONIOENCODING": "utf-8:strict"}
    result = run("-c", "import fastops; print(fastops.info())", **values)
    assert result.returncode == 0, result.stderr
    assert {r"FASTOPS_TEST=a\xff", r"FASTOPS_\xfe=b"} <= set(result.stdout.splitlines())
