package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ephemeral-launcher/launcher/launcher/control"
	"github.com/ephemeral-launcher/launcher/launcher/control/archive"
)

// fileChunk is how many bytes one FileChunk carries.
const fileChunk = 64 << 10

// Put unpacks what the head sends beside its place and then swaps it in: nobody sees half of it, also after a crash.
func (a *Agent) Put(stream grpc.ClientStreamingServer[control.FileChunk, control.PutReply]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	header := first.Header
	if header == nil {
		return status.Error(codes.InvalidArgument, "the first chunk has no header")
	}
	var place string
	switch header.Kind {
	case control.FileKind_WORKDIR:
		place = a.o.Join.Workdir
		a.mu.Lock()
		present := header.Hash != "" && a.workdirHash == header.Hash
		a.mu.Unlock()
		if present {
			return stream.SendAndClose(&control.PutReply{Present: true})
		}
	case control.FileKind_CHECKPOINT:
		if !filepath.IsLocal(header.Name) || filepath.Base(header.Name) != header.Name || header.Path == "" {
			return status.Errorf(codes.InvalidArgument, "checkpoint name %q or folder %q", header.Name, header.Path)
		}
		place = filepath.Join(a.inWorkdir(header.Path), header.Name)
		if a.hasCheckpoint(stream.Context(), header) {
			return stream.SendAndClose(&control.PutReply{Present: true})
		}
	default:
		return status.Errorf(codes.InvalidArgument, "put of %s", header.Kind)
	}
	size, err := a.swapIn(stream.Context(), header, place, &chunkReader{next: stream.Recv, data: first.Data})
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	a.log.Info("files came", "kind", header.Kind, "name", header.Name, "size", size)
	return stream.SendAndClose(&control.PutReply{Size: size})
}

// hasCheckpoint looks at the file itself: the job may have changed it since.
func (a *Agent) hasCheckpoint(ctx context.Context, h *control.FileHeader) bool {
	hash, _, err := archive.Hash(ctx, archive.Source{Root: a.inWorkdir(h.Path), Name: h.Name})
	return err == nil && h.Hash != "" && hash == h.Hash
}

// swapIn unpacks into a temporary folder on the same disk and renames.
func (a *Agent) swapIn(ctx context.Context, h *control.FileHeader, place string, r io.Reader) (int64, error) {
	parent := filepath.Dir(place)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return 0, fmt.Errorf("put: %w", err)
	}
	temp, err := os.MkdirTemp(parent, ".launcher-put-")
	if err != nil {
		return 0, fmt.Errorf("put: %w", err)
	}
	defer os.RemoveAll(temp)
	fresh := filepath.Join(temp, "new")
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return 0, fmt.Errorf("put: %w", err)
	}
	size, err := archive.Unpack(ctx, r, fresh)
	if err != nil {
		return size, err
	}
	if h.Kind == control.FileKind_CHECKPOINT {
		fresh = filepath.Join(fresh, h.Name)
		hash, size, err := archive.Hash(ctx, archive.Source{Root: filepath.Dir(fresh), Name: h.Name})
		if err != nil {
			return 0, fmt.Errorf("put: %w", err)
		}
		if h.Hash != "" && hash != h.Hash {
			return 0, fmt.Errorf("put: content is %s, not %s as announced", hash, h.Hash)
		}
		a.mu.Lock()
		a.remember( // before it appears: it is not news
			&control.Checkpoint{Name: h.Name, Size: size, Hash: hash})
		a.mu.Unlock()
	}
	a.files.Lock() // not held over what the network does: a Put that is stalled does not hold up the next one
	defer a.files.Unlock()
	// A folder cannot be renamed over one that is not empty.
	old := filepath.Join(temp, "old")
	if err := os.Rename(place, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return size, fmt.Errorf("put: %w", err)
	}
	if err := os.Rename(fresh, place); err != nil {
		return size, errors.Join(fmt.Errorf("put: %w", err), os.Rename(old, place))
	}
	if h.Kind == control.FileKind_WORKDIR {
		a.mu.Lock()
		a.workdirHash = h.Hash
		a.mu.Unlock()
	}
	return size, nil
}

