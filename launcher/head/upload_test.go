package head

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// uploading is the server's end of one Upload.
type uploading struct {
	grpc.ServerStream
	chunks []*control.UploadChunk
	reply  *control.UploadReply
}

func (u *uploading) Recv() (*control.UploadChunk, error) {
	if len(u.chunks) == 0 {
		return nil, io.EOF
	}
	c := u.chunks[0]
	u.chunks = u.chunks[1:]
	return c, nil
}

func (u *uploading) SendAndClose(r *control.UploadReply) error {
	u.reply = r
	return nil
}

func (u *uploading) Context() context.Context { return context.Background() }

// TestUploadPlugin: what is to be run as a plugin is unpacked, has the hash that was said, and is the one that the run began with.
func TestUploadPlugin(t *testing.T) {
	d := &Daemon{Options: Options{Folder: t.TempDir()}}
	content := strings.Repeat("a program ", 20_000)
	sum := func(text string) string {
		s := sha256.Sum256([]byte(text))
		return hex.EncodeToString(s[:])
	}
	packed := func(text string) []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err := w.Write([]byte(text))
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	send := func(data []byte, gzipped bool, sum string) (*control.UploadReply, error) {
		u := &uploading{chunks: []*control.UploadChunk{{Kind: control.UploadKind_PLUGIN_BINARY, Name: "lab", Sha256: sum, Gzip: gzipped, Size: int64(len(data))}}}
		for len(data) > 0 {
			n := min(len(data), 100)
			u.chunks, data = append(u.chunks, &control.UploadChunk{Data: data[:n]}), data[n:]
		}
		err := d.Upload(u)
		return u.reply, err
	}
	path := PluginPath(d.Folder, "lab")
	for name, tc := range map[string]struct {
		data    []byte
		gzipped bool
		sum     string
	}{
		"another hash":             {[]byte(content), false, sum("other")},
		"compressed, another hash": {packed(content), true, sum("other")},
		"the hash of what is sent": {packed(content), true, sum(string(packed(content)))},
		"cut short":                {packed(content)[:100], true, sum(content)},
		"not compressed":           {[]byte(content), true, sum(content)},
	} {
		if _, err := send(tc.data, tc.gzipped, tc.sum); status.Code(err) != codes.DataLoss {
			t.Errorf("%s: got %v, want data loss", name, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); err != nil || len(left) > 0 {
		t.Errorf("refused uploads left %v, %v", left, err)
	}
	if _, err := PluginChecksum(d.Folder, "lab"); err == nil {
		t.Error("a plugin that was refused has a checksum")
	}
	planned := func(sum string) *journal.Planned {
		return &journal.Planned{Provider: "lab", Plugin: map[string]string{runtime.GOOS + "-" + runtime.GOARCH: sum}}
	}
	if err := d.pinned(planned(sum(content))); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a plugin that is not there: got %v, want a failed precondition", err)
	}

	if reply, err := send(packed(content), true, sum(content)); err != nil || reply.Present {
		t.Fatalf("upload: %v, %v", reply, err)
	}
	b, err := os.ReadFile(path)
	if err != nil || string(b) != content {
		t.Errorf("the plugin has %d bytes (%v), want %d", len(b), err, len(content))
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o700 {
		t.Errorf("the plugin: %v, %v", info, err)
	}
	if got, err := PluginChecksum(d.Folder, "lab"); err != nil || got != sum(content) {
		t.Errorf("checksum %s, %v", got, err)
	}
	if reply, err := send(packed(content), true, sum(content)); err != nil || !reply.Present {
		t.Errorf("again: %v, %v", reply, err)
	}
	if err := d.pinned(planned(sum(content))); err != nil {
		t.Error(err)
	}
	if err := d.pinned(&journal.Planned{Provider: "local"}); err != nil {
		t.Errorf("built in: %v", err)
	}
	if err := d.pinned(planned(sum("other"))); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("another plugin than the run's: got %v, want a failed precondition", err)
	}
	if err := os.WriteFile(path, []byte("changed"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.pinned(planned(sum(content))); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("changed on the head: got %v, want a failed precondition", err)
	}
}
