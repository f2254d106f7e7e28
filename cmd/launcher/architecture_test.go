package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/ephemeral-launcher/launcher"

// A rule bans an import, with the reason.
type rule struct {
	// from and to are path.Match patterns, of packages of ours relative to the module, or of others in full; "x/..." matches x and all below.
	from   string
	except []string
	to     []string
	allow  []string
	// deep: not even through another package.
	deep   bool
	reason string
}

func architecture() []rule {
	leaf := "a leaf: it can be read, tested and used without the rest"
	ours := []string{"./..."}
	return []rule{
		{from: "./providers", to: ours, reason: leaf},
		{from: "./launcher/journal", to: ours, allow: []string{"./providers"}, reason: leaf},
		{from: "./launcher/rendezvous/tcpstore", to: ours, reason: leaf},
		{from: "./launcher/rendezvous", to: ours, reason: "the core decides and does no I/O: it knows nobody"},
		{from: "./bootstrap/sshexec", to: ours, allow: []string{"./bootstrap/sshkey"}, reason: leaf},
		{from: "./bootstrap/sshd", to: ours, allow: []string{"./bootstrap/sshkey"}, reason: leaf},
		{from: "./bootstrap", to: ours, allow: []string{"./bootstrap/..."}, reason: "it knows addresses and keys, never clouds or jobs"},
		{from: "./providers/catalog", to: ours, allow: []string{"./providers"}, reason: leaf},
		{from: "./providers/sim", to: ours, allow: []string{"./providers"}, reason: "one provider each"},
		{from: "./providers/local", to: ours, allow: []string{"./providers", "./bootstrap/sshd", "./bootstrap/sshkey"}, reason: "one provider each"},
		{from: "./providers/ssh", to: ours, allow: []string{"./providers", "./bootstrap/sshexec", "./bootstrap/sshkey"}, reason: "one provider each"},
		{from: "./providers/plugin", to: ours, allow: []string{"./providers"}, reason: "a leaf: plugins of others link it"},
		{from: "./launcher/...", to: []string{"./cmd/..."}, reason: "arrows run from cmd down"},
		{from: "./providers/...", to: []string{"./launcher/...", "./cmd/..."}, reason: "a provider knows machines, not runs"},
		{from: "./bootstrap/...", to: []string{"./launcher/...", "./cmd/...", "./providers/..."}, reason: "bootstrap knows addresses and keys"},
		{from: "./...", except: []string{"./launcher/jobspec", "./cmd/launcher"}, to: []string{"github.com/hashicorp/hcl/...", "github.com/zclconf/..."}, reason: "HCL is the job file's, and jobspec reads that"},
		{from: "./...", except: []string{"./bootstrap/..."}, to: []string{"golang.org/x/crypto/ssh/..."}, reason: "host keys are checked in one place"},
		{from: "./...", except: []string{"./providers/plugin"}, to: []string{"github.com/hashicorp/go-plugin/...", "github.com/hashicorp/go-hclog/..."}, reason: "the plugin hop has one owner"},
		{from: "./...", except: []string{"./cmd/launcher"}, to: []string{"github.com/urfave/cli/..."}, reason: "only the CLI has flags"},
		{from: "./...", except: []string{"./providers/aws/...", "./cmd/launcher-provider-aws"}, to: []string{"github.com/aws/..."}, reason: "one SDK, one provider"},
		{from: "./...", except: []string{"./providers/gcp/...", "./cmd/launcher-provider-gcp"}, to: []string{"cloud.google.com/..."}, reason: "one SDK, one provider"},
		{from: "./...", except: []string{"./providers/azure/...", "./cmd/launcher-provider-azure"}, to: []string{"github.com/Azure/..."}, reason: "one SDK, one provider"},
		{from: "./cmd/launcher", to: []string{"github.com/aws/...", "cloud.google.com/...", "github.com/Azure/..."}, deep: true, reason: "the main binary stays small: clouds are plugins"},
		{from: "./cmd/launcher-agent", to: []string{
			"github.com/hashicorp/...", "github.com/zclconf/...", "golang.org/x/crypto/ssh/...", "github.com/aws/...", "cloud.google.com/...", "github.com/Azure/...",
			"./launcher/jobspec", "./launcher/supervisor", "./launcher/head", "./launcher/rendezvous/...", "./bootstrap/...", "./providers/...",
		}, deep: true, reason: "the agent is sent to every worker and idles there: it links only what it needs"},
		{from: "./launcher/agent/...", to: []string{"./launcher/...", "./providers/...", "./bootstrap/..."}, allow: []string{"./launcher/agent/...", "./launcher/control/..."}, reason: "the agent knows the wire and nothing else of ours"},
		{from: "./examples/elastic-sgd/...", to: ours, allow: []string{"./examples/elastic-sgd/..."}, reason: "a user's program knows launcher by its environment variables only"},
	}
}

