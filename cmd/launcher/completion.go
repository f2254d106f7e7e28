package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

func (a *app) completionCommand() *cli.Command {
	return &cli.Command{
		Name: "completion", Usage: "print the completion script of a shell: bash, zsh or fish", ArgsUsage: "SHELL",
		Description: "bash: source <(launcher completion bash)   zsh: launcher completion zsh > \"${fpath[1]}/_launcher\"   fish: launcher completion fish | source",
		Action: func(c *cli.Context) error {
			args, _, err := operands(c, 1, 1)
			if err != nil {
				return err
			}
			script, err := a.completion(args[0])
			if err != nil {
				return err
			}
			a.ui.printf("%s", script)
			return nil
		},
	}
}

// completed says what the operands of a command are: runs, job files, or the words of a list.
func completed(c *cli.Command) (runs, files bool, words []string) {
	switch c.Name {
	case "completion":
		return false, false, []string{"bash", "zsh", "fish"}
	case "init":
		return false, true, templateNames()
	case "providers":
		return false, false, []string{"policy"}
	}
	return strings.Contains(c.ArgsUsage, "RUN"), strings.Contains(c.ArgsUsage, "FILE"), nil
}

// flagWords are a command's flags as they are typed; long ones only, the short ones need no completing.
func flagWords(c *cli.Command) []string {
	var words []string
	for _, f := range c.Flags {
		words = append(words, "--"+f.Names()[0])
	}
	return append(words, "--help")
}

func (a *app) completion(shell string) (string, error) {
	switch shell {
	case "bash":
		return a.bash(), nil
	case "zsh":
		return a.zsh(), nil
	case "fish":
		return a.fish(), nil
	}
	return "", usagef("no completion for %q: there is bash, zsh and fish", shell).hint("launcher completion bash")
}

func (a *app) bash() string {
	var s strings.Builder
	var names []string
	for _, c := range a.commands {
		names = append(names, c.Name)
	}
	fmt.Fprintf(&s, `# bash completion for launcher
_launcher() {
    local cur=${COMP_WORDS[COMP_CWORD]} words="" files="" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == -- ]] && return
    done
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "%s --help --version" -- "$cur"))
        return
    fi
    case ${COMP_WORDS[1]} in
`, strings.Join(names, " "))
	for _, c := range a.commands {
		runs, files, words := completed(c)
		fmt.Fprintf(&s, "    %s) ", c.Name)
		fmt.Fprintf(&s, `if [[ $cur == -* ]]; then words="%s"; `, strings.Join(flagWords(c), " "))
		switch {
		case runs:
			s.WriteString(`else words=$(launcher ls -a -q 2>/dev/null); `)
		case files:
			fmt.Fprintf(&s, `else words="%s"; files=1; `, strings.Join(words, " "))
		case len(words) > 0:
			fmt.Fprintf(&s, `else words="%s"; `, strings.Join(words, " "))
		}
		s.WriteString("fi ;;\n")
	}
	s.WriteString(`    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    [[ $files ]] && COMPREPLY+=($(compgen -f -- "$cur"))
}
complete -o filenames -F _launcher launcher
`)
	return s.String()
}

func (a *app) zsh() string {
	var s strings.Builder
	s.WriteString("#compdef launcher\n_launcher() {\n    local -a commands\n    commands=(\n")
	for _, c := range a.commands {
		fmt.Fprintf(&s, "        %s\n", quoted(c.Name+":"+c.Usage))
	}
	s.WriteString(`    )
    if ((CURRENT == 2)); then
        _describe command commands
        return
    fi
    case ${words[2]} in
`)
	for _, c := range a.commands {
		runs, files, list := completed(c)
		fmt.Fprintf(&s, "    %s)\n        if [[ $PREFIX == -* ]]; then compadd -- %s\n", c.Name, strings.Join(flagWords(c), " "))
		switch {
		case runs:
			s.WriteString("        else compadd -- $(launcher ls -a -q 2>/dev/null)\n")
		case files && len(list) > 0:
			fmt.Fprintf(&s, "        else compadd -- %s; _files\n", strings.Join(list, " "))
		case files:
			s.WriteString("        else _files\n")
		case len(list) > 0:
			fmt.Fprintf(&s, "        else compadd -- %s\n", strings.Join(list, " "))
		}
		s.WriteString("        fi ;;\n")
	}
	s.WriteString("    esac\n}\nif [[ $zsh_eval_context[-1] == loadautofunc ]]; then\n    _launcher \"$@\"\nelse\n    compdef _launcher launcher\nfi\n")
	return s.String()
}

func (a *app) fish() string {
	var s strings.Builder
	s.WriteString("# fish completion for launcher\ncomplete -c launcher -f\n")
	for _, c := range a.commands {
		fmt.Fprintf(&s, "complete -c launcher -n __fish_use_subcommand -a %s -d %s\n", c.Name, quoted(c.Usage))
		runs, files, words := completed(c)
		in := quoted("__fish_seen_subcommand_from " + c.Name)
		if runs {
			fmt.Fprintf(&s, "complete -c launcher -n %s -a '(launcher ls -a -q 2>/dev/null)'\n", in)
		}
		if files {
			fmt.Fprintf(&s, "complete -c launcher -n %s -F\n", in)
		}
		if len(words) > 0 {
			fmt.Fprintf(&s, "complete -c launcher -n %s -a %s\n", in, quoted(strings.Join(words, " ")))
		}
		for _, f := range c.Flags {
			names := f.Names()
			fmt.Fprintf(&s, "complete -c launcher -n %s -l %s", in, names[0])
			for _, n := range names[1:] {
				if len(n) == 1 {
					fmt.Fprintf(&s, " -s %s", n)
				}
			}
			if _, isSwitch := f.(*cli.BoolFlag); !isSwitch {
				s.WriteString(" -r")
			}
			if d, ok := f.(cli.DocGenerationFlag); ok {
				fmt.Fprintf(&s, " -d %s", quoted(strings.ReplaceAll(d.GetUsage(), "`", "")))
			}
			s.WriteString("\n")
		}
	}
	return s.String()
}

// quoted is a word for a shell, in single quotes.
func quoted(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
