package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	ignore "github.com/sabhiram/go-gitignore"

	"github.com/ephemeral-launcher/launcher/launcher/control/archive"
)

// ignoreFiles hold patterns in the syntax of gitignore(5); the later one has the last word.
var ignoreFiles = [...]string{".gitignore", ".launcherignore"}

// packWorkdir packs the job's working folder into file and returns its content hash: over names, modes and contents. A folder that changes meanwhile is packed again.
func packWorkdir(ctx context.Context, job *Job, home, file string) (hash string, err error) {
	source := archive.Source{Root: job.Workdir.Source, Skip: newIgnorer(job.Workdir.Source, home, job.Workdir.Exclude).skip}
	for range 3 {
		before, _, err := archive.Fingerprint(source)
		if err != nil {
			return "", err
		}
		if hash, _, err = archive.Hash(ctx, source); err != nil {
			return "", err
		}
		if err := packFile(ctx, source, file); err != nil {
			return "", err
		}
		after, _, err := archive.Fingerprint(source)
		if err != nil {
			return "", err
		}
		if before == after {
			return hash, nil
		}
	}
	return "", fmt.Errorf("pack %s: it keeps changing; exclude what is being written", job.Workdir.Source)
}

func packFile(ctx context.Context, source archive.Source, file string) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".workdir-*")
	if err != nil {
		return fmt.Errorf("pack %s: %w", source.Root, err)
	}
	defer os.Remove(tmp.Name())
	err = archive.Pack(ctx, tmp, source)
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}

// ignorer says what of a working folder stays at home.
type ignorer struct {
	root    string
	home    string // the state folder, which holds keys
	exclude *ignore.GitIgnore
	folders map[string]*rules // by folder, relative
}

// rules are what the ignore files of a folder and of those above it say, for paths from the root.
type rules struct {
	lines   []string
	matcher *ignore.GitIgnore
}

func newIgnorer(root, home string, exclude []string) *ignorer {
	if real, err := filepath.EvalSymlinks(root); err == nil {
		root = real
	}
	if real, err := filepath.EvalSymlinks(home); err == nil {
		home = real
	}
	return &ignorer{root: root, home: home, exclude: ignore.CompileIgnoreLines(anchored(".", exclude)...), folders: map[string]*rules{}}
}

// skip is for archive.Source, which visits folders before what is in them and leaves out all of a skipped one. Sockets and devices it
// leaves out by itself.
func (g *ignorer) skip(e archive.Entry) bool {
	if path.Base(e.Path) == ".git" || filepath.Join(g.root, filepath.FromSlash(e.Path)) == g.home {
		return true
	}
	match := e.Path
	if e.Info.IsDir() {
		match += "/" // patterns that end in a slash match folders only
	}
	return g.exclude.MatchesPath(match) || g.rules(path.Dir(e.Path)).matcher.MatchesPath(match)
}

// rules reads the ignore files of a folder, once. What is further down has the last word, as in gitignore(5).
func (g *ignorer) rules(dir string) *rules {
	if r, ok := g.folders[dir]; ok {
		return r
	}
	above := &rules{matcher: ignore.CompileIgnoreLines()}
	if dir != "." {
		above = g.rules(path.Dir(dir))
	}
	var own []string
	for _, name := range ignoreFiles {
		if b, err := os.ReadFile(filepath.Join(g.root, filepath.FromSlash(dir), name)); err == nil {
			own = append(own, strings.Split(string(b), "\n")...)
		}
	}
	r := above
	if own = anchored(dir, own); len(own) > 0 {
		r = &rules{lines: slices.Concat(above.lines, own)}
		r.matcher = ignore.CompileIgnoreLines(r.lines...)
	}
	g.folders[dir] = r
	return r
}

// anchored makes patterns of a folder into patterns of the root, and spells out what the matcher does not know of gitignore(5): a slash
// inside anchors, ? is one character, and nothing else is special to a regular expression.
func anchored(dir string, lines []string) []string {
	var out []string
	for _, line := range lines {
		line = strings.TrimRight(line, " \r")
		if line == "" || line[0] == '#' {
			continue
		}
		negate := ""
		if line[0] == '!' {
			negate, line = "!", line[1:]
		}
		if strings.HasPrefix(line, `\#`) || strings.HasPrefix(line, `\!`) {
			line = line[1:]
		}
		inner := strings.TrimSuffix(line, "/")
		if inner == "" {
			continue
		}
		if !strings.Contains(inner, "/") {
			line = "**/" + line
		}
		line = strings.NewReplacer("+", `\+`, "(", `\(`, ")", `\)`, "|", `\|`, "{", `\{`, "}", `\}`, "$", `\$`, "[!", "[^", "?", "[^/]").Replace(strings.TrimPrefix(line, "/"))
		prefix := "/"
		if dir != "." {
			prefix = "/" + regexp.QuoteMeta(dir) + "/"
			prefix = strings.ReplaceAll(prefix, `\.`, ".") // the matcher does that itself
		}
		out = append(out, negate+prefix+line)
	}
	return out
}
