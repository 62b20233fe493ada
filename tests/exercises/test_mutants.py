"""Each solution, changed by machine in one place, is rejected, or the exercise says why the change does not matter."""

import warnings

from mutants import mutants
from proofs import accepted, module_names, proof

from coursework.exercises.engine.diagnose import Examiner


@proof
def test_mutants_of_the_solution_are_killed(exercise, record_property):
    own = Examiner(exercise)
    killed, survivors = 0, []
    for label, source in mutants(exercise.reference, exercise.blank):
        names = module_names(exercise)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compile(source, "<mutant>", "exec"), names)
        except Exception:
            continue  # no program any more
        if accepted(own, names[exercise.function_name]):
            survivors.append(label)
        else:
            killed += 1
    listed = list(exercise.equivalent_mutants)
    unlisted = [label for label in survivors if label not in listed]
    stale = [label for label in listed if label not in survivors]
    record_property(
        "exercise",
        [exercise.id, {"mutants": killed + len(survivors), "killed": killed, "equivalent": len(survivors)}],
    )
    assert not unlisted, f"accepted, though changed: {unlisted}"
    assert not stale, f"listed as equivalent, but killed or no longer made: {stale}"
    assert all(len(reason) > 10 for reason in exercise.equivalent_mutants.values())
    assert killed + len(survivors) >= 3
