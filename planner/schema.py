"""The plan file's JSON Schema, from the types that read it. `python -m zipplan.planner.schema` prints it."""

from __future__ import annotations

import json
from typing import Any

from zipplan.planner.plan import SCHEMA, Plan


def plan_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a plan file. It checks shapes; ranges, schedules and the hash are checked on loading."""
    made = Plan.model_json_schema(by_alias=True, mode="validation")
    made["properties"]["schema"].pop("default", None)
    made["properties"]["kind"].pop("default", None)
    made["properties"]["hash"] = {
        "type": "string",
        "pattern": "^sha256:[0-9a-f]{64}$",
        "description": "sha256 of everything else: JSON with sorted keys and without spaces.",
    }
    made["required"] = sorted({*made["required"], "schema", "kind", "hash"})
    for part in (made, *made["$defs"].values()):
        part["description"] = part["description"].partition("\n\n")[0]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "title": f"zipplan plan, schema {SCHEMA}",
    }


def text() -> str:
    """The published file."""
    return json.dumps(plan_schema(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(text(), end="")
