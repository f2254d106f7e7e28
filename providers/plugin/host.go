package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ephemeral-launcher/launcher/providers"
)

// Options say which plugin is run and how. Path is required by [Open]; the rest has defaults.
type Options struct {
	// Name is the provider's name; the plugin must call itself so ["": whatever it says].
	Name string
	// Path is the executable. [Resolve] finds it.
	Path string
	// Checksum is the SHA-256 of the executable in lower-case hexadecimal, looked at before every start ["": anything goes].
	Checksum string
	// Folder is where the plugin's socket is made, in a folder of its own that goes with the process: the run's folder
	// [that of temporary files, as where its name is too long for a socket].
	Folder string
	// Env looks up the variables that the plugin may have [os.LookupEnv].
	Env func(name string) (string, bool)
	// CallTimeout bounds each call besides its context [10m].
	CallTimeout time.Duration
	// Log gets the plugin's own lines, and when it was started and ended [none].
	Log *slog.Logger

	startTimeout, patience time.Duration
	maxReply               int
}

func (o Options) withDefaults() Options {
	if o.Env == nil {
		o.Env = os.LookupEnv
	}
	if o.CallTimeout <= 0 {
		o.CallTimeout = callTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.startTimeout <= 0 {
		o.startTimeout = startTimeout
	}
	if o.patience <= 0 {
		o.patience = patience
	}
	if o.maxReply <= 0 {
		o.maxReply = maxMessage
	}
	o.Log = o.Log.With("plugin", strings.TrimPrefix(filepath.Base(o.Path), Prefix))
	return o
}

// Host is a provider whose work is done by a plugin. It implements [providers.Provider], [providers.Portable],
// [providers.Preempter] and [providers.Checker]; Info.Capabilities says whether the latter two are there. Use [Open] or [Resolve], and [Host.Close].
//
// The process is started by the first call, asked for Info with next to no environment, and started again with the
// variables that Info names if any of them is set. When it dies the calls in flight fail with [providers.Gone] and the
// next call starts it again, so [providers.Retry] around a Host repeats a Create with its token. A call whose context ends
// fails with [providers.Unavailable], wrapping the context's error; where it was the deadline, the next call kills a
// plugin that hangs.
type Host struct {
	remote
	opts Options
	// trust is what Resolve trusts the executable by; the zero value trusts that for no other platform.
	trust trust
	// turn is held by the call that starts or ends the process.
	turn chan struct{}
	// closing is over when Close is called; starts and calls in flight end with it.
	closing context.Context
	end     context.CancelFunc

	mu   sync.Mutex // guards all below; they change under turn only
	info *providers.Info
	live *session
	// ready: live has the variables that Info names, or none is set.
	ready bool
}

var (
	_ providers.Provider  = (*Host)(nil)
	_ providers.Preempter = (*Host)(nil)
	_ providers.Checker   = (*Host)(nil)
	_ providers.Portable  = (*Host)(nil)
)

// Open makes a host for the executable at opts.Path. Nothing is started yet.
func Open(opts Options) (*Host, error) {
	opts = opts.withDefaults()
	path, err := filepath.Abs(opts.Path)
	if err == nil {
		err = executable(path)
	}
	if err != nil {
		return nil, providers.Errorf(providers.Invalid, "open", "plugin %s: %w", opts.Path, err)
	}
	opts.Path = path
	h := &Host{opts: opts, turn: make(chan struct{}, 1)}
	h.closing, h.end = context.WithCancel(context.Background())
	h.remote = remote{invoke: h.call}
	return h, nil
}

// Path is the plugin's executable.
func (h *Host) Path() string { return h.opts.Path }

// Checksum is the checksum that the executable is held to; "" if none. A run pins it in its journal.
func (h *Host) Checksum() string { return h.opts.Checksum }

// Close ends the plugin and waits until it is gone, a few seconds at most. Calls in flight and later ones fail with
// [providers.Internal].
func (h *Host) Close() error {
	h.end()
	h.turn <- struct{}{} // whoever starts the process has just been told to stop
	defer func() { <-h.turn }()
	h.retire((*session).close)
	return nil
}

// Info asks the plugin once and remembers.
func (h *Host) Info(ctx context.Context) (providers.Info, error) {
	if info := h.known(); info != nil {
		return copyInfo(*info), nil
	}
	if err := h.take(ctx); err != nil {
		return providers.Info{}, named(opInfo, err)
	}
	defer func() { <-h.turn }()
	info, err := h.describe(ctx)
	if err != nil {
		return providers.Info{}, named(opInfo, err)
	}
	return copyInfo(info), nil
}

// Preempt implements [providers.Preempter].
func (h *Host) Preempt(ctx context.Context, req providers.PreemptRequest) error {
	if err := h.can(ctx, opPreempt, providers.CanPreempt); err != nil {
		return err
	}
	return h.remote.Preempt(ctx, req)
}

// Check implements [providers.Checker].
func (h *Host) Check(ctx context.Context, config json.RawMessage) (providers.Identity, error) {
	if err := h.can(ctx, opCheck, providers.CanCheck); err != nil {
		return providers.Identity{}, err
	}
	return h.remote.Check(ctx, config)
}

// can refuses what Info does not offer.
func (h *Host) can(ctx context.Context, op string, capability providers.Capability) error {
	info, err := h.Info(ctx)
	if err != nil {
		return named(op, err)
	}
	if !info.Has(capability) {
		return lacks(op)
	}
	return nil
}

// call is one call of a method other than Info.
func (h *Host) call(ctx context.Context, op string, request []byte) ([]byte, error) {
	s, err := h.session(ctx)
	if err != nil {
		return nil, named(op, err)
	}
	reply, err := h.invoke(ctx, s, op, request)
	return reply, named(op, err)
}

// clockSkew is how much earlier than here a deadline may come in the plugin, whose timer for it starts and fires by itself.
const clockSkew = 100 * time.Millisecond

// invoke makes a call within a session and gives its failure a code.
func (h *Host) invoke(ctx context.Context, s *session, op string, request []byte) ([]byte, error) {
	if limit := maxMessage - maxText; len(request) > limit {
		return nil, providers.Errorf(providers.Invalid, op, "the request has %d bytes, more than %d", len(request), limit)
	}
	ctx, cancel := context.WithTimeout(ctx, h.opts.CallTimeout)
	defer cancel()
	defer context.AfterFunc(h.closing, cancel)()
	reply, err := s.invoke(ctx, op, request)
	if d, ok := ctx.Deadline(); err != nil && ok && time.Until(d) < clockSkew {
		<-ctx.Done() // the plugin's clock was ahead: it has ended the call for the deadline that is about to come here
	}
	text := clean(status.Convert(err).Message())
	switch code := status.Code(err); {
	case err == nil:
		return reply, nil
	case h.closing.Err() != nil:
		return nil, closed(op)
	case ctx.Err() != nil:
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			s.suspect.Store(true)
		}
		return nil, providers.Errorf(providers.Unavailable, op, "no answer from the plugin: %w", ctx.Err())
	case code == codes.Unavailable || code == codes.Canceled || s.process.dead():
		// The connection is gone. Whatever became of the process, there must never be two.
		_ = s.process.Kill(ctx)
		<-s.process.done
		return nil, providers.Errorf(providers.Gone, op, "the plugin is gone: %s", s.process.obituary())
	case code == codes.Unimplemented:
		return nil, providers.Errorf(providers.Internal, op, "the plugin does not know this call: %s", text)
	}
	return nil, providers.Errorf(providers.Internal, op, "call the plugin: %s", text)
}

