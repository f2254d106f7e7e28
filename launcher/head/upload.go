package head

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ephemeral-launcher/launcher/bootstrap"
	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

// markSuffix is that of the file beside an upload that has its hash.
const markSuffix = ".sha256"

// agentName is the name of the workers' binary.
const agentName = "launcher-agent"

func (d *Daemon) binaries() string { return filepath.Join(d.Folder, "binaries") }

func (d *Daemon) workdir(hash string) string {
	return filepath.Join(d.Folder, "workdir-"+fileName(hash)+".tar.zst")
}

// PluginPath is where the plugin of a provider lies after its upload.
func PluginPath(folder, provider string) string {
	return filepath.Join(folder, "plugins", "launcher-provider-"+provider)
}

// Upload implements control.HeadServer.
func (d *Daemon) Upload(call grpc.ClientStreamingServer[control.UploadChunk, control.UploadReply]) error {
	first, err := call.Recv()
	if err != nil {
		return err
	}
	path, mode, err := d.place(first)
	if err != nil {
		return err
	}
	mark := path + markSuffix
	if have, err := os.ReadFile(mark); err == nil && string(have) == first.Sha256 {
		return call.SendAndClose(&control.UploadReply{Present: true})
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return status.Errorf(codes.Internal, "upload: %v", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".upload-*")
	if err != nil {
		return status.Errorf(codes.Internal, "upload: %v", err)
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	for c := first; ; {
		if _, err := tmp.Write(c.Data); err != nil {
			return status.Errorf(codes.Internal, "upload: %v", err)
		}
		if c, err = call.Recv(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
	}
	// A plugin is run from here, so it is unpacked and its hash checked here. An agent's is checked where it is run, the workdir's where it is unpacked.
	if first.Kind == control.UploadKind_PLUGIN_BINARY {
		if err := errors.Join(unpack(tmp, first.Gzip), holds(tmp.Name(), first.Sha256)); err != nil {
			return status.Errorf(codes.DataLoss, "upload of %s: %v", first.Name, err)
		}
	}
	if err := errors.Join(tmp.Chmod(mode), tmp.Close(), os.Rename(tmp.Name(), path)); err != nil {
		return status.Errorf(codes.Internal, "upload: %v", err)
	}
	if first.Kind == control.UploadKind_AGENT_BINARY {
		if err := d.writeSums(first.Name, first.Sha256); err != nil {
			return status.Errorf(codes.Internal, "upload: %v", err)
		}
	}
	if err := os.WriteFile(mark, []byte(first.Sha256), 0o600); err != nil {
		return status.Errorf(codes.Internal, "upload: %v", err)
	}
	return call.SendAndClose(&control.UploadReply{})
}

// maxPlugin bounds what a compressed plugin unpacks to.
const maxPlugin = 512 << 20

// unpack replaces what a file holds by what that is compressed of, where it is.
func unpack(f *os.File, compressed bool) error {
	if !compressed {
		return nil
	}
	data, err := os.ReadFile(f.Name())
	if err != nil {
		return err
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(r, maxPlugin+1))
	if err == nil && n > maxPlugin {
		err = fmt.Errorf("it unpacks to more than %d bytes", maxPlugin)
	}
	return errors.Join(err, f.Truncate(n))
}

// holds tells whether a file has the checksum.
func holds(path, want string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("its hash is %s, not %s", got, want)
	}
	return nil
}

// PluginChecksum is the checksum that the plugin of a provider was uploaded with.
func PluginChecksum(folder, provider string) (string, error) {
	sum, err := os.ReadFile(PluginPath(folder, provider) + markSuffix)
	if err != nil {
		return "", fmt.Errorf("plugin %s was not uploaded: %w", provider, err)
	}
	return string(sum), nil
}

// pinned holds the uploaded plugin to the one that the run began with.
func (d *Daemon) pinned(planned *journal.Planned) error {
	if planned == nil || len(planned.Plugin) == 0 {
		return nil // built in
	}
	if err := holds(PluginPath(d.Folder, planned.Provider), planned.Plugin[runtime.GOOS+"-"+runtime.GOARCH]); err != nil {
		return status.Errorf(codes.FailedPrecondition, "plugin %s is not the one that the run began with: %v", planned.Provider, err)
	}
	return nil
}

// place says where an upload goes.
func (d *Daemon) place(c *control.UploadChunk) (path string, mode os.FileMode, err error) {
	if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(c.Sha256) {
		return "", 0, status.Errorf(codes.InvalidArgument, "upload: %q is no SHA-256", c.Sha256)
	}
	if c.Kind != control.UploadKind_WORKDIR_ARCHIVE && !regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`).MatchString(c.Name) {
		return "", 0, status.Errorf(codes.InvalidArgument, "upload: bad name %q", c.Name)
	}
	switch c.Kind {
	case control.UploadKind_AGENT_BINARY:
		name := agentName
		if c.Gzip {
			name += ".gz"
		}
		return filepath.Join(d.binaries(), c.Name, name), 0o600, nil
	case control.UploadKind_PLUGIN_BINARY:
		return PluginPath(d.Folder, c.Name), 0o700, nil
	case control.UploadKind_WORKDIR_ARCHIVE:
		return d.workdir(c.Sha256), 0o600, nil
	}
	return "", 0, status.Errorf(codes.InvalidArgument, "upload: unknown kind %v", c.Kind)
}

// writeSums adds an agent binary to the list of hashes.
func (d *Daemon) writeSums(platform, sum string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	path := filepath.Join(d.binaries(), bootstrap.SumsFile)
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	name := platform + "/" + agentName
	lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(old)), "\n"), func(l string) bool {
		return l == "" || strings.HasSuffix(l, "  "+name)
	})
	lines = append(lines, fmt.Sprintf("%s  %s", sum, name))
	if err := os.WriteFile(path+".new", []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
