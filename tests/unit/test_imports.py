"""Who imports whom: by the contracts in pyproject.toml, and as seen in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "matplotlib", "zipplan.executor", "zipplan.kernels")

IMPORT_ALL = """
import importlib, json, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not module.name.rpartition(".")[2].startswith("_cpu"):  # the codec's C library, which is not a Python module
        importlib.import_module(module.name)
print(json.dumps(sorted(sys.modules)))
"""

HELP = """
import contextlib, io, json, sys
from zipplan.planner.cli import main
sys.argv = ["zipplan", "--help"]
with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
    main()
assert "Usage" in text.getvalue(), text.getvalue()
print(json.dumps(sorted(sys.modules)))
"""


def loaded_modules(code: str, *arguments: str, cwd: Path) -> set[str]:
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def below(package: str, modules: set[str]) -> set[str]:
    return {name for name in modules if name == package or name.startswith(package + ".")}


def test_planner_modules_load_nothing_heavy(tmp_path: Path) -> None:
    modules = loaded_modules(IMPORT_ALL, "zipplan.planner", cwd=tmp_path)
    assert "zipplan.planner.errors" in modules
    assert {name for heavy in HEAVY for name in below(heavy, modules)} == set()


def test_kernels_load_without_torch_and_know_only_the_error_tree(tmp_path: Path) -> None:
    modules = loaded_modules(IMPORT_ALL, "zipplan.kernels", cwd=tmp_path)
    assert below("torch", modules) == set()
    assert below("zipplan.executor", modules) == set()
    assert below("zipplan.planner", modules) <= {"zipplan.planner", "zipplan.planner.errors"}


def test_help_starts_light(tmp_path: Path) -> None:
    modules = loaded_modules(HELP, cwd=tmp_path)
    assert {name for heavy in HEAVY for name in below(heavy, modules)} == set()


def test_import_contracts_hold() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
