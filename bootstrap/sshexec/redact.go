package sshexec

import (
	"bytes"
	"encoding/base64"
	"io"
	"net/url"
	"slices"
	"strings"
)

// Redacted stands in the place of a secret.
const Redacted = "[redacted]"

// minSecret is the length below which a value is no secret: replacing every "1"
// would destroy the text and tell what the value is.
const minSecret = 4

// Redactor replaces secret values in text: where several match, the longest one
// that starts first. It also knows each secret's base64 and URL-escaped forms, and
// each line of one that has several, since logs are cut into lines. It is safe
// for concurrent use.
type Redactor struct {
	secrets [][]byte // longest first
	starts  [256]bool
}

// NewRedactor returns a Redactor for the values; those shorter than 4 bytes are ignored.
func NewRedactor(secrets ...string) *Redactor {
	r := new(Redactor)
	add := func(s string) {
		if len(s) >= minSecret {
			r.secrets = append(r.secrets, []byte(s))
			r.starts[s[0]] = true
		}
	}
	for _, s := range secrets {
		if len(s) < minSecret {
			continue
		}
		add(s)
		add(strings.TrimSpace(s))
		add(url.QueryEscape(s))
		add(base64.StdEncoding.EncodeToString([]byte(s)))
		add(base64.RawStdEncoding.EncodeToString([]byte(s)))
		if lines := strings.FieldsFunc(s, func(c rune) bool { return c == '\n' || c == '\r' }); len(lines) > 1 {
			for _, line := range lines {
				add(line)
			}
		}
	}
	slices.SortFunc(r.secrets, func(a, b []byte) int {
		if d := len(b) - len(a); d != 0 {
			return d
		}
		return bytes.Compare(a, b)
	})
	r.secrets = slices.CompactFunc(r.secrets, bytes.Equal)
	return r
}

// String returns s without the secrets.
func (r *Redactor) String(s string) string {
	if len(r.secrets) == 0 {
		return s
	}
	out, _ := r.scan(nil, []byte(s), true)
	return string(out)
}

// scan appends the redacted form of in to out and returns what it must keep back
// because a secret may go on in the next write; with final, nothing.
func (r *Redactor) scan(out, in []byte, final bool) (done, rest []byte) {
	plain := 0 // in[plain:i] is to be copied as it is
	for i := 0; i < len(in); {
		if !r.starts[in[i]] {
			i++
			continue
		}
		match := 0
		for _, s := range r.secrets { // longest first
			if bytes.HasPrefix(in[i:], s) {
				match = len(s)
				break
			}
			if !final && bytes.HasPrefix(s, in[i:]) {
				return append(out, in[plain:i]...), in[i:]
			}
		}
		if match == 0 {
			i++
			continue
		}
		out = append(out, in[plain:i]...)
		out = append(out, Redacted...)
		i += match
		plain = i
	}
	return append(out, in[plain:]...), nil
}

// Writer returns a writer that passes redacted text on to w. It keeps back only an
// end that may be the beginning of a secret; Close writes it and leaves w open.
// It is not safe for concurrent use.
func (r *Redactor) Writer(w io.Writer) io.WriteCloser { return &redacting{r: r, w: w} }

type redacting struct {
	r    *Redactor
	w    io.Writer
	kept []byte
}

func (d *redacting) Write(p []byte) (int, error) {
	if err := d.pass(append(d.kept, p...), false); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (d *redacting) Close() error { return d.pass(d.kept, true) }

func (d *redacting) pass(in []byte, final bool) error {
	out, rest := d.r.scan(nil, in, final)
	d.kept = append([]byte(nil), rest...)
	if len(out) == 0 {
		return nil
	}
	_, err := d.w.Write(out)
	return err
}
