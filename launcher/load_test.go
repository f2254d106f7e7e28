package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
)

func TestLoad(t *testing.T) {
	for _, c := range []struct {
		name, text, want string
	}{
		{"good", `job "j" {
			provider "local" { zones = ["a"] }
			workers { count = 1 }
			run "ranks" { command = "true" }
		}`, ""},
		{"unknown attribute of the provider", `job "j" {
			provider "local" { zone = ["a"] }
			workers { count = 1 }
			run "ranks" { command = "true" }
		}`, "zone"},
		{"a missing folder", `job "j" {
			provider "local" {}
			workers { count = 1 }
			workdir { source = "nowhere" }
			run "ranks" { command = "true" }
		}`, "The workdir does not exist"},
		{"not served yet", `job "j" {
			provider "local" {}
			workers { count = 1 }
			run "mpi" { command = "true" }
		}`, "not available in this build"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "job.hcl")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			job, err := Load(path, LoadOptions{})
			if c.want == "" {
				if err != nil || job.Name != "j" {
					t.Errorf("got %+v, %v; want a job", job, err)
				}
				return
			}
			all, ok := errors.AsType[*DiagnosticsError](err)
			if !ok || !strings.Contains(all.Error(), c.want) || string(all.Files[path]) != c.text {
				t.Fatalf("got %v, want diagnostics with %q", err, c.want)
			}
			if _, ok := errors.AsType[hcl.Diagnostics](err); !ok {
				t.Errorf("%T holds no hcl.Diagnostics", all.Err)
			}
		})
	}
}

func TestUpWithoutASecret(t *testing.T) {
	s := newSite(t)
	job := s.job("client")
	job.Secrets = []string{"TOKEN"}
	_, err := Up(t.Context(), job, s.options(t.TempDir()))
	if _, ok := errors.AsType[*DiagnosticsError](err); !ok {
		t.Errorf("got %v, want diagnostics", err)
	}
	if n := s.cloud.Calls()["create"]; n != 0 {
		t.Errorf("%d create calls", n)
	}
}

func TestUpWithoutACandidate(t *testing.T) {
	s := newSite(t)
	job := s.job("client")
	job.Limits.MaxUSDPerHour = 0.0001
	_, err := Up(t.Context(), job, s.options(t.TempDir()))
	if none, ok := errors.AsType[*NoCandidateError](err); !ok || len(none.Rejected) == 0 {
		t.Errorf("got %v, want a NoCandidateError with reasons", err)
	}
}
