// Package jobspec turns a job file (HCL) into a Job, and everything that is wrong with the file into diagnostics.
//
// Parse reads one table of blocks and attributes (table.go): names, types, defaults and the documentation that
// Attributes returns all come from it, so that the parser and the README cannot disagree. It goes on after a
// mistake and reports all problems of a file in one run, sorted by position; only syntax errors end the list.
// Checks that look at more than the text are separate: CheckFiles (the disk), CheckSecrets (the environment) and
// CheckAvailable (what this build serves).
//
// Diagnostics are plain hcl.Diagnostics; nothing here prints. A caller renders them with
// hcl.NewDiagnosticTextWriter and the bytes it gave to Parse, or as JSON. The grammar of a diagnostic: Summary is
// at most 60 characters without a period, Detail is sentences that say what was found, what is allowed and what to
// write instead, Subject is the exact range. The sentences of syntax errors are hcl's own.
//
// Inside a job file, null means "left out", names are var.NAME only, and the functions are env("NAME"),
// file("PATH") and the string, number and collection functions of go-cty.
package jobspec
