package plugin

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// LockName is the name of the lock file, which lies beside the job file and is kept with it.
const LockName = "launcher.lock"

// Pin is one line of a lock file: this executable may be run for this provider on this platform.
//
//	NAME OS/ARCH sha256:HEX [VERSION]
//
// Of several lines for one name and platform the last counts, so that a line can be appended. Empty lines and those that
// begin with # are ignored.
type Pin struct {
	Name     string
	Platform string
	// Checksum is the SHA-256 in lower-case hexadecimal.
	Checksum string
	// Version is for people; it may be empty.
	Version string
}

func (p Pin) String() string {
	return strings.TrimRight(fmt.Sprintf("%s %s sha256:%s %s", p.Name, p.Platform, p.Checksum, p.Version), " ")
}

// Platform is this computer's, as in a lock file.
func Platform() string { return runtime.GOOS + "/" + runtime.GOARCH }

// LockError says that a plugin is not, or no longer, the one that the lock file has.
type LockError struct {
	// Lock is the path of the lock file; "": there is none to look in.
	Lock string
	// Plugin is the executable, Want what the lock has for it; empty: nothing.
	Plugin string
	Want   string
	// Pin is the line that accepts it.
	Pin Pin
}

func (e *LockError) Error() string {
	var b strings.Builder
	if e.Want == "" {
		fmt.Fprintf(&b, "plugin %s is not launcher's own and not in %s", e.Plugin, LockName)
	} else {
		fmt.Fprintf(&b, "plugin %s has changed: its checksum is sha256:%s, %s has sha256:%s", e.Plugin, e.Pin.Checksum, LockName, e.Want)
	}
	if e.Lock != "" {
		fmt.Fprintf(&b, "; to accept it: %s", e.Command())
	}
	return b.String()
}

// Command is a line for a shell that accepts the plugin; "" where there is no lock file to put it in.
func (e *LockError) Command() string {
	if e.Lock == "" {
		return ""
	}
	return fmt.Sprintf("echo '%s' >> '%s'", e.Pin, strings.ReplaceAll(e.Lock, "'", `'\''`))
}

// ReadLock reads a lock file. One that is not there has no lines; a line that cannot be read is an error.
func ReadLock(path string) ([]Pin, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseLock(path, data)
}

func parseLock(path string, data []byte) ([]Pin, error) {
	var pins []Pin
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		pin, ok, err := parsePin(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("%s line %d: %w", path, n, err)
		}
		if ok {
			pins = append(pins, pin)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return pins, nil
}

// parsePin reads a line; ok is false where it holds none.
func parsePin(line string) (pin Pin, ok bool, err error) {
	line = strings.TrimSpace(line)
	if line == "" || strings.HasPrefix(line, "#") {
		return Pin{}, false, nil
	}
	fields := strings.Fields(line)
	if len(fields) < 3 || len(fields) > 4 {
		return Pin{}, false, errors.New("want NAME OS/ARCH sha256:HEX VERSION")
	}
	pin = Pin{Name: fields[0], Platform: fields[1], Checksum: strings.TrimPrefix(fields[2], "sha256:")}
	if len(fields) == 4 {
		pin.Version = fields[3]
	}
	switch {
	case !validName(pin.Name):
		return Pin{}, false, fmt.Errorf("%q is no name of a provider", pin.Name)
	case !strings.Contains(pin.Platform, "/"):
		return Pin{}, false, fmt.Errorf("platform %q is not OS/ARCH", pin.Platform)
	case !strings.HasPrefix(fields[2], "sha256:") || !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(pin.Checksum):
		return Pin{}, false, fmt.Errorf("checksum %q is not sha256: and 64 hexadecimal digits", fields[2])
	}
	return pin, true, nil
}

// AddPin writes a line to a lock file, in the place of one for the same name and platform, and keeps all others.
func AddPin(path string, pin Pin) error {
	if strings.ContainsAny(pin.Version, " \t\r\n") {
		return fmt.Errorf("version %q cannot be written to %s", pin.Version, path)
	}
	if _, ok, err := parsePin(pin.String()); err != nil || !ok {
		return fmt.Errorf("write %s: line %q: %w", path, pin, err)
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = []byte("# Plugins that this job may run. NAME OS/ARCH sha256:HEX VERSION\n"), nil
	}
	if err != nil {
		return err
	}
	if _, err := parseLock(path, data); err != nil {
		return err
	}
	var kept []string
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\r\n")
		if old, ok, _ := parsePin(line); !ok || old.Name != pin.Name || old.Platform != pin.Platform {
			kept = append(kept, line)
		}
	}
	kept = append(kept, pin.String())
	return replace(path, []byte(strings.Join(kept, "\n")+"\n"))
}

// replace writes a file so that it is whole at any time.
func replace(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".launcher.lock-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// verify looks whether the lock file has the plugin's checksum for this platform.
func verify(lock string, found Found, sum string) error {
	return verifyFor(Platform(), lock, found, sum)
}

// verifyFor does so for any platform.
func verifyFor(platform, lock string, found Found, sum string) error {
	refusal := &LockError{Lock: lock, Plugin: found.Path, Pin: Pin{Name: found.Name, Platform: platform, Checksum: sum}}
	if lock == "" {
		return refusal
	}
	pins, err := ReadLock(lock)
	if err != nil {
		return err
	}
	for _, pin := range pins {
		if pin.Name == found.Name && pin.Platform == platform {
			refusal.Want = pin.Checksum
		}
	}
	if refusal.Want != sum {
		return refusal
	}
	return nil
}
