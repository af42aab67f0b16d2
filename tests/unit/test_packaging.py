"""The wheel, the wheel in a clean environment, the editable install, and the pins."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("planner", "executor", "kernels", "topologies")

pytestmark = pytest.mark.timeout(300)

FIND_ALL = """
import importlib.util, json, sys
names = sys.argv[1:]
specs = {name: importlib.util.find_spec(name) for name in names}
print(json.dumps({name: spec and spec.origin for name, spec in specs.items()}))
"""


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    done = subprocess.run(command, cwd=cwd, env=os.environ | env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def source_files() -> list[str]:
    """Paths of what a checkout holds to build from: never what Python or the compiler left there."""
    below = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    kept = [path for path in below if path.suffix != ".so" and "__pycache__" not in path.parts]
    top = [ROOT / name for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE")]
    return [str(path.relative_to(ROOT)) for path in (*top, *kept)]


def build_wheel(folder: Path, **env: str) -> Path:
    """Build from a copy of the sources, so that no earlier build leaks into the wheel."""
    for name in source_files():
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    # Through the sdist, as a release is built: a file that the sdist lacks is then missing from the wheel too.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder / "source", cwd=folder, **env)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the wheel and nothing else: no numpy, no torch."""
    home = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", "--quiet", wheel, cwd=home)
    return python


def test_wheel_holds_every_source_file_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    packaged = {name for name in names if ".dist-info/" not in name}
    compiled = {name for name in packaged if re.fullmatch(r"zipplan/kernels/_cpu\.[^/]+\.so", name)}
    wanted = {
        f"zipplan/{name}" for name in source_files() if name.split("/")[0] in FOLDERS and not name.endswith(".md")
    }
    assert packaged - compiled == wanted
    assert "zipplan/__init__.py" not in packaged, "zipplan is a namespace package: others may add to it"


def test_wheel_has_the_licence_and_the_command(wheel: Path) -> None:
    contents = {name.partition(".dist-info/")[2]: name for name in zipfile.ZipFile(wheel).namelist()}
    assert "licenses/LICENSE" in contents
    entry_points = zipfile.ZipFile(wheel).read(contents["entry_points.txt"]).decode()
    assert "zipplan = zipplan.planner.cli:main" in entry_points


def test_torch_and_matplotlib_are_extras_only(wheel: Path) -> None:
    (name,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA")]
    requirements = Parser().parsestr(zipfile.ZipFile(wheel).read(name).decode()).get_all("Requires-Dist") or []
    core = {re.split(r"[^\w-]", text)[0] for text in requirements if "extra ==" not in text}
    assert core == {"click", "joblib", "networkx", "numpy", "pydantic", "rich", "simpy"}
    extras = {re.split(r"[^\w-]", text)[0] for text in requirements if "extra ==" in text}
    assert {"torch", "matplotlib"} <= extras


def test_installed_wheel_owns_only_names_under_zipplan(clean_python: Path, tmp_path: Path) -> None:
    owned = [f"zipplan.{folder}" for folder in FOLDERS]
    foreign = [*FOLDERS, "tests", "examples"]
    found = json.loads(run(clean_python, "-I", "-c", FIND_ALL, *owned, *foreign, cwd=tmp_path))
    site = clean_python.parents[1].resolve()
    assert all(found[name] and Path(found[name]).resolve().is_relative_to(site) for name in owned), found
    assert {name for name in foreign if found[name]} == set()
    assert (clean_python.parent / "zipplan").is_file()


@pytest.mark.skipif(
    not list(ROOT.glob("kernels/csrc/*.cpp")) or shutil.which("g++") is None, reason="needs the C++ sources and g++"
)
def test_compiled_codec_loads_where_nothing_else_is_installed(clean_python: Path, tmp_path: Path) -> None:
    load = """
import ctypes, importlib.util, pathlib
folder = pathlib.Path(importlib.util.find_spec("zipplan.kernels").origin).parent
(library,) = folder.glob("_cpu*.so")
ctypes.CDLL(str(library))
"""
    run(clean_python, "-I", "-c", load, cwd=tmp_path)


def test_wheel_builds_without_a_compiler(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, CC="/nonexistent/cc", CXX="/nonexistent/c++")
    names = zipfile.ZipFile(wheel).namelist()
    assert "zipplan/planner/__init__.py" in names
    assert [name for name in names if name.endswith(".so")] == []


def test_editable_install_maps_the_working_tree(tmp_path: Path) -> None:
    names = [f"zipplan.{folder}" for folder in FOLDERS]
    found = json.loads(run(sys.executable, "-I", "-c", FIND_ALL, *names, *FOLDERS, cwd=tmp_path))
    for folder in FOLDERS:
        assert found[f"zipplan.{folder}"] == str(ROOT / folder / "__init__.py")
        assert found[folder] is None, f"{folder} must be importable as zipplan.{folder} only"


def test_every_dependency_is_pinned_for_development() -> None:
    lines = (ROOT / "requirements/constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert pins["torch"] == "2.13.0"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [
        *project["project"]["dependencies"],
        *(line for lines in project["project"]["optional-dependencies"].values() for line in lines),
        *project["dependency-groups"]["dev"],
    ]
    assert {re.split(r"[^\w-]", line)[0] for line in asked} - pins.keys() == set()
