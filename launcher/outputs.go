package launcher

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/control/archive"
	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
)

// fetch copies what the head still holds: the rest of the output, and the outputs of the nodes.
func (o *owner) fetch(ctx context.Context, api control.HeadClient) error {
	if err := o.logs.follow(ctx, api, false); err != nil {
		return err
	}
	out := o.job.Outputs
	if out == nil || jobspec.Bucket(out.To) {
		return nil
	}
	have := map[string]string{}
	kept := o.folder.in("outputs.json") // which archives are unpacked already
	if b, err := os.ReadFile(kept); err == nil {
		if err := json.Unmarshal(b, &have); err != nil {
			return fmt.Errorf("read %s: %w", kept, err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := api.Outputs(ctx, &control.OutputsRequest{Have: have})
	if err != nil {
		return fmt.Errorf("fetch outputs: %w", err)
	}
	for {
		first, err := call.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("fetch outputs: %w", err)
		}
		to := out.To
		if out.Nodes == jobspec.OutputsAll {
			if !filepath.IsLocal(first.Node) || filepath.Base(first.Node) != first.Node {
				return fmt.Errorf("fetch outputs: bad node name %q", first.Node)
			}
			to = filepath.Join(to, first.Node)
		}
		if err := unpackOver(ctx, &outputsReader{call: call, chunk: first}, to); err != nil {
			return fmt.Errorf("outputs of %s: %w", first.Node, err)
		}
		have[first.Node] = first.Hash
		if err := writeJSON(kept, have); err != nil {
			return fmt.Errorf("fetch outputs: %w", err)
		}
	}
}

// outputsReader is the bytes of one node's archive.
type outputsReader struct {
	call interface {
		Recv() (*control.OutputsChunk, error)
	}
	chunk *control.OutputsChunk
}

func (r *outputsReader) Read(p []byte) (int, error) {
	for len(r.chunk.Data) == 0 {
		if r.chunk.Last {
			return 0, io.EOF
		}
		c, err := r.call.Recv()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, err
		}
		r.chunk = c
	}
	n := copy(p, r.chunk.Data)
	r.chunk.Data = r.chunk.Data[n:]
	return n, nil
}

// unpackOver unpacks an archive into the folder to, over what is there: a file appears whole or not at all, and nothing is written outside.
func unpackOver(ctx context.Context, r io.Reader, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close()
	tmp, err := os.MkdirTemp(to, ".launcher-outputs-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	buffered := bufio.NewReaderSize(r, chunk)
	if _, err := archive.Unpack(ctx, buffered, tmp); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, buffered); err != nil { // the next archive begins after the last byte of this one
		return err
	}
	base := filepath.Base(tmp)
	var folders []string
	err = fs.WalkDir(os.DirFS(tmp), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		from := path.Join(base, name)
		old, statErr := root.Lstat(name)
		if d.IsDir() {
			folders = append(folders, name)
			if statErr == nil && !old.IsDir() {
				if err := root.Remove(name); err != nil {
					return err
				}
			}
			return root.MkdirAll(name, 0o755)
		}
		if statErr == nil && old.IsDir() {
			if err := root.RemoveAll(name); err != nil {
				return err
			}
		}
		return root.Rename(from, name)
	})
	if err != nil {
		return err
	}
	for i := len(folders) - 1; i >= 0; i-- { // deepest first: a read-only folder takes no files
		info, err := root.Lstat(path.Join(base, folders[i]))
		if err != nil {
			return err
		}
		if err := errors.Join(root.Chmod(folders[i], info.Mode().Perm()), root.Chtimes(folders[i], info.ModTime(), info.ModTime())); err != nil {
			return err
		}
	}
	return nil
}
