// Package bootstrap is the readable list of steps from "the machine answers SSH" to "our program is up and in touch".
//
// All of it is one exec channel of one SSH connection:
//
//	→ exec   the script below, whose text is the same for every node of a run
//	← line   have or need, with the machine's platform                  nothing is sent to a machine that has the program
//	→ data   the program, compressed, where it is needed                checked by its hash before it is run
//	→ line   join: one line of JSON that the program reads
//	← line   ready: from here on the channel belongs to the program     gRPC follows on it
//
// No file of ours lies outside $HOME/.launcher, no login shell runs, and no secret is in the command line.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
)

// ErrPlatform is returned for a machine whose platform there is no binary for.
var ErrPlatform = errors.New("no binary for the machine's platform")

// Program is what a machine is to run.
type Program struct {
	// Name is the binary's, and Args what follows it on the command line.
	Name string
	Args string
	// Greeting begins the line by which the program says that it is ready ("LAUNCHER-AGENT 1 ready") or why not ("… error TEXT").
	Greeting string
	// Join is the line of JSON it reads first, without the newline.
	Join []byte
	// Binaries has it for every platform there is.
	Binaries *Binaries
}

// magic begins every line of the script's own.
const magic = "LAUNCHER-BOOTSTRAP 1"

// Start carries out the steps on conn and returns the channel, which belongs to the program from then on. Closing it leaves
// the program running. The whole takes no longer than ctx allows.
func Start(ctx context.Context, conn *sshexec.Conn, p Program) (net.Conn, error) {
	script, err := p.script()
	if err != nil {
		return nil, err
	}
	ch, err := conn.Channel(ctx, "exec /bin/sh -c "+quote(script))
	if err != nil {
		return nil, fmt.Errorf("bootstrap %s: %w", p.Name, err)
	}
	stop := context.AfterFunc(ctx, func() { ch.SetDeadline(time.Unix(1, 0)) })
	err = p.converse(ch)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		said := lastLine(ch.Stderr())
		ch.Close()
		if said != "" {
			return nil, fmt.Errorf("bootstrap %s: %w: %s", p.Name, err, said)
		}
		return nil, fmt.Errorf("bootstrap %s: %w", p.Name, err)
	}
	if err := ch.SetDeadline(time.Time{}); err != nil {
		ch.Close()
		return nil, fmt.Errorf("bootstrap %s: %w", p.Name, err)
	}
	return ch, nil
}

// converse speaks the client's part of the steps.
func (p Program) converse(ch *sshexec.Channel) error {
	line, err := readLine(ch)
	if err != nil {
		return fmt.Errorf("read the machine's first line: %w", err)
	}
	said, ok := strings.CutPrefix(line, magic+" ")
	if !ok {
		return fmt.Errorf("the machine answers %q, not %q", line, magic)
	}
	verb, platform, _ := strings.Cut(said, " ")
	switch verb {
	case "have":
	case "need":
		data, err := p.Binaries.Gzip(platform, p.Name)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(ch, strconv.Itoa(len(data))+"\n"); err != nil {
			return fmt.Errorf("send %s: %w", p.Name, err)
		}
		if _, err := ch.Write(data); err != nil {
			return fmt.Errorf("send %s: %w", p.Name, err)
		}
	case "unsupported":
		return fmt.Errorf("%w: %s", ErrPlatform, platform)
	default:
		return fmt.Errorf("the machine answers %q", line)
	}
	if _, err := ch.Write(append(append([]byte{}, p.Join...), '\n')); err != nil {
		return fmt.Errorf("send join: %w", err)
	}
	line, err = readLine(ch)
	if err != nil {
		return fmt.Errorf("read %s's first line: %w", p.Name, err)
	}
	if line != p.Greeting+" ready" {
		text, _ := strings.CutPrefix(line, p.Greeting+" error ")
		return fmt.Errorf("%s does not start: %s", p.Name, text)
	}
	return nil
}

// script is what runs on the machine. It reads no more of its input than it must: what follows belongs to the program.
func (p Program) script() (string, error) {
	hashes, err := p.Binaries.Hashes(p.Name)
	if err != nil {
		return "", err
	}
	var cases strings.Builder
	for _, h := range hashes {
		fmt.Fprintf(&cases, "%s) p=%s h=%s ;;\n", uname(h.Platform), h.Platform, h.SHA256)
	}
	return strings.NewReplacer("@MAGIC@", magic, "@CASES@", cases.String(), "@NAME@", p.Name, "@ARGS@", p.Args).Replace(`set -eu
umask 077
case "$(uname -s)/$(uname -m)" in
@CASES@*) echo "@MAGIC@ unsupported $(uname -s)/$(uname -m)"; exit 3 ;;
esac
d=$HOME/.launcher/bin
mkdir -p "$d"
f=$d/@NAME@-$h
if [ -x "$f" ]; then
	echo "@MAGIC@ have $p"
else
	echo "@MAGIC@ need $p"
	read -r n
	head -c "$n" | gzip -dc >"$f.$$"
	s=$( (sha256sum "$f.$$" 2>/dev/null || shasum -a 256 "$f.$$") | cut -d" " -f1)
	if [ "$s" != "$h" ]; then
		rm -f "$f.$$"
		echo "@MAGIC@ corrupt $s"
		exit 3
	fi
	chmod 700 "$f.$$"
	mv "$f.$$" "$f"
fi
exec "$f" @ARGS@
`), nil
}

// uname is the pattern of `uname -s`/`uname -m` for a platform of Go's.
func uname(platform string) string {
	system, arch, _ := strings.Cut(platform, "-")
	s := map[string]string{"linux": "Linux", "darwin": "Darwin"}[system]
	switch arch {
	case "amd64":
		return s + "/x86_64"
	case "arm64":
		return s + "/aarch64|" + s + "/arm64"
	}
	return s + "/" + arch
}

// quote makes text one word of any POSIX shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// maxLine bounds what a machine may say in one line before it is believed to be something else.
const maxLine = 4096

// readLine reads up to a newline and not a byte further.
func readLine(r io.Reader) (string, error) {
	var line []byte
	b := make([]byte, 1)
	for len(line) < maxLine {
		if _, err := io.ReadFull(r, b); err != nil {
			if len(line) > 0 {
				return "", fmt.Errorf("%w after %q", err, line)
			}
			return "", err
		}
		if b[0] == '\n' {
			return strings.TrimSuffix(string(line), "\r"), nil
		}
		line = append(line, b[0])
	}
	return "", fmt.Errorf("a line of more than %d bytes", maxLine)
}

func lastLine(stderr []byte) string {
	lines := strings.Split(strings.TrimSpace(string(stderr)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
