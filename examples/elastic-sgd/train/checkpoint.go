package train

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	checkpointMagic  = "ESGDCK01"
	checkpointPrefix = "step-"
	checkpointSuffix = ".ckpt"
	keepCheckpoints  = 3

	// A checkpoint: magic, recipe, step, parameters, velocity, SHA-256 of all
	// before it; integers and floats are 8 bytes, little-endian.
	checkpointSize = len(checkpointMagic) + 8 + 8 + 2*parameters*8 + sha256.Size
)

// state is everything that training carries from one step to the next.
type state struct {
	step     int // steps done
	weights  []float64
	velocity []float64
}

func newState(seed uint64) *state {
	return &state{weights: newParameters(seed), velocity: make([]float64, parameters)}
}

// encode writes the state with the recipe it belongs to.
func (s *state) encode(recipe uint64) []byte {
	b := make([]byte, 0, checkpointSize)
	b = append(b, checkpointMagic...)
	b = binary.LittleEndian.AppendUint64(b, recipe)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.step))
	b = appendFloats(b, s.weights)
	b = appendFloats(b, s.velocity)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// decode refuses anything but a whole state of the same recipe.
func decode(b []byte, recipe uint64) (*state, error) {
	if len(b) != checkpointSize || !bytes.HasPrefix(b, []byte(checkpointMagic)) {
		return nil, errors.New("not a whole checkpoint")
	}
	body, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if want := sha256.Sum256(body); !bytes.Equal(sum, want[:]) {
		return nil, errors.New("checksum differs")
	}
	body = body[len(checkpointMagic):]
	if binary.LittleEndian.Uint64(body) != recipe {
		return nil, errors.New("made with another seed, rate or batch")
	}
	s := &state{step: int(binary.LittleEndian.Uint64(body[8:]))}
	s.weights = make([]float64, parameters)
	s.velocity = make([]float64, parameters)
	body = body[16:]
	setFloats(s.weights, body)
	setFloats(s.velocity, body[8*parameters:])
	return s, nil
}

func appendFloats(b []byte, floats []float64) []byte {
	for _, f := range floats {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
	}
	return b
}

func setFloats(floats []float64, b []byte) {
	for i := range floats {
		floats[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
	}
}

// saveCheckpoint puts the state into folder: written beside, synced, then
// renamed, so that whoever watches the folder sees whole files only. All but
// the newest few up to this step are removed; a damaged one of a later step
// never pushes out a good one.
func saveCheckpoint(folder string, s *state, recipe uint64) (path string, err error) {
	path = filepath.Join(folder, fmt.Sprintf("%s%06d%s", checkpointPrefix, s.step, checkpointSuffix))
	if err := writeFile(path, s.encode(recipe)); err != nil {
		return "", fmt.Errorf("save checkpoint: %w", err)
	}
	kept := 0
	for _, old := range listCheckpoints(folder) {
		if old.step > s.step {
			continue
		}
		if kept++; kept <= keepCheckpoints {
			continue
		}
		if err := os.Remove(old.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("remove old checkpoint: %w", err)
		}
	}
	return path, nil
}

// writeFile replaces path by a file with the given content, all or nothing.
func writeFile(path string, content []byte) error {
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	// One fixed name: what a killed process left is overwritten, not piled up.
	temporary := filepath.Join(folder, ".writing")
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

type checkpointFile struct {
	path string
	step int
}

// listCheckpoints returns what is named like a checkpoint, newest first; a
// folder that is not there holds none.
func listCheckpoints(folder string) []checkpointFile {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	var files []checkpointFile
	for _, entry := range entries {
		number, isPrefixed := strings.CutPrefix(entry.Name(), checkpointPrefix)
		number, isSuffixed := strings.CutSuffix(number, checkpointSuffix)
		step, err := strconv.Atoi(number)
		if !isPrefixed || !isSuffixed || err != nil || step < 0 {
			continue
		}
		files = append(files, checkpointFile{path: filepath.Join(folder, entry.Name()), step: step})
	}
	slices.SortStableFunc(files, func(a, b checkpointFile) int { return b.step - a.step })
	return files
}

// newestCheckpoint returns the newest state that can be read from any of the
// folders, or nil; skip is told of each newer file that could not.
func newestCheckpoint(folders []string, recipe uint64, skip func(path string, why error)) (s *state, path string) {
	var files []checkpointFile
	for _, folder := range folders {
		if folder != "" {
			files = append(files, listCheckpoints(folder)...)
		}
	}
	slices.SortStableFunc(files, func(a, b checkpointFile) int { return b.step - a.step })
	for _, file := range files {
		s, err := readCheckpoint(file, recipe)
		if err == nil {
			return s, file.path
		}
		skip(file.path, err)
	}
	return nil, ""
}

func readCheckpoint(file checkpointFile, recipe uint64) (*state, error) {
	info, err := os.Stat(file.path)
	if err != nil {
		return nil, err
	}
	if info.Size() != int64(checkpointSize) { // before reading: it could be anything
		return nil, errors.New("not a whole checkpoint")
	}
	content, err := os.ReadFile(file.path)
	if err != nil {
		return nil, err
	}
	s, err := decode(content, recipe)
	if err == nil && s.step != file.step {
		return nil, fmt.Errorf("holds step %d", s.step)
	}
	return s, err
}
