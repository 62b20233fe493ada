"""What is damaged, odd or hostile is refused in one line, wherever the course reads; `fuzzing.py` tries many more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from thorough import rounds

if sys.platform == "win32":
    pytest.skip("needs an alarm", allow_module_level=True)


def test_mutated_files_settings_and_texts_crash_nothing(note):
    inputs = rounds(78, 780)
    program = Path(__file__).with_name("fuzzing.py")
    done = subprocess.run(
        [sys.executable, program, "--inputs", str(inputs)], capture_output=True, text=True, timeout=300
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["crashes"] == 0, done.stdout
    assert found["inputs"] == inputs
    assert len(found["targets"]) >= 26
    note(f"fuzzing: {found['inputs']} mutated inputs at {len(found['targets'])} places, {found['crashes']} crashes")


@pytest.mark.thorough
def test_the_fuzzer_sees_a_crash():
    program = Path(__file__).with_name("fuzzing.py")
    planted = (
        "import sys; sys.argv = sys.argv[1:]; sys.path.insert(0, sys.argv[0].rpartition('/')[0])\n"
        "import json, fuzzing\n"
        "fuzzing.read_log = lambda *a: json.loads('{') if False else [][1]\n"
        "sys.exit(fuzzing.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", planted, str(program), "--inputs", "3", "--only", "log"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert json.loads(done.stdout.splitlines()[-1])["crashes"] == 3
