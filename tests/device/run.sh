#!/usr/bin/env bash
# The CUDA codec and the executor on a GPU, in one command and under five minutes: bits both ways, memory and race checks,
# speed; then every coded schedule of three gloo ranks that share the GPU, and of one rank on NCCL.
#   bash tests/device/run.sh            on a machine with a GPU, torch >= 2.11, cuda-bindings, NVRTC and a C++ compiler
#   bash tests/device/run.sh --dry      anywhere: the same checks of bits, the kernels run on the CPU; nothing is timed
# PYTHON chooses the interpreter. Installs nothing; what it builds goes to build/device.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
names=build/device/names
mkdir -p "$names/zipplan"
for folder in planner executor kernels topologies; do ln -sfn "$PWD/$folder" "$names/zipplan/$folder"; done
export PYTHONPATH="$PWD/$names:$PWD/tests/emulator:$PWD/tests/multi/workers" PYTHONUNBUFFERED=1
export ZIPPLAN_CACHE_DIR=${ZIPPLAN_CACHE_DIR:-$PWD/build/device/cache}
if ! compgen -G "kernels/_cpu*.so" >/dev/null; then
    echo "building the CPU codec"
    g++ -O3 -std=c++17 -fPIC -shared -fvisibility=hidden -fno-strict-aliasing -pthread kernels/csrc/*.cpp -o kernels/_cpu.so
fi
"$PYTHON" tests/device/check.py "$@"
[[ " $* " == *" --small "* ]] && exit
if ! "$PYTHON" -c "import click, networkx, pydantic, rich, simpy" 2>/dev/null; then
    echo "executor: not run; it needs click, networkx, pydantic, rich and simpy"
    exit
fi
for job in "gloo 3" "nccl 1"; do # NCCL refuses two ranks on one GPU
    read -r backend ranks <<<"$job"
    OMP_NUM_THREADS=1 "$PYTHON" -m torch.distributed.run --standalone "--nproc-per-node=$ranks" \
        tests/device/ranks.py "$backend" "$@"
done
