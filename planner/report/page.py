"""The page: what was asked, the answer in a sentence, charts, every case in a table, and what is not modelled."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template

from zipplan.planner.plan import zipplan_version
from zipplan.planner.report import charts
from zipplan.planner.search import HYSTERESIS, MODEL_RANGE
from zipplan.planner.units import format_time
from zipplan.planner.whatif import Case, Outcome, Study, Where, tight_link

FACTORS = tuple(f"{f:g}x" for f in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0))


def speed_map(case: Where) -> Study:
    """Rate of the links that bound the native schedule × codec speed, round one case."""
    return Study(case, ((tight_link(case), FACTORS), ("codec.speed", FACTORS)))


def render(
    study: Study,
    outcomes: Sequence[Outcome],
    shown: int,
    chart: Study | None = None,
    chart_outcomes: Sequence[Outcome] | None = None,
) -> str:
    """HTML text. `shown`: the case whose timelines are drawn; `chart`: its `speed_map` with outcomes, or None."""
    cases = study.cases()
    case, outcome = cases[shown], outcomes[shown]
    cluster = case.cluster()
    base = study.base
    sections = [
        _section("Speed-up over the native collective", charts.gains(study, cases, outcomes), _gains_note(study))
    ]
    swept_pair = len(study.sweeps) == 2 and all(len(values) > 1 for _, values in study.sweeps)
    if swept_pair and _mixed(outcomes):
        sections.append(_section("Break-even map of the two sweeps", charts.heat(study, outcomes), _map_note(case)))
    if chart is not None and chart_outcomes is not None and _mixed(chart_outcomes):
        note = f"Round the case {escape(case.name)}; 1x is what that case has. {_map_note(case)}"
        sections.append(_section("Break-even map: link rate × codec speed", charts.heat(chart, chart_outcomes), note))
    if isinstance(case, Case):
        sections.append(_section(f"Timelines at {case.name}", _timelines(case, outcome), _TIMELINE_NOTE))
    sections.append(_section("Every case", _table(study, cases, outcomes), ""))
    facts = {
        "machine": f"{base.machine.name}: {cluster.nodes} nodes × {cluster.ranks_per_node} ranks",
        "planned": base.what,
        "changed": str(base.settings) or "nothing",
        "swept": "; ".join(f"{key} = {', '.join(values)}" for key, values in study.sweeps),
        "made by": f"zipplan {zipplan_version()}",
    }
    rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in facts.items())
    title = f"What if: {base.collective if isinstance(base, Case) else base.what} on {base.machine.name}"
    answer = f'<h1>{escape(title)}</h1><p class="answer">{escape(_answer(cases, outcomes))}</p>'
    body = "".join((answer, f'<table class="facts">{rows}</table>', *sections))
    low, high = MODEL_RANGE[cluster.transport.kind]
    return _PAGE.substitute(title=escape(title), body=body, error=f"{low - 1:+.0%} to {high - 1:+.0%}")


def _mixed(outcomes: Sequence[Outcome]) -> bool:
    """Whether a map of the outcomes shows anything."""
    return any(o.best_zipped_gain != 1 for o in outcomes)


def _answer(cases: Sequence[Where], outcomes: Sequence[Outcome]) -> str:
    paying = [i for i, o in enumerate(outcomes) if o.choice != "native"]
    if not paying:
        near = max(range(len(outcomes)), key=lambda i: outcomes[i].best_zipped_gain)
        if not _mixed(outcomes):
            return f"Native in all {len(cases)} cases: nothing compressed could be tried."
        gain = f"{outcomes[near].best_zipped_gain:.2f}× of native's speed"
        return f"Native in all {len(cases)} cases; compression comes nearest at {cases[near].name}: {gain}."
    best = max(paying, key=lambda i: outcomes[i].gain)
    where = f"most at {cases[best].name}: {outcomes[best].gain:.2f}× with {outcomes[best].choice}"
    return f"Compression pays in {len(paying)} of {len(cases)} cases, {where}."


def _timelines(case: Case, outcome: Outcome) -> str:
    search = case.search()
    native = search.run(search.schedules[0], case.size)
    chosen = search.decide(case.size).best
    results = [native] if chosen.schedule.name == "native" else [native, chosen]
    if len(results) == 1 and outcome.best_zipped:
        other = next(r for r, _ in search.decide(case.size).others if r.label == outcome.best_zipped)
        results.append(other)
    return charts.timeline(results, case.name)


def _gains_note(study: Study) -> str:
    lines = 1
    for _, values in study.sweeps:
        lines *= len(values)
    lines //= max(len(values) for _, values in study.sweeps)
    return f"The first {charts.MOST_LINES} of {lines} lines are drawn." if lines > charts.MOST_LINES else ""


def _map_note(case: Where) -> str:
    if not isinstance(case, Case):
        return "Each cell: time of the step left raw over the time of the planned step."
    return (
        "Each cell: native time over the time of the best compressed schedule. Blue pays, red does not; the black line "
        f"is the break-even. The planner prefers native within {HYSTERESIS:.0%} of it."
    )


_TIMELINE_NOTE = (
    "Above the native collective, below the chosen schedule (or, where native wins, the best compressed one), "
    "on one axis."
)


def _table(study: Study, cases: Sequence[Where], outcomes: Sequence[Outcome]) -> str:
    keys = [key for key, _ in study.sweeps]
    head = "".join(
        f"<th>{escape(h)}</th>" for h in (*keys, "choice", "predicted", "native", "vs native", "bound by", "details")
    )
    rows = []
    for case, o in zip(cases, outcomes, strict=True):
        told = [f"{n} {format_time(t)}: {why}" for n, t, why in o.candidates if why != "chosen"]
        others = "<br>".join(map(escape, (*told, *(f"{n} {why}" for n, why in o.dropped))))
        cells = [*(escape(value) for _, value in case.at), escape(o.choice), format_time(o.time), format_time(o.native),
                 f"{o.gain:.2f}×", escape(o.busiest.removeprefix("busiest ")),
                 f"<details><summary>{len(o.candidates) + len(o.dropped)}</summary>{others}</details>"]  # fmt: skip
        paid = "" if o.choice == "native" else ' class="pays"'
        rows.append(f"<tr{paid}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    table = f'<table class="cases"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def _section(title: str, content: str, note: str) -> str:
    said = f'<p class="note">{note}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{content}{said}</section>"


_PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1d2939; background: #fff;
  max-width: 72rem; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.7rem; margin: 0 0 .4rem; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #e4e7ec; padding-bottom: .25rem; }
.answer { font-size: 1.15rem; margin: 0 0 1rem; }
.note { color: #667085; font-size: .87rem; max-width: 60rem; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.facts th { text-align: left; font-weight: 600; color: #667085; padding: .1rem 1.2rem .1rem 0; vertical-align: top; }
.wide { overflow-x: auto; }
.cases { font-size: .85rem; width: 100%; }
.cases th { text-align: left; border-bottom: 2px solid #d0d5dd; padding: .3rem .6rem .3rem 0; white-space: nowrap; }
.cases td { border-bottom: 1px solid #eaecf0; padding: .25rem .6rem .25rem 0; vertical-align: top; }
.pays td:nth-last-child(-n+7) { background: #eff8ff; }
summary { cursor: pointer; color: #175cd3; }
</style>
</head>
<body>
$body
<section><h2>How far to trust this</h2><p class="note">Every number is a prediction of the simulator, from public
constants of the machine unless a key says otherwise; take $error on a time, less on a ratio of two. Not modelled:
congestion control, launch jitter.</p></section>
</body>
</html>
""")
