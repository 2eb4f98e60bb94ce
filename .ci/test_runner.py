"""Tests of `runner.py`: what is reported, and that nothing passes by running nothing."""

import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import runner  # noqa: E402
from runner import Check, Runner, Step, count_client, count_parts, count_tests  # noqa: E402

RAN = "test result: ok. {} passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s"


def say(text, status=0):
    return Step(["sh", "-c", f"echo '{text}'; exit {status}"])


class Checks(unittest.TestCase):
    def setUp(self):
        runner.say = lambda _: None
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        self.tree = Path(self.home.name) / "tree"
        self.tree.mkdir()
        for name in ("input.rs", "input.md"):
            (self.tree / name).write_text("one")
        subprocess.run(["git", "init", "--quiet", self.tree], check=True)
        subprocess.run(["git", "-C", self.tree, "add", "."], check=True)

    def runner(self, seconds=60, stamps=True):
        made = Runner(self.tree, Path(self.home.name) / "cache", f"t{time.monotonic_ns()}", seconds, stamps)
        return made

    def state(self, check, **options):
        made = self.runner(**options)
        made.run(check)
        return made.results[-1].state, made.results[-1].text

    def test_enough_tests_pass_and_fewer_fail_whatever_the_exit_status(self):
        self.assertEqual(self.state(Check("a", [say(RAN.format(3))], count_tests, 3))[0], "passed")
        state, text = self.state(Check("a", [say(RAN.format(2))], count_tests, 3))
        self.assertEqual(state, "FAILED")
        self.assertIn("less than 3", text)
        self.assertEqual(self.state(Check("a", [say("nothing")], count_tests, 1))[0], "FAILED")

    def test_a_command_that_fails_or_does_not_exist_fails_its_check(self):
        self.assertEqual(self.state(Check("a", [say(RAN.format(3), 1)], count_tests, 1))[0], "FAILED")
        self.assertEqual(self.state(Check("a", [Step(["no-such-program"])], lambda _: (9, "9"), 1))[0], "FAILED")

    def test_the_first_failure_of_several_steps_counts_and_the_others_run(self):
        state, text = self.state(Check("a", [say(RAN.format(1), 7), say(RAN.format(2))], count_tests, 1))
        self.assertEqual((state, text), ("FAILED", "3 tests passed, 0 failed, 2 ignored, in 2 programs, exit status 7"))

    def test_what_cannot_be_installed_or_prepared_is_no_skip(self):
        state, text = self.state(Check("a", [say(RAN.format(1))], count_tests, 1, install=[say("no such package", 1)]))
        self.assertEqual((state, text), ("FAILED", "what it needs could not be installed: no such package"))

        def steps():
            raise ValueError("not built")

        self.assertEqual(self.state(Check("a", steps, count_tests, 1)), ("FAILED", "not run: not built"))

    def test_a_check_has_its_own_limit_and_what_it_started_ends(self):
        began = time.monotonic()
        state, text = self.state(Check("a", [Step(["sh", "-c", "sleep 60 & echo $! >child; sleep 60"], self.tree)], count_tests, 1, minutes=0.01))
        self.assertEqual(state, "FAILED")
        self.assertIn("out of time", text)
        self.assertLess(time.monotonic() - began, 30)
        child = int((self.tree / "child").read_text())
        for _ in range(100):
            try:
                if Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                    break
            except FileNotFoundError:
                break
            time.sleep(0.05)
        else:
            self.fail("a process outlives its check")

    def test_a_stamp_holds_while_inputs_are_the_same(self):
        check = Check("a", [say(RAN.format(1))], count_tests, 1, inputs=("input.rs", "input.md"))
        self.assertEqual(self.state(check)[0], "passed")
        self.assertEqual(self.state(check), ("unchanged", "since it passed: 1 tests passed, 0 failed, 1 ignored, in 1 programs"))
        (self.tree / "input.md").write_text("documents decide nothing")
        self.assertEqual(self.state(check)[0], "unchanged")
        self.assertEqual(self.state(check, stamps=False)[0], "passed")
        (self.tree / "input.rs").write_text("two")
        self.assertEqual(self.state(check)[0], "passed")
        check.steps = [say(RAN.format(1) + " ")]
        self.assertEqual(self.state(check)[0], "passed")
        check.inputs = ("no-such-folder",)
        with self.assertRaises(ValueError):
            self.state(check)

    def test_a_failure_leaves_no_stamp(self):
        check = Check("a", [say(RAN.format(1))], count_tests, 2, inputs=("input.rs",))
        self.assertEqual([self.state(check)[0], self.state(check)[0]], ["FAILED", "FAILED"])

    def test_a_run_passes_only_if_a_check_passed_and_none_failed(self):
        good, bad = Check("good", [say(RAN.format(1))], count_tests, 1), Check("bad", [say("")], count_tests, 1)
        skipped = Check("skipped", [], count_tests, 1, skipped="in the nightly tier only")
        for checks, expected in (([good, skipped], 0), ([good, bad], 1), ([skipped], 1), ([], 1)):
            made = self.runner()
            for check in checks:
                made.run(check)
            self.assertEqual(made.finish(), expected, checks)

    def test_what_was_not_run_has_failed(self):
        made = self.runner()
        made.not_run([Check("a", [], count_tests, 1), Check("b", [], count_tests, 1, skipped="why")], "the build failed")
        self.assertEqual([result.state for result in made.results], ["FAILED", "skipped"])

    def test_lanes_run_beside_each_other_and_keep_ten_runs(self):
        wait = lambda mine, other: Step(["sh", "-c", f"touch {mine}; while [ ! -e {other} ]; do sleep 0.05; done; echo '{RAN.format(1)}'"], self.tree)
        made = self.runner()
        made.lanes([[Check("a", [wait("a", "b")], count_tests, 1, minutes=0.5)], [Check("b", [wait("b", "a")], count_tests, 1, minutes=0.5)]])
        self.assertEqual([result.state for result in made.results], ["passed", "passed"])
        for _ in range(12):
            self.runner().finish()
        self.assertEqual(len(list((Path(self.home.name) / "cache/runs").iterdir())), 10)

    def test_the_summary_has_processor_times_and_the_slowest_tests(self):
        made = self.runner()
        output = "test a::slow_one ... ok <12.345s>\\ntest b::quick ... ok <0.001s>\\n" + RAN.format(2)
        made.run(Check("a", [Step(["printf", output])], count_tests, 2))
        summary = made.summary()
        self.assertRegex(summary, r"1 passed, 0 unchanged, 0 skipped, 0 failed; 0:0\d, 0 minutes of a core")
        self.assertIn("12.3 s  a::slow_one (a)", summary)

    def test_counts(self):
        self.assertEqual(count_parts("x: 3 passed, 0 failed\ny: 4 passed, 1 failed\n"), (7, "7 passed, 1 failed"))
        self.assertEqual(count_client("x: 3 passed, 0 failed\ny: 4 passed, 1 failed\n"), (4, "4 passed, 1 failed"))
        self.assertEqual(count_client("")[0], 0)


