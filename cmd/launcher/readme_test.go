package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ephemeral-launcher/launcher/launcher/jobspec"
	"github.com/ephemeral-launcher/launcher/launcher/journal"
)

var update = flag.Bool("update", false, "rewrite the lists in README.md")

const (
	attributesBegin = "<!-- attributes: made by `go test ./cmd/launcher -run Readme -update` -->\n```\n"
	listEnd         = "```\n<!-- end -->"
)

// attributeList is the README's list of everything a job file may say, from the table the parser uses.
func attributeList() string {
	var b strings.Builder
	width := 0
	for _, a := range jobspec.Attributes() {
		width = max(width, len(a.Path))
	}
	for _, a := range jobspec.Attributes() {
		value := a.Default
		switch {
		case a.Required:
			value = "required"
		case value == "":
			value = a.Unset
		}
		if value != "" {
			value = " [" + value + "]"
		}
		fmt.Fprintf(&b, "%-*s  %s: %s%s\n", width, a.Path, a.Type, strings.TrimSuffix(a.Doc, "."), value)
	}
	return b.String()
}

// TestReadmeListsEveryAttribute keeps the README and the parser together.
func TestReadmeListsEveryAttribute(t *testing.T) {
	path := filepath.Join("..", "..", "README.md")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), attributesBegin)
	if !ok {
		t.Fatal("README.md has no list of attributes")
	}
	list, after, ok := strings.Cut(rest, listEnd)
	if !ok {
		t.Fatal("README.md's list of attributes has no end")
	}
	want := attributeList()
	if list == want {
		return
	}
	if !*update {
		t.Fatal("README.md's list of attributes is not the parser's: run `go test ./cmd/launcher -run Readme -update`")
	}
	if err := os.WriteFile(path, []byte(before+attributesBegin+want+listEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestReadmeNamesEveryEvent keeps the README's list of events and the journal's together.
func TestReadmeNamesEveryEvent(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range journal.Kinds() {
		if !strings.Contains(string(b), "`"+string(k)+"`") {
			t.Errorf("README.md does not name the event %s", k)
		}
	}
}

// TestReadmeNamesEveryCommand keeps the README's table of commands and the program's together.
func TestReadmeNamesEveryCommand(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range newApp(&ui{}).commands {
		if !c.Hidden && !strings.Contains(string(b), "`launcher "+c.Name) {
			t.Errorf("README.md does not name the command %s", c.Name)
		}
	}
}

// blocks returns the README's code blocks of a language.
func blocks(t *testing.T, language string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for rest := string(b); ; {
		_, after, ok := strings.Cut(rest, "```"+language+"\n")
		if !ok {
			return found
		}
		block, next, _ := strings.Cut(after, "```")
		found, rest = append(found, block), next
	}
}

// TestReadmeJobIsValid parses the job file that a reader will copy first.
func TestReadmeJobIsValid(t *testing.T) {
	jobs := blocks(t, "hcl")
	if len(jobs) == 0 {
		t.Fatal("README.md shows no job file")
	}
	for _, src := range jobs {
		if !strings.HasPrefix(src, "job ") {
			continue // a piece of one
		}
		if _, diags := jobspec.Parse([]byte(src), "README.md", jobspec.Options{}); diags.HasErrors() {
			t.Errorf("%v in:\n%s", diags, src)
		}
	}
}

// TestReadmeCommandsExist holds each line of the README that begins with launcher to a command there is.
func TestReadmeCommandsExist(t *testing.T) {
	names := map[string]bool{}
	for _, c := range newApp(&ui{}).commands {
		names[c.Name] = true
	}
	b, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, "launcher ")
		if !ok || strings.HasPrefix(rest, "runs ") { // the demo's first sentence
			continue
		}
		lines++
		if name := strings.Fields(rest)[0]; !names[name] {
			t.Errorf("README.md shows `launcher %s`, which is no command", name)
		}
	}
	if lines == 0 {
		t.Error("README.md shows no command")
	}
}

// TestExamplesValidate parses every job file of the examples.
func TestExamplesValidate(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "*", "*.hcl"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%d job files, %v", len(files), err)
	}
	for _, f := range files {
		opts := jobspec.Options{}
		if filepath.Base(f) == "train.hcl" {
			opts.Vars = map[string]string{"data": "."}
		}
		if _, diags := jobspec.Load(f, opts); diags.HasErrors() {
			t.Errorf("%s: %v", f, diags)
		}
	}
}