func closed(op string) error {
	return providers.Errorf(providers.Internal, op, "the plugin's host is closed")
}

// named puts the operation into an error of ours that was made without one.
func named(op string, err error) error {
	if e, ok := errors.AsType[*providers.Error](err); ok && e.Op == "" {
		e.Op = op
	}
	return err
}

// take takes the turn.
func (h *Host) take(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		select {
		case h.turn <- struct{}{}:
			return nil
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return providers.Errorf(providers.Unavailable, "", "wait for the plugin: %w", err)
}

// known is what Info said, if it was asked already.
func (h *Host) known() *providers.Info {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.info
}

// current is the session that calls may use as it is, if there is one.
func (h *Host) current() *session {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.live == nil || !h.ready || h.live.process.dead() || h.live.suspect.Load() {
		return nil
	}
	return h.live
}

// session returns one that calls may use, starting the plugin where there is none.
func (h *Host) session(ctx context.Context) (*session, error) {
	if s := h.current(); s != nil {
		return s, nil
	}
	if err := h.take(ctx); err != nil {
		return nil, err
	}
	defer func() { <-h.turn }()
	if s := h.current(); s != nil { // started while we waited
		return s, nil
	}
	info, err := h.describe(ctx)
	if err != nil {
		return nil, err
	}
	credentials := h.variables(info.CredentialEnv)
	s, ready := h.usable()
	if s != nil && !ready && len(credentials) > 0 {
		h.retire((*session).close)
		s = nil
	}
	if s == nil {
		if s, err = h.start(ctx, credentials); err != nil {
			return nil, err
		}
	}
	h.mu.Lock()
	h.ready = true
	h.mu.Unlock()
	return s, nil
}

// describe asks for Info, of a plugin without credentials. The turn is held.
func (h *Host) describe(ctx context.Context) (providers.Info, error) {
	if info := h.known(); info != nil {
		return *info, nil
	}
	s, _ := h.usable()
	if s == nil {
		var err error
		if s, err = h.start(ctx, nil); err != nil {
			return providers.Info{}, err
		}
	}
	bare := remote{invoke: func(ctx context.Context, op string, request []byte) ([]byte, error) {
		return h.invoke(ctx, s, op, request)
	}}
	info, err := bare.Info(ctx)
	if err != nil {
		return providers.Info{}, err
	}
	if problem := problemOf(info, h.opts.Name); problem != "" {
		return providers.Info{}, providers.Errorf(providers.Internal, opInfo, "plugin %s: %s", h.opts.Path, problem)
	}
	h.mu.Lock()
	h.info = &info
	h.mu.Unlock()
	return info, nil
}

// usable returns the session there is, after a look whether it lives; what does not is put away. The turn is held.
func (h *Host) usable() (s *session, ready bool) {
	h.mu.Lock()
	s, ready = h.live, h.ready
	h.mu.Unlock()
	switch {
	case s == nil:
		return nil, false
	case s.process.dead():
		h.opts.Log.Warn("plugin died", "how", s.process.obituary())
	case s.suspect.Load() && !s.lives(context.Background(), h.opts.patience):
		h.opts.Log.Warn("plugin hangs: killing it")
	default:
		s.suspect.Store(false)
		return s, ready
	}
	h.retire((*session).kill)
	return nil, false
}

// start starts the plugin. The turn is held, and no other process is alive.
func (h *Host) start(ctx context.Context, credentials []string) (*session, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.closing, cancel)()
	began := time.Now()
	s, err := start(ctx, h.opts, slices.Concat(h.variables(hostVariables()), credentials))
	if h.closing.Err() != nil {
		if s != nil {
			s.kill()
		}
		return nil, closed("")
	}
	if err != nil {
		return nil, err
	}
	h.opts.Log.Debug("plugin started", "path", h.opts.Path, "credentials", len(credentials), "took", time.Since(began))
	h.mu.Lock()
	h.live, h.ready = s, false
	h.mu.Unlock()
	return s, nil
}