class Tree(unittest.TestCase):
    def test_only_what_differs_is_touched(self):
        with tempfile.TemporaryDirectory() as home:
            source, tree = Path(home) / "source", Path(home) / "tree"
            git = lambda *words: subprocess.run(["git", "-C", source, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True)
            subprocess.run(["git", "init", "--quiet", source], check=True)
            for name, text in (("same", "1"), ("changed", "1"), ("removed", "1"), ("folder/file", "1"), (".gitignore", "target\n")):
                (source / name).parent.mkdir(exist_ok=True)
                (source / name).write_text(text)
            os.symlink("same", source / "link")
            git("add", ".")
            git("commit", "--quiet", "-m", "one")
            runner.synchronise(source, tree)
            self.assertEqual((tree / "folder/file").read_text(), "1")
            self.assertEqual(os.readlink(tree / "link"), "same")
            before = {name: (tree / name).stat().st_mtime_ns for name in ("same", "changed")}
            (tree / "target").mkdir()
            (tree / "target/left").write_text("of a build")
            (source / "changed").write_text("2")
            (source / "removed").unlink()
            git("commit", "--quiet", "-a", "-m", "two")
            (source / "new").write_text("untracked")
            (source / "folder/file").write_text("uncommitted")
            time.sleep(0.02)
            runner.synchronise(source, tree)
            self.assertEqual({name: (tree / name).read_text() for name in ("same", "changed", "new", "folder/file")},
                             {"same": "1", "changed": "2", "new": "untracked", "folder/file": "uncommitted"})
            self.assertEqual((tree / "same").stat().st_mtime_ns, before["same"])
            self.assertGreater((tree / "changed").stat().st_mtime_ns, before["changed"])
            self.assertFalse((tree / "removed").exists() or (tree / "target/left").exists())
            status = subprocess.run(["git", "-C", tree, "status", "--porcelain"], check=True, capture_output=True, text=True).stdout
            self.assertEqual(sorted(status.splitlines()), [" M folder/file", "?? new"])
            # A commit of what was copied before changes nothing.
            kept = (tree / "folder/file").stat().st_mtime_ns
            git("add", ".")
            git("commit", "--quiet", "-m", "three")
            runner.synchronise(source, tree)
            self.assertEqual((tree / "folder/file").stat().st_mtime_ns, kept)


if __name__ == "__main__":
    unittest.main()
