package jobspec

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"
)

// Diagnostics are what is wrong with a job file. The name is for packages that pass them on.
type Diagnostics = hcl.Diagnostics

// NeedClient complains of the providers that only the calling program has, while the job is to be supervised on its head.
func NeedClient(job *Job, names []string) Diagnostics {
	var diags Diagnostics
	for _, name := range names {
		diags = diags.Append(&hcl.Diagnostic{
			Severity: hcl.DiagError,
			Summary:  fmt.Sprintf("Provider %q cannot go to the head", short(name)),
			Detail: fmt.Sprintf("The head is to supervise this job, and %s is neither built in nor a plugin that could be sent there. "+
				"Supervise it from here: head { supervisor = \"client\" }.", name),
			Subject: job.Range("provider." + name),
		})
	}
	return sorted(diags)
}
