"""What pyproject.toml cannot say: top-level folders become sub-packages of zipplan, and the CPU codec is compiled."""

from glob import glob

from setuptools import Extension, find_packages, setup

FOLDERS = ("planner", "executor", "kernels", "topologies")

packages = [
    f"zipplan.{name}" for folder in FOLDERS for name in (folder, *(f"{folder}.{sub}" for sub in find_packages(folder)))
]

# A plain C ABI loaded by ctypes. Optional, because the planner must install where there is no compiler.
sources = sorted(glob("kernels/csrc/*.cpp"))
extensions = [
    Extension(
        "zipplan.kernels._cpu",
        sources=sources,
        depends=sorted(glob("kernels/csrc/*.h")),
        extra_compile_args=["-O3", "-std=c++17", "-fvisibility=hidden", "-fno-strict-aliasing", "-pthread"],
        extra_link_args=["-pthread"],
        language="c++",
        optional=True,
    )
]

setup(
    packages=packages,
    package_dir={f"zipplan.{folder}": folder for folder in FOLDERS},
    package_data={
        "": ["**/*.toml", "**/*.csv", "**/*.json", "py.typed"],
        "zipplan.kernels": ["**/*.cpp", "**/*.h", "**/*.cu", "**/*.cuh"],
    },
    ext_modules=extensions if sources else [],
)
