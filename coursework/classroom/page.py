"""The files of a report. Its page is tables only: no script, nothing loaded, words beside every colour."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from coursework.classroom import grades
from coursework.classroom.judging import BROKEN, FAIL, OPEN, OUTCOMES, PASS
from coursework.classroom.summary import Summary, again, summarise

_STYLE = """
:root { color-scheme: light dark; --pass: #0b6b2e; --fail: #a3111c; --broken: #7a4a00; --line: #767676; }
@media (prefers-color-scheme: dark) { :root { --pass: #7ee29b; --fail: #ff9d9d; --broken: #ffcf80; --line: #9a9a9a; } }
body { font: 1rem/1.5 system-ui, sans-serif; margin: 1.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
.pass { color: var(--pass); } .fail { color: var(--fail); } .broken { color: var(--broken); }
"""
FILES = "report.json", "report.html", "grades-canvas.csv", "grades-moodle.csv"
_CLASS = {PASS: "pass", FAIL: "fail", BROKEN: "broken", OPEN: "open"}


def files(report: Mapping[str, Any], roster: Sequence[grades.Row] = ()) -> dict[str, str]:
    """Return the files of a report by name: JSON, a page, and the grades for Canvas and Moodle."""
    data = json.dumps(report, ensure_ascii=False, indent=1) + "\n"
    texts = data, page(report), grades.canvas(report, roster), grades.moodle(report, roster)
    return dict(zip(FILES, texts, strict=True))


def page(report: Mapping[str, Any]) -> str:
    """Return the whole page."""
    summaries = summarise(report)
    learners, exercises = report["learners"], report["exercises"]
    counts = dict.fromkeys(OUTCOMES, 0)
    for who in learners:
        for row in who["results"]:
            counts[row["outcome"]] += 1
    said = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    parts = [
        "<h1>The answers of a class</h1>",
        f"<p>{len(learners)} learners, {len(exercises)} exercises: {said}. Judged on {escape(report['started'])}, "
        f"in {report['seconds']} seconds.</p>",
        "<h2>Results</h2>",
        _results(report),
        "<h2>What to teach again</h2>",
        _again(summaries),
        "<h2>Misconceptions</h2>",
        _mistakes(summaries),
        "<h2>Each answer that did not pass</h2>",
        _details(report),
    ]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>The answers of a class</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _results(report: Mapping[str, Any]) -> str:
    heads = ["Learner", "Passed", *(f"{one['id']} ({one['notebook']})" for one in report["exercises"])]
    rows = []
    for who in report["learners"]:
        passed = sum(row["outcome"] == PASS for row in who["results"])
        cells = [_outcome(row) for row in who["results"]]
        rows.append([_text(who["name"]), f"{passed} of {len(cells)}", *cells])
    return _table("Each learner and exercise", heads, rows)


def _outcome(row: Mapping[str, Any]) -> str:
    word = f'<span class="{_CLASS[row["outcome"]]}">{row["outcome"]}</span>'
    names = ", ".join(one["name"] for one in row["misconceptions"])
    look = (
        " (look at it)" if any(remark.startswith(("look", "it uses", "it rests")) for remark in row["remarks"]) else ""
    )
    return word + (f": {_text(names)}" if names else "") + look


def _again(summaries: Sequence[Summary]) -> str:
    rows = [
        [_text(notebook), _text(section or "not known here"), f"{failed} of {tried}", _text(_causes(found))]
        for notebook, section, failed, tried, found in again(list(summaries))
    ]
    if not rows:
        return "<p>No answer failed.</p>"
    return _table("Sections, the most failed first", ["Notebook", "Section", "Answers not passed", "Why"], rows)


def _causes(summaries: Iterable[Summary]) -> str:
    return "; ".join(f"{one.exercise}: {one.cause}" for one in summaries)


def _mistakes(summaries: Sequence[Summary]) -> str:
    rows = [
        [_text(one.exercise), _text(mistake.name), _text(mistake.statement), f"{mistake.learners} of {one.tried}"]
        for one in summaries
        for mistake in one.mistakes
    ]
    if not rows:
        return "<p>No misconception was recognised.</p>"
    heads = ["Exercise", "Misconception", "The answer behaves like one that", "Learners who tried"]
    return _table("Which misconception how often", heads, rows)


def _details(report: Mapping[str, Any]) -> str:
    rows = []
    for who in report["learners"]:
        rows += [[_text(who["name"]), "", "", _text(problem)] for problem in who["problems"]]
        for row in who["results"]:
            why = [f"{one['name']}: {one['statement']}" for one in row["misconceptions"]]
            why += [row["reason"]] if row["reason"] and row["outcome"] != OPEN else []
            if why or row["remarks"]:
                words = ". ".join(text.rstrip(".") for text in (*why, *row["remarks"]))
                rows.append([_text(who["name"]), _text(row["exercise"]), _outcome(row), _text(f"{words}.")])
    return _table("Reasons", ["Learner", "Exercise", "Result", "Why"], rows) if rows else "<p>All passed.</p>"


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{_text(head)}</th>' for head in heads)
    body = "\n".join(
        f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="wide" role="region" aria-label="{_text(caption)}" tabindex="0"><table><caption>{_text(caption)}'
        f"</caption>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _text(text: str) -> str:
    """What a learner may have written, as text only."""
    return escape("".join(letter if letter.isprintable() else "�" for letter in text[:2000]))
