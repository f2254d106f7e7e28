package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

//go:embed templates/*.hcl
var templates embed.FS

func (a *app) initCommand() *cli.Command {
	return &cli.Command{
		Name: "init", Usage: "write a commented job.hcl to start from", ArgsUsage: "[TEMPLATE|FILE.py]",
		Description: "Templates: " + strings.Join(templateNames(), ", ") + ". With a Python script it writes a job that runs it.",
		Flags:       []cli.Flag{&cli.StringFlag{Name: "file", Usage: "write `FILE`", Value: "job.hcl"}},
		Action: func(c *cli.Context) error {
			args, _, err := operands(c, 0, 1)
			if err != nil {
				return err
			}
			what := "local"
			if len(args) > 0 {
				what = args[0]
			}
			return a.init(what, c.String("file"))
		},
	}
}

func templateNames() []string {
	entries, err := fs.ReadDir(templates, "templates")
	if err != nil {
		panic(err) // they are part of this program
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".hcl"))
	}
	return names
}

func (a *app) init(what, file string) error {
	folder, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return err
	}
	text, err := template(what, jobName(filepath.Base(folder)))
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return usagef("%s is there already, and is not overwritten", file).hint("launcher validate "+file, "launcher init --file other.hcl "+what)
	}
	if err != nil {
		return err
	}
	if _, err = f.WriteString(text); errors.Join(err, f.Close()) != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	a.ui.printf("wrote %s\n", file)
	a.ui.notef("hint: launcher plan %s", file)
	a.ui.notef("hint: launcher up %s", file)
	return nil
}

// template is the job file for a template's name or a Python script.
func template(what, job string) (string, error) {
	name, command := what, ""
	if strings.HasSuffix(what, ".py") {
		src, err := os.ReadFile(what)
		if err != nil {
			return "", usagef("read the script: %v", err)
		}
		if filepath.IsAbs(what) || strings.HasPrefix(filepath.Clean(what), "..") {
			return "", usagef("%s is outside of this folder, and only this folder travels to the workers", what)
		}
		name, command = "local", "python3 "+what
		if strings.Contains(string(src), "torch") {
			name = "torch-ddp"
		}
	}
	if !slices.Contains(templateNames(), name) {
		return "", usagef("no template %q: there is %s, or name a .py file", what, strings.Join(templateNames(), " and ")).hint("launcher init local")
	}
	b, err := templates.ReadFile("templates/" + name + ".hcl")
	if err != nil {
		return "", err
	}
	text := strings.Replace(string(b), `job "NAME"`, fmt.Sprintf("job %q", job), 1)
	if command != "" {
		line := regexp.MustCompile(`(?m)^    command( *)= ".*"`)
		text = line.ReplaceAllString(text, "    command${1}= "+strings.ReplaceAll(fmt.Sprintf("%q", command), "$", "$$"))
	}
	return text, nil
}

// jobName makes a job's name of a folder's.
func jobName(folder string) string {
	name := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(folder), "-")
	name = strings.TrimLeft(name, "-0123456789")
	if len(name) > 30 {
		name = name[:30]
	}
	if name = strings.TrimRight(name, "-"); name == "" {
		return "job"
	}
	return name
}
