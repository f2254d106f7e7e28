package agent

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ephemeral-launcher/launcher/launcher/control"
)

// maxBody bounds a request of the node-local API, in bytes.
const maxBody = 1 << 20

func newToken() (string, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("make token: %w", err)
	}
	return hex.EncodeToString(b), nil
}

// serveAPI serves the node-local API: JSON over HTTP on loopback, for scripts in any language. The token keeps out
// other users of the machine.
func (a *Agent) serveAPI(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/world", a.getWorld)
	mux.HandleFunc("POST /v1/scale", a.postScale)
	mux.HandleFunc("POST /v1/progress", a.postProgress)
	server := &http.Server{
		Handler: a.authorized(mux), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		server.Close()
	})
	err := server.Serve(a.o.API)
	if !stop() {
		<-stopped
		return nil
	}
	return fmt.Errorf("serve node-local API: %w", err)
}

func (a *Agent) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(token), []byte(a.token)) != 1 {
			replyError(w, http.StatusUnauthorized, "send Authorization: Bearer $LAUNCHER_API_TOKEN")
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r)
	})
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(v) // a client that has gone is not our error
}

func replyError(w http.ResponseWriter, code int, text string) {
	reply(w, code, map[string]string{"error": text})
}

type memberView struct {
	Node      string `json:"node"`
	Slot      uint32 `json:"slot"`
	GroupRank uint32 `json:"group_rank"`
	Address   string `json:"address"`
	Procs     uint32 `json:"procs"`
	FirstRank uint32 `json:"first_rank"`
}

type worldView struct {
	Run        string       `json:"run"`
	Node       string       `json:"node"`
	Slot       uint32       `json:"slot"` // own
	Generation uint64       `json:"generation"`
	Version    uint64       `json:"version"` // grows with every change of what is shown here
	Members    []memberView `json:"members"`
	Notices    []noticeView `json:"notices"`
}

// getWorld answers at once without after, and else hangs until the generation is another than after, or a notice
// comes or goes. With version too (of the last answer) what has come between two calls is not missed.
func (a *Agent) getWorld(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	number := func(name string) (n uint64, given bool, err error) {
		if s := query.Get(name); s != "" {
			n, err = strconv.ParseUint(s, 10, 64)
			return n, true, err
		}
		return 0, false, nil
	}
	after, waits, err := number("after")
	version, versioned, err2 := number("version")
	if errors.Join(err, err2) != nil {
		replyError(w, http.StatusBadRequest, "after and version are numbers of an earlier answer")
		return
	}
	for {
		a.mu.Lock()
		view, changed := a.viewWorld(), a.changed
		a.mu.Unlock()
		if !waits || view.Generation != after || versioned && view.Version != version {
			reply(w, http.StatusOK, view)
			return
		}
		select {
		case <-changed:
			waits = false
		case <-a.over:
			replyError(w, http.StatusServiceUnavailable, "the agent ends")
			return
		case <-r.Context().Done():
			return
		}
	}
}

// viewWorld shows the world. Callers hold mu.
func (a *Agent) viewWorld() worldView {
	v := worldView{
		Run: a.o.Join.Run, Node: a.o.Join.Node, Slot: a.o.Join.Slot, Generation: a.world.Generation,
		Version: a.version,
		Members: []memberView{}, Notices: a.allNotices(),
	}
	if v.Notices == nil {
		v.Notices = []noticeView{}
	}
	for _, m := range a.world.Members {
		v.Members = append(v.Members, memberView{m.Node, m.Slot, m.GroupRank, m.Address, m.Procs, m.FirstRank})
	}
	return v
}

// postScale passes a wish on; the head decides.
func (a *Agent) postScale(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Workers uint32 `json:"workers"`
	}
	if !decode(w, r, &body) {
		return
	}
	if body.Workers < 1 {
		replyError(w, http.StatusBadRequest, "workers must be at least 1")
		return
	}
	a.reports.add(&control.Report{Body: &control.Report_Scale{Scale: &control.Scale{Workers: body.Workers}}})
	reply(w, http.StatusAccepted, struct{}{})
}

func (a *Agent) postProgress(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Step       int64              `json:"step"`
		Checkpoint string             `json:"checkpoint"`
		Numbers    map[string]float64 `json:"numbers"`
	}
	if !decode(w, r, &body) {
		return
	}
	a.mu.Lock()
	a.progressed = time.Now()
	generation := a.newest
	a.mu.Unlock()
	a.reports.add(&control.Report{Body: &control.Report_Progress{Progress: &control.Progress{
		Generation: generation, Step: body.Step, Checkpoint: body.Checkpoint, Numbers: body.Numbers,
	}}})
	if body.Checkpoint != "" {
		a.spawn(func(ctx context.Context) { a.announced(ctx, body.Checkpoint, body.Step) })
	}
	reply(w, http.StatusAccepted, struct{}{})
}

// decode reads a JSON object and complains about names it does not know: a misspelt one would change nothing,
// silently.
func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		replyError(w, http.StatusRequestEntityTooLarge, "the body is too large")
		return false
	}
	if err != nil {
		replyError(w, http.StatusBadRequest, err.Error())
		return false
	}
	return true
}
