"""What a session did: per class of calls the choice, ratios and times expected and found, and what ran natively why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zipplan.planner.units import format_time, short_size

if TYPE_CHECKING:
    from zipplan.executor.session import Session


def document(session: Session) -> dict[str, Any]:
    """Plain data; sizes in bytes, times in µs per call (None: not measured, not predicted)."""
    return {
        "plan": session.plan.hash if session.plan else None,
        "ranks": session.ranks,
        "transport": session.backend,
        "rehearsal": session.rehearsal,
        "switches": {"disabled": session.switches.disabled, "check": session.switches.check},
        "scratch_bytes": session.scratch_bytes,
        "used": [
            {
                "collective": c.collective,
                "dtype": c.dtype,
                "kind": c.kind,
                "schedule": c.schedule,
                "codec": c.codec,
                "sizes": [c.start, c.stop],
                "calls": c.calls,
                "native_calls": c.calls if c.codec == "raw" else c.native_calls,
                "bytes": c.bytes,
                "expected_ratio": c.expected_ratio,
                "ratio": c.traffic.ratio,
                "break_even": c.break_even,
                "wire_bytes": round(c.traffic.wire_bytes),
                "measured_us": c.measured_s / c.timed * 1e6 if c.timed else None,
                "predicted_us": c.predicted_s / c.timed * 1e6 if c.timed and c.predicted_s else None,
                "judged": [{"call": n, "ratio": ratio, "pays": pays} for n, ratio, pays in c.judged],
            }
            for c in session.classes.values()
        ],
        "fallbacks": session.fallback_rows(),
    }


def text(session: Session) -> str:
    """The report for people: one line per class and per reason, unsafe switches first."""
    data = document(session)
    plan = f"plan {data['plan'][7:19]}" if data["plan"] else "no plan"
    lines = [f"report of rank {session.rank}: {plan}, {session.ranks} ranks on {session.backend}"]
    if session.switches.disabled:
        lines.append("ZIPPLAN_DISABLE is on: nothing was compressed")
    if session.rehearsal:
        lines.append(f"rehearsal: {session.rehearsal}; predicted times are not shown")
    for row in data["used"]:
        label = row["schedule"] if row["codec"] == "raw" else f"{row['schedule']} {row['codec']}"
        kind = f" ({row['kind']})" if row["kind"] else ""
        line = f"{row['collective']} of {row['dtype']}{kind}: {label}, {row['calls']} calls"
        line += f", {short_size(row['bytes'] // row['calls'])} each"
        if row["codec"] != "raw":
            line += f", ratio {row['ratio']:.3f} (expected {row['expected_ratio']:.3f})"
            line += f", {row['native_calls']} of them native" if row["native_calls"] else ""
        if row["measured_us"] is not None:
            line += f", {format_time(round(row['measured_us'] * 1e6))}"
            if row["predicted_us"] is not None:
                line += f" (predicted {format_time(round(row['predicted_us'] * 1e6))})"
        lines.append(f"{line}, {row['wire_bytes'] / 1e6:.3f} MB sent")
    lines += ["native: {collective} of {dtype}, {calls} calls: {reason}".format(**row) for row in data["fallbacks"]]
    return "\n  ".join(lines)
