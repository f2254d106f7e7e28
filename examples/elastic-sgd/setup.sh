# Runs on every worker, in the workdir, before its first rank: builds the
# example from the sources that travelled. Needs Go there, nothing else.
export PATH="$PATH:/usr/local/go/bin" HOME="${HOME:-$PWD}"
# A binary that came along is used as it is: `go build` here before `launcher up` saves each worker the compiling.
if ./elastic-sgd -h >/dev/null 2>&1; then exit 0; fi
# In the repository this folder is part of a larger module; here it stands alone.
[ -e go.mod ] || go mod init github.com/ephemeral-launcher/launcher/examples/elastic-sgd
GOTOOLCHAIN=local CGO_ENABLED=0 go build -o elastic-sgd .