// retire ends the session there is. The turn is held.
func (h *Host) retire(how func(*session)) {
	h.mu.Lock()
	s := h.live
	h.live, h.ready = nil, false
	h.mu.Unlock()
	if s != nil {
		how(s)
	}
}

// hostVariables are what every plugin may have: where programs, files and the way to the network are, and nothing secret
// but what a proxy's address holds. LAUNCHER_MACHINE is the id by which what runs on a machine of local or ssh is found at its end.
func hostVariables() []string {
	return []string{
		"PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ",
		"XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "LAUNCHER_HOME", "LAUNCHER_MACHINE",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	}
}

// variables looks names up, as NAME=value.
func (h *Host) variables(names []string) []string {
	var env []string
	for _, name := range names {
		if value, ok := h.opts.Env(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// problemOf says why an Info cannot be relied on; "" if it can.
func problemOf(info providers.Info, name string) string {
	if !validName(info.Name) {
		return fmt.Sprintf("calls itself %q, which is no name", clean(info.Name))
	}
	if name != "" && info.Name != name {
		return fmt.Sprintf("calls itself %q, want %q", info.Name, name)
	}
	variable := regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	for _, v := range info.CredentialEnv {
		if !variable.MatchString(v) || strings.HasPrefix(v, "PLUGIN_") || v == cookieKey {
			return fmt.Sprintf("wants the variable %q", clean(v))
		}
	}
	return ""
}

// copyInfo makes a copy that its caller may change.
func copyInfo(info providers.Info) providers.Info {
	info.Capabilities = slices.Clone(info.Capabilities)
	info.Schema = slices.Clone(info.Schema)
	info.CredentialEnv = slices.Clone(info.CredentialEnv)
	return info
}
