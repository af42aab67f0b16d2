#!/usr/bin/env bash
# The main job in front of you: read a machine, plan, explain, run the plan with four ranks, check every bit.
set -euo pipefail
cd "$(dirname "$0")/.."
bin="$PWD/.venv/bin"
export OMP_NUM_THREADS=1 # four ranks on few cores; torchrun would say so at length
out="${1:-build/demo}"
mkdir -p "$out"

step() { printf '\n\033[1m== %s\033[0m\n' "$1"; }
run() { printf "$ %s\n" "$*"; "$bin/$1" "${@:2}"; }

step "1. A machine as \`nvidia-smi topo -m\` shows it: 8 A100 PCIe cards, bridged in pairs"
run zipplan plan --topology examples/topologies/8xA100-pcie-pairs.txt --gpu A100 --size 1M,64M

step "2. A shipped machine: 8 nodes of 8 RTX A6000 on 200 Gb/s, ZipCCL's own test bed"
run zipplan plan --topology a6000x8-200g --nodes 8 --size 64K,1M,64M -o "$out/a6000.json"
run zipplan explain "$out/a6000.json" --collective all_gather --size 64M

step "3. Four hosts on 1 Gb/s links, the plan that this machine can run"
run zipplan plan --topology lab --nodes 4 --size 64K,4M,32M -o "$out/plan.json"

step "4. The plan's collectives, with real compressed bytes, on four gloo ranks"
run torchrun --nproc-per-node 4 -m zipplan.executor.bench --plan "$out/plan.json" --iters 3
