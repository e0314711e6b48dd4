"""Foreign tests that are expected to fail, each with the reason, and what a run of them has shown.

The files are in tests/conformance; see tests/src/conformance/excuses.rs for their form. A line here is

    NAME              that test, which must fail; a * stands for any text, and then every test of such a name must fail
    NAME ~ TEXT       such tests, if they fail with an error that contains the text
    7x …              at most seven tests, and others of such a name may pass; if it is fewer, that is reported, so that the file can be corrected

The first line that fits decides. A test that fails without an excuse, or passes in spite of one without a number, is a failure.
"""

import re
from collections import Counter

CLASSES = ("scope", "shape", "declared", "mongodb", "known")
LINE = re.compile(r"(?:(\d+)x )?(.*?)(?: ~ (.*))?")


class Excuse:
    def __init__(self, line, reason):
        most, name, text = LINE.fullmatch(line).groups()
        self.line, self.reason, self.most, self.text = line, reason, most and int(most), text or ""
        self.name = re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)
        self.used = 0

    def fits(self, test, error):
        return self.name.fullmatch(test) and self.text in error


class Excuses:
    """Those of a file, in its order."""

    def __init__(self, path):
        self.all = list(read(path))

    def of(self, test, error):
        """The test's excuse; None if it has none. `error` is None if the test has not failed."""
        if error is None:
            return next((excuse for excuse in self.all if excuse.most is None and not excuse.text and excuse.fits(test, "")), None)
        return next((excuse for excuse in self.all if excuse.fits(test, error)), None)

    def judge(self, area, found):
        """Prints what is wrong in an area, and a line of numbers; returns them. `found` has by test "passed", "skipped" or the error."""
        counts = Counter()
        for test, outcome in sorted(found.items()):
            failed = outcome not in ("passed", "skipped")
            excuse = self.of(test, outcome if failed else None)
            if excuse:
                excuse.used += 1
            if not failed:
                counts[outcome] += 1
            elif excuse:
                counts["excused"] += 1
                counts["known"] += excuse.reason == "known"
            if failed != bool(excuse):
                print(f"FAILED: {test} is excused, but {outcome}" if excuse else f"FAILED: {test}: {brief(outcome)}")
                counts["failed"] += 1
        print(line(area, counts), flush=True)
        return counts

    def remaining(self):
        """Prints which lines do not say what was found, after a run of all tests; returns how many of them are failures."""
        wrong = 0
        for excuse in self.all:
            if not excuse.used:
                print(f"FAILED: {excuse.line} is excused, but there is no such test")
                wrong += 1
            elif excuse.most is not None and excuse.used > excuse.most:
                print(f"FAILED: {excuse.line}: it is {excuse.used}")
                wrong += 1
            elif excuse.most is not None and excuse.used < excuse.most:
                print(f"{excuse.line}: now it is {excuse.used}")
        return wrong


def brief(error):
    return " ".join(error.split())[:300]


def line(area, counts):
    apply = counts["passed"] + counts["failed"] + counts["known"]
    return (
        f"{area:40} {counts['passed']:5} passed {counts['failed']:4} failed {counts['excused']:4} excused {counts['skipped']:4} skipped"
        f"  {100 * counts['passed'] / max(apply, 1):5.1f} % of what applies"
    )


def read(path):
    """The excuses of a file. An error if it is malformed."""
    seen, name = set(), None
    for text in filter(None, map(str.strip, path.read_text().splitlines())):
        if text.startswith("["):
            name, _, reason = text[1:].partition("]")
            assert name in CLASSES and reason.strip(), text
        elif not text.startswith("#"):
            assert name, f"no class above {text}"
            assert text not in seen, f"{text} is excused twice"
            seen.add(text)
            yield Excuse(text, name)