type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
	Doc        string
	Name       string
	Dir        string
	GoFiles    []string
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps,Doc,Name,Dir,GoFiles", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var all []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// short is an import path with ours written from the module's root.
func short(importPath string) string {
	if rest, ok := strings.CutPrefix(importPath, module); ok {
		return "." + rest
	}
	return importPath
}

func matches(pattern, p string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return p == base || strings.HasPrefix(p, base+"/")
	}
	return pattern == p
}

func matchesAny(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, p) })
}

func (r rule) broken(p goPackage) []string {
	from := short(p.ImportPath)
	if !matches(r.from, from) || matchesAny(r.except, from) {
		return nil
	}
	imports := p.Imports
	if r.deep {
		imports = p.Deps
	}
	var bad []string
	for _, i := range imports {
		to := short(i)
		if to != from && matchesAny(r.to, to) && !matchesAny(r.allow, to) {
			bad = append(bad, from+" imports "+to+": "+r.reason)
		}
	}
	return bad
}

// TestArchitectureArrows holds the import arrows: who may know whom.
func TestArchitectureArrows(t *testing.T) {
	packages := listPackages(t)
	for _, r := range architecture() {
		for _, p := range packages {
			for _, bad := range r.broken(p) {
				t.Error(bad)
			}
		}
	}
}

// TestArchitectureRulesBite breaks each rule with a package made for it: a rule that nothing can break holds nothing.
func TestArchitectureRulesBite(t *testing.T) {
	for _, r := range architecture() {
		from := module + strings.TrimSuffix(strings.TrimPrefix(r.from, "."), "/...")
		if r.from == "./..." {
			from += "/launcher/planner"
		}
		to := strings.TrimSuffix(r.to[0], "/...")
		if strings.HasPrefix(to, ".") {
			to = module + strings.TrimPrefix(to, ".") + "/x"
			if r.to[0] != "./..." && !strings.HasSuffix(r.to[0], "/...") {
				to = strings.TrimSuffix(to, "/x")
			}
		}
		p := goPackage{ImportPath: from, Imports: []string{to}, Deps: []string{to}}
		if len(r.broken(p)) == 0 {
			t.Errorf("%s importing %s breaks no rule", short(from), short(to))
		}
	}
}

// TestArchitectureLayout holds the top level closed and keeps catch-all packages out.
func TestArchitectureLayout(t *testing.T) {
	root := filepath.Join("..", "..")
	top := []string{
		"cmd", "launcher", "providers", "bootstrap", "examples", "testdata", "go.mod", "go.sum", "Makefile", "README.md",
		"LICENSE", "ARCHITECTURE.md", "CHANGELOG.md", "bin",
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !slices.Contains(top, e.Name()) {
			t.Errorf("%s: the top level is closed", e.Name())
		}
	}
	banned := []string{"util", "utils", "common", "types", "helper", "helpers", "pkg", "base", "core", "misc"}
	for _, p := range listPackages(t) {
		if name := path.Base(p.ImportPath); slices.Contains(banned, name) {
			t.Errorf("%s: a package is named for what it does", short(p.ImportPath))
		}
	}
}

// TestArchitecturePackageDocs wants one doc comment for every package.
func TestArchitecturePackageDocs(t *testing.T) {
	for _, p := range listPackages(t) {
		docs := 0
		if len(p.GoFiles) == 0 {
			continue // tests alone
		}
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc != nil && !strings.HasPrefix(f.Doc.Text(), "Code generated") && !strings.HasSuffix(name, ".pb.go") {
				docs++
			}
		}
		if docs != 1 {
			t.Errorf("%s has %d package comments, want 1", short(p.ImportPath), docs)
		}
	}
}

// TestArchitectureHostKeys bans the function that accepts any host key, everywhere, tests included.
func TestArchitectureHostKeys(t *testing.T) {
	ban := "InsecureIgnore" + "HostKey"
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && (e.Name() == ".git" || e.Name() == "bin") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if bytes.Contains(b, []byte(ban)) {
			t.Errorf("%s accepts any host key", p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestArchitectureModule keeps the module fetchable by others: no replace directives.
func TestArchitectureModule(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(b, []byte("\nreplace ")) || bytes.Contains(b, []byte("\nexclude ")) {
		t.Error("go.mod replaces or excludes a module")
	}
}
