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
