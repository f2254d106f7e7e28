# Runs on every worker, in the workdir, before its first rank. PYTHON is the job file's variable.
if ! "$PYTHON" -c 'import sys, torch; print("torch", torch.__version__, "python", sys.version.split()[0])'; then
	echo "$PYTHON has no PyTorch: take an image that has, or say --var python=.venv/bin/python" >&2
	[ "$PYTHON" = .venv/bin/python ] || exit 1
	PYTHON=python3 bash install.sh .venv
fi
