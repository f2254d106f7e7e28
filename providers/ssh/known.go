package ssh

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshkey"
)

// known are known_hosts lines (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"), the ed25519 ones.
type known []knownHost

type knownHost struct {
	patterns []string
	key      string
}

// knownHosts reads a text of many lines, or a list of such.
func knownHosts(raw json.RawMessage) (known, error) {
	var texts []string
	var text string
	switch {
	case len(raw) == 0:
		return nil, errors.New("no host keys: there is no trust on first use")
	case json.Unmarshal(raw, &text) == nil:
		texts = []string{text}
	case json.Unmarshal(raw, &texts) != nil:
		return nil, errors.New("host_key is neither a text nor a list of texts")
	}
	var all known
	for line := range strings.Lines(strings.Join(texts, "\n")) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		// ssh-keyscan prints a host's other keys too.
		if fields := strings.Fields(line); len(fields) >= 3 && !strings.HasPrefix(line, "@") && fields[1] != "ssh-ed25519" {
			continue
		}
		hosts, key, err := sshkey.KnownHost(line)
		if err != nil {
			return nil, err
		}
		all = append(all, knownHost{hosts, key})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no ed25519 host key in host_key")
	}
	return all, nil
}

// of returns the keys of the host at an address host:port. Wildcards are not looked at: a pin is for one host.
func (k known) of(address string) []string {
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil
	}
	if port != "22" {
		name = "[" + name + "]:" + port
	}
	var keys []string
	for _, line := range k {
		for _, pattern := range line.patterns {
			if (strings.EqualFold(pattern, name) || hashes(pattern, name)) && !slices.Contains(keys, line.key) {
				keys = append(keys, line.key)
			}
		}
	}
	return keys
}

// hashes tells whether the pattern is the hash of the name: |1|salt|HMAC-SHA1 (openssh-portable hostfile.c, host_hash).
func hashes(pattern, name string) bool {
	parts := strings.Split(pattern, "|")
	if len(parts) != 4 || parts[0] != "" || parts[1] != "1" {
		return false
	}
	salt, err := base64.StdEncoding.DecodeString(parts[2])
	if err != nil {
		return false
	}
	want, err := base64.StdEncoding.DecodeString(parts[3])
	if err != nil {
		return false
	}
	mac := hmac.New(sha1.New, salt)
	mac.Write([]byte(name))
	return hmac.Equal(mac.Sum(nil), want)
}
