package bootstrap

import (
	"context"
	"fmt"
	"strings"

	"github.com/ephemeral-launcher/launcher/bootstrap/sshexec"
)

// Platform asks a machine for its platform, OS-ARCH as Go names them.
func Platform(ctx context.Context, conn *sshexec.Conn) (string, error) {
	said, err := conn.Run(ctx, `echo "$(uname -s)/$(uname -m)"`)
	if err != nil {
		return "", fmt.Errorf("ask for the platform: %w", err)
	}
	name := strings.TrimSpace(string(said.Stdout))
	for _, system := range []string{"linux", "darwin"} {
		for _, arch := range []string{"amd64", "arm64"} {
			for pattern := range strings.SplitSeq(uname(system+"-"+arch), "|") {
				if name == pattern {
					return system + "-" + arch, nil
				}
			}
		}
	}
	return "", fmt.Errorf("%w: %q", ErrPlatform, name)
}