// chunkReader reads the data of chunks.
type chunkReader struct {
	next func() (*control.FileChunk, error)
	data []byte
}

func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.data) == 0 {
		chunk, err := r.next()
		if err != nil {
			return 0, err // io.EOF when the head has sent all
		}
		r.data = chunk.Data
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}

// Fetch packs what the head asks for.
func (a *Agent) Fetch(request *control.FetchRequest, stream grpc.ServerStreamingServer[control.FileChunk]) error {
	source := archive.Source{Root: a.inWorkdir(request.Path)}
	header := &control.FileHeader{Kind: request.Kind, Name: request.Name, Path: request.Path, Offset: request.Offset}
	hash := func() (string, int64, error) { return archive.Fingerprint(source) }
	switch request.Kind {
	case control.FileKind_WORKDIR:
		source.Root = a.o.Join.Workdir
	case control.FileKind_OUTPUTS:
		if request.Path == "" {
			return status.Error(codes.InvalidArgument, "outputs without a path")
		}
		source.Skip = func(e archive.Entry) bool {
			return e.Info.Name()[0] == '.' && e.Info.IsDir() && isTemporary(e.Info.Name())
		}
		if info, err := os.Stat(source.Root); err == nil && !info.IsDir() {
			source.Root, source.Name = filepath.Split(source.Root)
		}
	case control.FileKind_CHECKPOINT:
		if request.Name == "" || filepath.Base(request.Name) != request.Name || !filepath.IsLocal(request.Name) {
			return status.Errorf(codes.InvalidArgument, "checkpoint name %q", request.Name)
		}
		source.Name = request.Name
		hash = func() (string, int64, error) { return archive.Hash(stream.Context(), source) }
	}
	if request.Offset > 0 && request.IfHash == "" {
		return status.Error(codes.InvalidArgument, "offset without if_hash")
	}
	var err error
	header.Hash, header.Size, err = hash()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		header.Missing = true
		return stream.Send(&control.FileChunk{Header: header})
	case err != nil:
		return status.Error(codes.Internal, err.Error())
	case request.IfHash != "" && request.IfHash != header.Hash:
		return status.Errorf(codes.FailedPrecondition, "content is %s", header.Hash)
	case request.UnlessHash != "" && request.UnlessHash == header.Hash:
		header.Unchanged = true
		return stream.Send(&control.FileChunk{Header: header})
	}
	w := &chunkWriter{send: stream.Send, header: header, skip: request.Offset}
	if err := archive.Pack(stream.Context(), w, source); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return status.Error(codes.NotFound, err.Error())
		}
		return status.Error(codes.Internal, err.Error())
	}
	return w.flush()
}

// isTemporary is a folder that Put unpacks into.
func isTemporary(name string) bool { return len(name) > 14 && name[:14] == ".launcher-put-" }

// chunkWriter sends what is written as chunks, after skipping the first bytes.
type chunkWriter struct {
	send   func(*control.FileChunk) error
	header *control.FileHeader // goes with the first chunk
	skip   uint64
	data   []byte
}

func (w *chunkWriter) Write(p []byte) (int, error) {
	n := len(p)
	skipped := min(w.skip, uint64(n))
	w.skip -= skipped
	for p = p[skipped:]; len(p) > 0; {
		room := min(fileChunk-len(w.data), len(p))
		w.data = append(w.data, p[:room]...)
		p = p[room:]
		if len(w.data) == fileChunk {
			if err := w.flush(); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

func (w *chunkWriter) flush() error {
	if len(w.data) == 0 && w.header == nil {
		return nil
	}
	err := w.send(&control.FileChunk{Header: w.header, Data: slices.Clone(w.data)})
	w.header, w.data = nil, w.data[:0]
	return err
}
