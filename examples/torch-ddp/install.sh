#!/usr/bin/env bash
# Puts a Python with PyTorch into a virtual environment: the newest, or VERSION. Does nothing where it is there already.
# Linux packages bring CUDA's libraries along: 5 GB, three minutes.
#
#   install.sh [FOLDER [VERSION]]      FOLDER: .venv
set -euo pipefail
folder=${1:-.venv} version=${2:-}
if ! "$folder/bin/python" -c 'import torch, numpy' 2>/dev/null; then
	"${PYTHON:-python3}" -m venv "$folder"
	"$folder/bin/python" -m pip install --quiet --no-compile "torch${version:+==$version}" numpy
fi
"$folder/bin/python" -c '
import platform, numpy, torch
print("python", platform.python_version(), "torch", torch.__version__, "numpy", numpy.__version__)'
