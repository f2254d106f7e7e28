package machine

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeMetadata is a metadata service whose answer a test changes.
type fakeMetadata struct {
	mu      sync.Mutex
	answer  string        // guarded by mu; empty: there is no notice
	version int           // guarded by mu
	changed chan struct{} // guarded by mu; closed when the answer changes
	tokens  int           // guarded by mu: given so far
}

func (f *fakeMetadata) set(answer string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
	f.version++
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeMetadata) state() (string, string, chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answer, fmt.Sprint("v", f.version), f.changed
}

func (f *fakeMetadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, version, changed := f.state()
	switch r.URL.Path {
	case "/latest/api/token":
		if r.Method != "PUT" || r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") == "" {
			w.WriteHeader(400)
			return
		}
		f.mu.Lock()
		f.tokens++
		fmt.Fprint(w, "token", f.tokens)
		f.mu.Unlock()
	case "/latest/meta-data/spot/instance-action":
		f.mu.Lock()
		accepted := max(2, f.tokens) // the first one has expired
		f.mu.Unlock()
		switch {
		case r.Header.Get("X-aws-ec2-metadata-token") != fmt.Sprint("token", accepted):
			w.WriteHeader(401)
		case answer == "":
			w.WriteHeader(404)
		default:
			fmt.Fprint(w, answer)
		}
	case "/computeMetadata/v1/instance/preempted":
		if r.Header.Get("Metadata-Flavor") != "Google" {
			w.WriteHeader(403)
			return
		}
		if r.URL.Query().Get("wait_for_change") == "true" && r.URL.Query().Get("last_etag") == version {
			select {
			case <-changed:
				answer, version, _ = f.state()
			case <-r.Context().Done():
				return
			}
		}
		w.Header().Set("ETag", version)
		if answer == "" {
			answer = "FALSE"
		}
		fmt.Fprintln(w, answer)
	case "/metadata/instance/compute/name":
		fmt.Fprint(w, "vm-1")
	case "/metadata/scheduledevents":
		if r.Header.Get("Metadata") != "true" {
			w.WriteHeader(400)
			return
		}
		fmt.Fprintf(w, `{"DocumentIncarnation":1,"Events":[%s]}`, answer)
	default:
		w.WriteHeader(404)
	}
}

func TestMetadataNotices(t *testing.T) {
	const azure = `{"EventId":"e%d","EventType":%q,"ResourceType":"VirtualMachine","Resources":["other",%q],"NotBefore":"Mon, 19 Sep 2016 18:29:47 GMT"}`
	for name, test := range map[string]struct {
		source, before, notice string
		want                   Notice
		anyDeadline            bool
	}{
		"aws": {
			"aws", "", `{"action":"terminate","time":"2026-01-02T03:04:05Z"}`,
			Notice{ID: "aws-terminate", Source: "aws", Deadline: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
			false,
		},
		"gcp": {"gcp", "", "TRUE", Notice{ID: "gcp-preempted", Source: "gcp"}, true},
		"azure": {
			"azure", fmt.Sprintf(azure, 1, "Preempt", "not-me") + "," + fmt.Sprintf(azure, 2, "Freeze", "vm-1"),
			fmt.Sprintf(azure, 3, "Preempt", "VM-1"),
			Notice{ID: "e3", Source: "azure", Deadline: time.Date(2016, 9, 19, 18, 29, 47, 0, time.UTC)},
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			service := &fakeMetadata{answer: test.before, changed: make(chan struct{})}
			server := httptest.NewServer(service)
			defer server.Close()
			ctx, cancel := context.WithCancel(t.Context())
			seen := make(chan Notice, 10)
			done := make(chan error, 1)
			go func() {
				done <- MetadataNotices{Source: test.source, Base: server.URL, Client: server.Client()}.Watch(ctx, func(n Notice) { seen <- n })
			}()
			next := func() Notice {
				n := <-seen
				if test.anyDeadline {
					n.Deadline = time.Time{}
				}
				return n
			}
			service.set(test.notice)
			if diff := cmp.Diff(next(), test.want); diff != "" {
				t.Errorf("notice (-got +want):\n%s", diff)
			}
			service.set(test.before)
			test.want.Withdrawn = true
			if diff := cmp.Diff(next(), test.want); diff != "" {
				t.Errorf("withdrawal (-got +want):\n%s", diff)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMetadataErrors(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	for _, source := range []string{"aws", "gcp", "azure", "none"} {
		err := MetadataNotices{Source: source, Base: server.URL, Client: server.Client()}.Watch(t.Context(), nil)
		if err == nil {
			t.Errorf("%s: no error from a service that is none", source)
		}
	}
}
