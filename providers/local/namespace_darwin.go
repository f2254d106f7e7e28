package local

import (
	"os/exec"
	"syscall"
)

const sandboxPlain = "plain"

func sandboxes(string) []string { return []string{sandboxPlain} }

func confined(string) bool { return false }

func sandboxAttr(string) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func settle(string) error { return nil }

func dropCapabilities() error { return nil }

// runningExecutable is the path it was started by: the running one has no other name here.
func runningExecutable(command []string) string {
	if path, err := exec.LookPath(command[0]); err == nil {
		return path
	}
	return command[0]
}

// systemPath is where Homebrew lives on Apple silicon.
func systemPath() string { return "/opt/homebrew/bin" }

func serveAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
