package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// templatePaths lists what a template sets, commented out or not, by its path below the job.
func templatePaths(text string) []string {
	attribute, block, end := regexp.MustCompile(`^([a-z_]+) *= `), regexp.MustCompile(`^([a-z_]+)( "[^"]*")? \{$`), regexp.MustCompile(`^\}$`)
	var paths, in []string
	heredoc := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		line = strings.TrimSpace(strings.TrimPrefix(line, "#"))
		if heredoc {
			heredoc = line != "EOT"
			continue
		}
		heredoc = strings.HasSuffix(line, "<<-EOT")
		if m := attribute.FindStringSubmatch(line); m != nil {
			paths = append(paths, strings.Join(append(slices.Clone(in), m[1]), "."))
		} else if m := block.FindStringSubmatch(line); m != nil && m[1] != "job" {
			in = append(in, m[1])
			paths = append(paths, strings.Join(in, "."))
		} else if end.MatchString(line) && len(in) > 0 {
			in = in[:len(in)-1]
		}
	}
	return paths
}

func TestTemplatePaths(t *testing.T) {
	got := templatePaths("job \"x\" {\n  a = 1 # c = 2\n  # prose here\n  b {\n    # c = 3\n  }\n  # d {\n  #   e = <<-EOT\n  #     f = 4\n  #   EOT\n  # }\n}\n")
	if diff := cmp.Diff([]string{"a", "b", "b.c", "d", "d.e"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestJobName(t *testing.T) {
	for folder, want := range map[string]string{"cifar": "cifar", "My Model 2": "my-model-2", "2024-run": "run", "---": "job", "x_y": "x-y", strings.Repeat("ab", 20): strings.Repeat("ab", 15)} {
		if got := jobName(folder); got != want {
			t.Errorf("jobName(%q) = %q, want %q", folder, got, want)
		}
	}
}
