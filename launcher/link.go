package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/head"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

const (
	// dialTimeout bounds one try to reach the head, so that a new address or host key is noticed. Machines take minutes to boot; the tries go on.
	dialTimeout = time.Minute
	// bootstrapTimeout bounds the transfer and start of the head's program.
	bootstrapTimeout = 5 * time.Minute
	// callTimeout bounds a call that the head answers from memory or disk.
	callTimeout = 30 * time.Second
	// firstRedial and lastRedial bound the pause between connections.
	firstRedial = 250 * time.Millisecond
	lastRedial  = 10 * time.Second
	// chunk is how much of a file travels in one message.
	chunk = 64 << 10
)

// connection is one SSH connection to the head and the API on it.
type connection struct {
	ssh  *sshexec.Conn
	grpc *grpc.ClientConn
	api  control.HeadClient
}

func (c *connection) Close() {
	c.grpc.Close()
	c.ssh.Close()
}

// dialer is what it takes to reach a run's head.
type dialer struct {
	run       string
	job       *Job
	clientKey []byte
	binaries  *bootstrap.Binaries
	network   head.Network
}

// dial makes one try to reach the head and to start, or find, its program.
func (d dialer) dial(ctx context.Context, node *journal.Node) (*connection, error) {
	if d.binaries == nil { // only where a run is being ended: then the fence comes instead
		return nil, errors.New("reach the head: the machines' binaries are not here")
	}
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	target := sshexec.Target{Addr: node.Machine.Address, User: node.Machine.User, Keys: [][]byte{d.clientKey}, HostKeys: node.HostKeys()}
	var conn *sshexec.Conn
	var err error
	if d.network.Dial != nil {
		conn, err = d.network.Dial(dialing, target)
	} else {
		conn, err = sshexec.DialWhenUp(dialing, target, sshexec.Pacing{})
	}
	cancel()
	if err != nil {
		return nil, err
	}
	join, err := json.Marshal(head.Join{Run: d.run, NodeLease: d.job.Limits.NodeLease})
	if err != nil {
		conn.Close()
		return nil, err
	}
	starting, cancel := context.WithTimeout(ctx, bootstrapTimeout)
	defer cancel()
	start := bootstrap.Start
	if d.network.Start != nil {
		start = d.network.Start
	}
	stream, err := start(starting, conn, bootstrap.Program{Name: program, Args: "head join", Greeting: head.Greeting, Join: join, Binaries: d.binaries})
	if err != nil {
		conn.Close()
		return nil, err
	}
	client, err := control.DialConn(stream)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &connection{ssh: conn, grpc: client, api: control.NewHeadClient(client)}, nil
}

// headAddress waits until the head is rented and has an address. errHeadGone: it never will.
func (o *owner) headAddress(ctx context.Context) (*journal.Node, error) {
	for {
		_, changed := o.journal.Since(1 << 30)
		n := o.journal.State().Head()
		switch {
		case n == nil || n.Phase == journal.PhaseIntended || n.Phase == journal.PhaseRefused:
		case n.Phase == journal.PhaseLost || n.Phase.Ended():
			return nil, errHeadGone
		case n.Machine.Address != "":
			return n, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-changed:
		}
	}
}

// errHeadGone: the head's machine is not there any more.
var errHeadGone = errors.New("the head is gone")

