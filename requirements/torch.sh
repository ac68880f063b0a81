#!/usr/bin/env bash
# Installs the pinned torch into a virtual environment: where there is an NVIDIA driver the build for CUDA, elsewhere
# the CPU build, which is a tenth of its size.  usage: torch.sh PYTHON
#
# TORCH_INDEX (empty by default): a package index that has PyTorch's CPU builds, asked beside pip's configured sources.
set -euo pipefail

python=$1
constraints=$(dirname "$0")/constraints.txt
pin=$(grep '^torch==' "$constraints")

install() {
    "$python" -m pip install -qq --disable-pip-version-check --constraint "$constraints" "$@"
}

has_nvidia_driver() {
    command -v nvidia-smi >/dev/null || "$python" -c 'import ctypes; ctypes.CDLL("libnvidia-ml.so.1")' 2>/dev/null
}

if has_nvidia_driver; then
    echo "Installing $pin for the NVIDIA driver of this machine; once, and it is large."
    install "$pin"
    exit
fi
echo "No NVIDIA driver here: installing the CPU build of $pin; once, about a minute."
if [[ -n ${TORCH_INDEX:-} ]]; then
    install --extra-index-url "$TORCH_INDEX" "$pin+cpu"
elif ! install "$pin+cpu" 2>/dev/null; then
    echo "pip's sources have no CPU build: taking the build they have. It runs without a GPU, but may be a large download;"
    echo "to have the small one, set TORCH_INDEX to the address of PyTorch's index of CPU builds (see its website)."
    install "$pin"
fi
