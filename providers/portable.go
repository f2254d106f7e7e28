package providers

// Portable is implemented by a provider whose work is done by a program of its own (a plugin), so that it can be brought to another machine.
type Portable interface {
	// Programs lists that program for each platform there is a trusted one for, this computer's first.
	Programs() ([]Program, error)
}

// Program is one executable.
type Program struct {
	// Platform is OS-ARCH, as Go names them.
	Platform string
	Path     string
	// SHA256 is the checksum of its content, in lower-case hexadecimal.
	SHA256 string
}
