// Package torchddp_test holds the example's job files against what launcher serves, and with -tags integration runs them with real PyTorch.
package torchddp_test

import (
	"testing"

	"github.com/ephemeral-launcher/launcher/launcher"
)

func TestJobFiles(t *testing.T) {
	for _, file := range []string{"job.hcl", "torchrun.hcl"} {
		job, err := launcher.Load(file, launcher.LoadOptions{})
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if got := job.Workers.Max * job.Run.ProcsPerNode; got != 8 {
			t.Errorf("%s: %d ranks, want the 8 of the README", file, got)
		}
	}
}
