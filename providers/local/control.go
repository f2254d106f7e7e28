package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ephemeral-launcher/launcher/providers"
)

// The control socket of a machine: a client connects, writes one request as a line of JSON, reads one reply likewise, and
// the machine closes. Spawn brings the files of the new machines along (SCM_RIGHTS, unix(7)). Who may open the socket is
// said by the folder's mode, 0700.

type operation string

const (
	opDelete  operation = "delete"  // end and clear away; the reply comes when all but the hypervisor itself is gone
	opPreempt operation = "preempt" // announce, then end after Notice
	opTag     operation = "tag"     // merge Tags
	opSpawn   operation = "spawn"   // start the outer processes of IDs in Root by Command, with two files each
	opBury    operation = "bury"    // clear away the dead machines IDs in Root
)

type request struct {
	Op      operation         `json:"op"`
	Notice  time.Duration     `json:"notice,omitempty"`
	Tags    map[string]string `json:"tags,omitempty"`
	Root    string            `json:"root,omitempty"`
	IDs     []string          `json:"ids,omitempty"`
	Command []string          `json:"command,omitempty"`
}

type reply struct {
	Code  providers.Code `json:"code,omitempty"`
	Error string         `json:"error,omitempty"`
	// Failed says, for spawn, which machines did not start and why.
	Failed map[string]string `json:"failed,omitempty"`
}

func (r reply) err() error {
	if r.Error == "" {
		return nil
	}
	return &providers.Error{Code: r.Code, Message: r.Error}
}

func refuse(code providers.Code, format string, args ...any) reply {
	return reply{Code: code, Error: fmt.Sprintf(format, args...)}
}

// maxLine bounds a request: tags and some hundred ids.
const maxLine = 1 << 20

// errDead says that no process listens on a machine's control socket.
var errDead = errors.New("the machine's hypervisor is gone")

// surrounding returns the folder of the machine this process runs in, "" if it runs in none.
func surrounding() string {
	id, root := os.Getenv(EnvMachine), os.Getenv(EnvRoot)
	if id == "" || root == "" {
		return ""
	}
	return ledger{root}.dir(id)
}

// call sends one request to the machine in dir and returns its reply once the machine has closed the connection, which for
// delete is when its hypervisor exits. It wraps errDead where nobody serves the socket.
func call(ctx context.Context, dir string, req request, files []*os.File) (reply, error) {
	conn, err := dialControl(ctx, dir)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return reply{}, fmt.Errorf("%w: %w", errDead, err)
	}
	if err != nil {
		return reply{}, fmt.Errorf("connect to %s: %w", dir, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })
	defer stop()

	line, err := json.Marshal(req)
	if err != nil {
		return reply{}, err
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	line = append(line, '\n')
	n, _, err := conn.WriteMsgUnix(line, rights, nil)
	if err == nil && n < len(line) {
		_, err = conn.Write(line[n:])
	}
	if err != nil {
		return reply{}, fmt.Errorf("%s request to %s: %w", req.Op, dir, errors.Join(ctx.Err(), err))
	}
	answer, _, err := readLine(conn)
	if err != nil {
		return reply{}, fmt.Errorf("reply to %s from %s: %w", req.Op, dir, errors.Join(ctx.Err(), err))
	}
	var r reply
	if err := json.Unmarshal(answer, &r); err != nil {
		return reply{}, fmt.Errorf("reply to %s from %s: %w", req.Op, dir, err)
	}
	if req.Op == opDelete {
		_, _ = conn.Read(make([]byte, 1)) // until the end, whatever it looks like
	}
	return r, nil
}

// readLine reads up to a newline, and the files that came along.
func readLine(conn *net.UnixConn) ([]byte, []*os.File, error) {
	var line []byte
	var files []*os.File
	fail := func(err error) ([]byte, []*os.File, error) {
		closeFiles(files)
		return nil, nil, err
	}
	buf, oob := make([]byte, 32<<10), make([]byte, unix.CmsgSpace(4*maxFiles))
	for {
		n, oobn, flags, _, err := conn.ReadMsgUnix(buf, oob)
		if err != nil {
			return fail(err)
		}
		received, err := receivedFiles(oob[:oobn])
		files = append(files, received...)
		if err != nil {
			return fail(err)
		}
		if flags&unix.MSG_CTRUNC != 0 {
			return fail(errors.New("files were lost on the way"))
		}
		if n == 0 {
			return fail(errors.New("connection closed before the end of the line"))
		}
		line = append(line, buf[:n]...)
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			return line[:i], files, nil
		}
		if len(line) > maxLine {
			return fail(errors.New("line too long"))
		}
	}
}

// maxFiles is how many files one message may carry; Linux allows 253 (SCM_MAX_FD).
const maxFiles = 200

func receivedFiles(oob []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// A socket's address holds about a hundred bytes, a machine's folder may be deeper. Its folder is then named by other means; see shortPath.

func dialControl(ctx context.Context, dir string) (*net.UnixConn, error) {
	path, release, err := shortPath(filepath.Join(dir, "control"))
	if err != nil {
		return nil, err
	}
	defer release()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

func listenControl(dir string) (*net.UnixListener, error) {
	path, release, err := shortPath(filepath.Join(dir, "control"))
	if err != nil {
		return nil, err
	}
	defer release()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // its folder goes as a whole
	return l, nil
}

// maxSocketPath is what fits sun_path with its end on every system: 104 bytes on darwin, 108 on Linux.
const maxSocketPath = 103