// connect reaches the head, over as many tries as it takes. It gives up when ctx ends, the head is gone, or the head is not ours.
func (o *owner) connect(ctx context.Context) (*connection, error) {
	for pause := firstRedial; ; pause = min(2*pause, lastRedial) {
		n, err := o.headAddress(ctx)
		if err != nil {
			return nil, err
		}
		c, err := o.dial(ctx, n)
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		o.log.Info("head not reached", "address", n.Machine.Address, "error", err)
		if errors.Is(err, bootstrap.ErrPlatform) || sshexec.Classify(err) == sshexec.BadTarget {
			return nil, err
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// prepare makes a reached head ready for Serve or Adopt: a host key of its own, then the files it needs.
func (o *owner) prepare(ctx context.Context, c *connection) error {
	if err := o.rekey(ctx, c); err != nil {
		return err
	}
	return o.uploads(ctx, c)
}

// uploads sends the agent's binaries, the provider's plugin and the workdir; what the head has already is not sent again.
func (o *owner) uploads(ctx context.Context, c *connection) error {
	hashes, err := o.binaries.Hashes(agentProgram)
	if err != nil {
		return err
	}
	for _, h := range hashes {
		data, err := o.binaries.Gzip(h.Platform, agentProgram)
		if err != nil {
			return err
		}
		first := &control.UploadChunk{Kind: control.UploadKind_AGENT_BINARY, Name: h.Platform, Sha256: h.SHA256, Gzip: true, Size: int64(len(data))}
		if err := upload(ctx, c.api, first, strings.NewReader(string(data))); err != nil {
			return err
		}
	}
	if err := o.uploadPlugin(ctx, c); err != nil {
		return err
	}
	hash := o.journal.State().Created.Workdir
	if hash == "" {
		return nil
	}
	f, err := os.Open(o.folder.workdir())
	if err != nil {
		return fmt.Errorf("upload workdir: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("upload workdir: %w", err)
	}
	return upload(ctx, c.api, &control.UploadChunk{Kind: control.UploadKind_WORKDIR_ARCHIVE, Sha256: hash, Size: info.Size()}, f)
}

// upload sends one file. The head answers before the end if it has it.
func upload(ctx context.Context, api control.HeadClient, first *control.UploadChunk, r io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := api.Upload(ctx)
	if err != nil {
		return fmt.Errorf("upload %s %s: %w", first.Kind, first.Name, err)
	}
	buf := make([]byte, chunk)
	for c := first; ; c = new(control.UploadChunk) {
		n, rerr := io.ReadFull(r, buf)
		c.Data = buf[:n]
		if n > 0 || c == first {
			if call.Send(c) != nil {
				break // the reply says why, or that it was there already
			}
		}
		if errors.Is(rerr, io.EOF) || errors.Is(rerr, io.ErrUnexpectedEOF) {
			break
		}
		if rerr != nil {
			return fmt.Errorf("upload %s %s: %w", first.Kind, first.Name, rerr)
		}
	}
	if _, err := call.CloseAndRecv(); err != nil {
		return fmt.Errorf("upload %s %s: %w", first.Kind, first.Name, err)
	}
	return nil
}

// rekeyCommand gives a machine another SSH host key, read from standard input: by its own command where it has one, else
// that of its OpenSSH server, which reads it at a SIGHUP (sshd(8)). As root, or by sudo.
const rekeyCommand = `set -eu
if command -v launcher-machine-rekey >/dev/null 2>&1; then exec launcher-machine-rekey; fi
s=
[ "$(id -u)" = 0 ] || s="sudo -n"
exec $s sh -euc '
umask 077
k=/etc/ssh/.launcher_host_key
cat >$k
[ -s $k ]
ssh-keygen -y -f $k >$k.pub
chmod 644 $k.pub
mv -f $k /etc/ssh/ssh_host_ed25519_key
mv -f $k.pub /etc/ssh/ssh_host_ed25519_key.pub
for f in /run/sshd.pid /var/run/sshd.pid; do
	if [ -s $f ]; then kill -HUP "$(cat $f)"; exit 0; fi
done
systemctl reload ssh 2>/dev/null || systemctl reload sshd
'`

// rekeyTimeout bounds the command.
const rekeyTimeout = time.Minute

// rekey journals that the head was reached and gives it a host key of its own. The birth key came in user data, which others may read,
// so nothing of the job is sent before. The new key's public half is on disk before its private half is sent, else a crash here would lock us out.
func (o *owner) rekey(ctx context.Context, c *connection) error {
	n := o.journal.State().Head()
	if n == nil {
		return errHeadGone
	}
	if err := o.record(ctx, journal.NewEvent(journal.NodeReachable, n.Name, 0, journal.Reachable{Address: n.Machine.Address})); err != nil {
		return err
	}
	if !o.journal.State().Planned.Info.RotatesHostKeys || n.HostKey != "" {
		return nil
	}
	if n.NewKey != "" && c.ssh.PinnedKey() == n.NewKey { // the answer was lost, the key is in place
		return o.record(ctx, journal.NewEvent(journal.NodeRekeyed, n.Name, 0, journal.Rekeyed{HostKey: n.NewKey}))
	}
	pair, err := sshkey.New("")
	if err != nil {
		return err
	}
	if err := o.record(ctx, journal.NewEvent(journal.NodeRekeying, n.Name, 0, journal.Rekeyed{HostKey: pair.Public})); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, rekeyTimeout)
	defer cancel()
	said := &tail{}
	var exit sshexec.Exit
	err = o.opts.Door.Pass(ctx, journal.Effect{Name: "send.rekey", Operand: n.Name}, func() (err error) {
		exit, err = c.ssh.Stream(ctx, rekeyCommand, sshexec.Streams{Stdin: strings.NewReader(string(pair.Private)), Stderr: said})
		return err
	})
	if err != nil {
		return fmt.Errorf("rekey the head: %w", err)
	}
	if !exit.OK() {
		return fmt.Errorf("rekey the head: %v: %s", exit, said)
	}
	return o.record(ctx, journal.NewEvent(journal.NodeRekeyed, n.Name, 0, journal.Rekeyed{HostKey: pair.Public}))
}

// tail keeps the last bytes of what a command wrote, for an error.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	t.b = slices.Clone(t.b[max(0, len(t.b)-500):])
	return len(p), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(t.b)) }

// record journals what this process saw of the head. An event that comes too late means that the head is on its way out.
func (o *owner) record(ctx context.Context, events ...journal.Event) error {
	err := o.journal.Append(ctx, events...)
	if errors.Is(err, journal.ErrCannotFollow) {
		return errHeadGone
	}
	return err
}
