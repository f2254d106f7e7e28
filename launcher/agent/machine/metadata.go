package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	// metadataEvery is how often a metadata service is asked that cannot be waited on. Azure advises a second; a
	// notice of AWS is two minutes, of which its advice of 5 s would take more than our second.
	metadataEvery = time.Second
	// metadataTimeout bounds one request. The first one to Azure's may take two minutes.
	metadataTimeout = 150 * time.Second
	// maxAnswer bounds what is read of one answer, in bytes.
	maxAnswer = 1 << 20
	// gcpWait is how long GCP's service is asked to hold a request.
	gcpWait = 60 * time.Second
)

// MetadataNotices reads the notices of a cloud's metadata service, which every process of a machine can ask.
//
//	aws    GET /latest/meta-data/spot/instance-action with a session token (IMDSv2): EC2 user guide, "Spot Instance
//	       interruption notices"
//	gcp    GET /computeMetadata/v1/instance/preempted, held until it changes: Compute Engine, "Preemption process".
//	       No lead time unless asked for: the deadline is the moment
//	azure  GET /metadata/scheduledevents: "Azure Metadata Service: Scheduled Events for Linux VMs"
type MetadataNotices struct {
	Source string       // "aws", "gcp", "azure"
	Base   string       // URL of the service; empty: the cloud's own
	Client *http.Client // nil: one without a proxy
}

// Watch asks until ctx ends.
func (m MetadataNotices) Watch(ctx context.Context, seen func(Notice)) error {
	if m.Client == nil {
		transport := &http.Transport{MaxIdleConns: 1, IdleConnTimeout: 2 * gcpWait}
		defer transport.CloseIdleConnections()
		m.Client = &http.Client{Transport: transport, Timeout: metadataTimeout}
	}
	if m.Base == "" {
		m.Base = "http://169.254.169.254"
	}
	var look func(context.Context) ([]Notice, error)
	pause := metadataEvery
	switch m.Source {
	case "aws":
		look = (&awsNotices{m: m}).look
	case "gcp":
		look, pause = (&gcpNotices{m: m}).look, 0
	case "azure":
		look = (&azureNotices{m: m}).look
	default:
		return fmt.Errorf("watch notices: no metadata service %q", m.Source)
	}
	before := map[string]Notice{}
	for {
		notices, err := look(ctx)
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return fmt.Errorf("watch notices of %s: %w", m.Source, err)
		}
		now := map[string]Notice{}
		for _, n := range notices {
			n.Source = m.Source
			now[n.ID] = n
			if old, ok := before[n.ID]; !ok || !old.Deadline.Equal(n.Deadline) {
				seen(n)
			}
		}
		for id, n := range before {
			if _, ok := now[id]; !ok {
				n.Withdrawn = true
				seen(n)
			}
		}
		before = now
		if pause == 0 {
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// ask makes one request. headers come in pairs.
func (m MetadataNotices) ask(ctx context.Context, method, path string, headers ...string) (int, []byte, http.Header, error) {
	request, err := http.NewRequestWithContext(ctx, method, m.Base+path, nil)
	if err != nil {
		return 0, nil, nil, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := m.Client.Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	return response.StatusCode, bytes.TrimSpace(body), response.Header, err
}

type awsNotices struct {
	m     MetadataNotices
	token string
}

func (a *awsNotices) look(ctx context.Context) ([]Notice, error) {
	for range 2 {
		if a.token == "" {
			code, body, _, err := a.m.ask(ctx, "PUT", "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds", "21600")
			if err != nil || code != http.StatusOK {
				return nil, errors.Join(err, fmt.Errorf("token: status %d", code))
			}
			a.token = string(body)
		}
		code, body, _, err := a.m.ask(ctx, "GET", "/latest/meta-data/spot/instance-action", "X-aws-ec2-metadata-token", a.token)
		switch {
		case err != nil:
			return nil, err
		case code == http.StatusUnauthorized:
			a.token = "" // expired
			continue
		case code == http.StatusNotFound:
			return nil, nil
		case code != http.StatusOK:
			return nil, fmt.Errorf("instance-action: status %d", code)
		}
		var action struct {
			Action string    `json:"action"`
			Time   time.Time `json:"time"`
		}
		if err := json.Unmarshal(body, &action); err != nil {
			return nil, fmt.Errorf("instance-action: %w", err)
		}
		return []Notice{{ID: "aws-" + action.Action, Deadline: action.Time}}, nil
	}
	return nil, errors.New("token: not accepted")
}

type gcpNotices struct {
	m    MetadataNotices
	etag string
	at   time.Time // when it was first seen
}

func (g *gcpNotices) look(ctx context.Context) ([]Notice, error) {
	path := "/computeMetadata/v1/instance/preempted"
	if g.etag != "" {
		path += fmt.Sprintf("?wait_for_change=true&timeout_sec=%d&last_etag=%s", int(gcpWait.Seconds()), g.etag)
	}
	code, body, header, err := g.m.ask(ctx, "GET", path, "Metadata-Flavor", "Google")
	if err != nil {
		return nil, err
	}
	if code != http.StatusOK {
		return nil, fmt.Errorf("preempted: status %d", code)
	}
	if g.etag = header.Get("ETag"); g.etag == "" {
		return nil, errors.New("preempted: no ETag to wait on")
	}
	if !strings.EqualFold(string(body), "TRUE") {
		g.at = time.Time{}
		return nil, nil
	}
	if g.at.IsZero() {
		g.at = time.Now()
	}
	return []Notice{{ID: "gcp-preempted", Deadline: g.at}}, nil
}

type azureNotices struct {
	m    MetadataNotices
	name string // of this machine: the document has the events of its whole group
}

func (a *azureNotices) look(ctx context.Context) ([]Notice, error) {
	if a.name == "" {
		code, body, _, err := a.m.ask(ctx, "GET", "/metadata/instance/compute/name?api-version=2021-02-01&format=text", "Metadata", "true")
		if err != nil || code != http.StatusOK || len(body) == 0 {
			return nil, errors.Join(err, fmt.Errorf("name: status %d", code))
		}
		a.name = string(body)
	}
	code, body, _, err := a.m.ask(ctx, "GET", "/metadata/scheduledevents?api-version=2020-07-01", "Metadata", "true")
	if err != nil {
		return nil, err
	}
	if code != http.StatusOK {
		return nil, fmt.Errorf("scheduled events: status %d", code)
	}
	var document struct {
		Events []struct {
			EventID   string `json:"EventId"`
			EventType string
			Resources []string
			NotBefore string // empty once it has started
		}
	}
	if err := json.Unmarshal(body, &document); err != nil {
		return nil, fmt.Errorf("scheduled events: %w", err)
	}
	var notices []Notice
	for _, e := range document.Events {
		mine := false
		for _, r := range e.Resources {
			mine = mine || strings.EqualFold(r, a.name)
		}
		if !mine || e.EventType != "Preempt" && e.EventType != "Terminate" {
			continue
		}
		deadline, err := http.ParseTime(e.NotBefore)
		if err != nil {
			deadline = time.Now().Truncate(time.Minute) // it has begun: any moment
		}
		notices = append(notices, Notice{ID: e.EventID, Deadline: deadline})
	}
	return notices, nil
}
